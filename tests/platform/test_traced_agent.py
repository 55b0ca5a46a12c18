"""A LangGraph agent that is traced by environment variables alone. To move here, a user changes one of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from langgraph_sdk import get_client
from langsmith import Client

from tests.platform.serving import Platform, environment
from tests.platform.test_sdk_python import runs_of
from tests.serving import EXAMPLES, make_server

pytest_plugins = "tests.platform.fixtures"
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed after Jan 31, 2027")

SCRIPT = """
import asyncio
from examples.chat import graph
ahoy = {"messages": [{"role": "user", "content": "ahoy"}]}
asyncio.run(graph.ainvoke(ahoy, {"configurable": {"thread_id": "t-1"}}))
"""


def tracing(platform: Platform, project: str) -> dict[str, str]:
    return {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_ENDPOINT": f"{platform.url}/api/v1",
        "LANGSMITH_API_KEY": platform.key,
        "LANGSMITH_PROJECT": project,
    }


def test_a_script_with_a_graph(platform: Platform) -> None:
    project = f"script-{uuid4().hex[:8]}"
    root = Path(EXAMPLES).parent.parent
    subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, env=environment(**tracing(platform, project)), check=True, timeout=60
    )
    client = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key)
    graph, node = runs_of(client, project, 2)
    assert (graph.name, node.name, node.parent_run_id) == ("LangGraph", "answer", graph.id)
    assert graph.metadata["thread_id"] == "t-1"
    client.cleanup()


async def test_an_agent_server(platform: Platform, platform_folder: Path) -> None:
    project = f"agent-{uuid4().hex[:8]}"
    server = make_server(platform_folder, EXAMPLES, **tracing(platform, project))
    await asyncio.to_thread(server.start)
    try:
        async with get_client(url=server.url) as agent:
            thread = await agent.threads.create()
            question = {"messages": [{"role": "user", "content": "ahoy"}]}
            await agent.runs.wait(thread["thread_id"], "chat", input=question)
        client = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key)
        graph, node = await asyncio.to_thread(runs_of, client, project, 2)
    finally:
        await asyncio.to_thread(server.stop)
    assert node.parent_run_id == graph.id
    assert graph.inputs["messages"][0]["content"] == "ahoy"
    assert "you said 'ahoy'" in str(graph.outputs)
    assert graph.metadata["thread_id"] == thread["thread_id"]
    client.cleanup()
