"""One question to the chat graph, traced by environment variables alone, and the trace read back by the official SDK.

Run it against a platform: set LANGSMITH_TRACING=true, LANGSMITH_ENDPOINT=<origin>/api/v1, LANGSMITH_API_KEY and
LANGSMITH_PROJECT, then `python examples/traced.py`.
"""

import asyncio
import os
import time

from chat import graph
from langchain_core.messages import HumanMessage
from langsmith import Client


async def main() -> None:
    asked = {"messages": [HumanMessage("Where is the treasure?")]}
    answered = await graph.ainvoke(asked, {"configurable": {"thread_id": "treasure"}})
    print(f"the agent said: {answered['messages'][-1].content}")


def show_trace() -> None:
    client = Client()
    client.flush()
    for _ in range(100):
        runs = list(client.list_runs(project_name=os.environ["LANGSMITH_PROJECT"]))
        if runs and all(run.end_time for run in runs):
            break
        time.sleep(0.1)
    for run in sorted(runs, key=lambda run: run.dotted_order):
        print(f"{'  ' * run.dotted_order.count('.')}{run.name}: {run.status}, {run.latency * 1000:.0f} ms")


asyncio.run(main())
show_trace()
