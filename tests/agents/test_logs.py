"""Lines of the log: each names the request, the run and the thread that it is about, whichever code writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from tests.serving import Server, make_server
from tests.waiting import until

AGENT = """
import logging
from langgraph.graph import END, START, MessagesState, StateGraph

log = logging.getLogger("tide")

def sync_node(state):
    log.warning("high water in %d hours", 2, extra={"harbour": "Leith"})

async def async_node(state):
    log.info("not shown")
    raise ValueError("aground")

graph = StateGraph(MessagesState).add_node("sync", sync_node).add_node("async", async_node)
graph = graph.add_edge(START, "sync").add_edge("sync", "async").add_edge("async", END).compile()
"""


@pytest.fixture(scope="module", params=["json", "text"])
def logging_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "agent.py").write_text(AGENT)
        config = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
        (folder / "langgraph.json").write_text(json.dumps(config))
        server = make_server(folder, folder / "langgraph.json", LOG_JSON=str(request.param == "json"))
        server.start()
        yield server
        assert server.stop() == 0


def failed_run(server: Server, request_id: str) -> tuple[str, str]:
    with httpx.Client(base_url=server.url, headers={"X-Request-Id": request_id}, timeout=30) as http:
        thread = http.post("/threads", json={}).json()["thread_id"]
        run = http.post(f"/threads/{thread}/runs", json={"assistant_id": "agent", "input": {"messages": []}}).json()
        http.get(f"/threads/{thread}/runs/{run['run_id']}/join")
        assert http.get(f"/threads/{thread}/runs/nothing").status_code == 422
    return thread, run["run_id"]


async def test_lines_of_a_run_name_it_with_its_thread_and_its_request(logging_server: Server) -> None:
    thread, run = failed_run(logging_server, "find-me.7")

    def lines() -> list[str]:
        return [line for line in logging_server.log.read_text().splitlines() if "find-me.7" in line]

    await until(lambda: len(lines()) == 3)
    if logging_server.environment["LOG_JSON"] == "True":
        found: list[dict[str, Any]] = sorted((json.loads(line) for line in lines()), key=lambda line: line["timestamp"])
        told, failed, refused = found
        for line in (told, failed):
            assert (line["run_id"], line["thread_id"]) == (run, thread)
        assert (told["event"], told["level"], told["logger"]) == ("high water in 2 hours", "warning", "tide")
        assert told["harbour"] == "Leith"
        assert (failed["event"], failed["level"]) == ("run failed", "info")
        assert "ValueError: aground" in failed["exception"]
        assert (refused["event"], refused["status"], "run_id" in refused) == ("request", 422, False)
    else:
        [told] = [line for line in lines() if "high water in 2 hours" in line]
        assert f"run_id={run}" in told
        assert f"thread_id={thread}" in told
    assert "not shown" not in logging_server.log.read_text()
