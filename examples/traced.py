"""One question to the chat graph, traced by environment variables alone, and the trace read back by the official SDK.

Run it against a platform: set LANGSMITH_TRACING=true, LANGSMITH_ENDPOINT=<origin>/api/v1, LANGSMITH_API_KEY and
LANGSMITH_PROJECT, then `python examples/traced.py`.
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from chat import graph
from langchain_core.messages import HumanMessage
from langchain_core.tracers.langchain import wait_for_all_tracers
from langsmith import Client


async def main() -> None:
    asked = {"messages": [HumanMessage("Where is the treasure?")]}
    answered = await graph.ainvoke(asked, {"configurable": {"thread_id": "treasure"}})
    print(f"the agent said: {answered['messages'][-1].content}")
    wait_for_all_tracers()
    client = Client()
    project = client.read_project(project_name=os.environ["LANGSMITH_PROJECT"])
    runs = [
        run
        async for run in client.runs.query_v2(
            project_ids=[str(project.id)],
            min_start_time=datetime.now(UTC) - timedelta(hours=1),
            selects=["NAME", "STATUS", "LATENCY_SECONDS", "DOTTED_ORDER"],
        )
    ]
    print("its trace, read back:")
    for run in sorted(runs, key=lambda run: run.dotted_order):
        indent = "  " * (1 + run.dotted_order.count("."))
        print(f"{indent}{run.name}: {run.status.lower()}, {run.latency_seconds * 1000:.0f} ms")


asyncio.run(main())
