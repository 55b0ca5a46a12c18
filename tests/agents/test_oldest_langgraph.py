"""The examples on the oldest supported LangGraph: they work there as on the newest.

The tests of the examples run again, on a server whose interpreter has the oldest libraries. Answers that describe a
graph or a thread are compared with those of a server on the newest.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.agents.test_examples import (  # noqa: F401 - run again here, with the `client` below
    test_each_example_has_its_assistant,
    test_the_approval_waits_for_a_person_and_does_as_told,
    test_the_chat_says_what_can_be_configured,
    test_the_chat_takes_its_persona_from_the_context_of_a_run,
    test_the_team_has_a_graph_for_a_node,
    test_the_tokens_arrive_one_by_one,
    test_two_assistants_take_turns_on_one_thread_and_the_second_sees_the_first,
)
from tests.serving import EXAMPLES, ROOT, Server, make_server

OLDEST = ["langgraph==0.6.0", "langgraph-sdk==0.2.0"]
NO_INDEX = ("No matching distribution", "Could not find a version", "Connection", "Temporary failure", "timed out")

# Making the environment takes half a minute when the packages have to be fetched.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def oldest_python(pytestconfig: pytest.Config) -> Path:
    """Make an interpreter with the oldest libraries, once for each form of pyproject.toml."""
    wanted = (ROOT / "pyproject.toml").read_bytes() + repr((OLDEST, sys.version)).encode()
    digest = hashlib.sha256(wanted).hexdigest()
    folder = pytestconfig.cache.mkdir("oldest-langgraph")
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists() or made.read_text() != digest:
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *OLDEST, str(ROOT)]
        installed = subprocess.run(install, capture_output=True, text=True, check=False)
        if installed.returncode and any(sign in installed.stderr for sign in NO_INDEX):
            pytest.skip(f"no package index: {installed.stderr.strip().splitlines()[-1]}")
        assert installed.returncode == 0, installed.stderr
        made.write_text(digest)
    return python


@pytest.fixture(scope="module")
def oldest(oldest_python: Path) -> Iterator[Server]:
    """Start a server on `examples/`, with this checkout's code and the oldest libraries."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), EXAMPLES, PYTHONPATH=str(ROOT / "src"))
        running.python = str(oldest_python)
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture
async def client(oldest: Server) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=oldest.url) as client:
        yield client


@pytest.fixture
async def thread(client: LangGraphClient) -> str:
    return (await client.threads.create())["thread_id"]


def test_one_server_runs_on_the_oldest_and_the_other_does_not(oldest, examples_server):
    versions = [httpx.get(f"{server.url}/info").json()["langgraph_py_version"] for server in (oldest, examples_server)]
    assert versions[0] == "0.6.0" != versions[1]


def test_the_script_of_two_assistants_runs_with_the_oldest_client(oldest, oldest_python):
    script = [str(oldest_python), str(ROOT / "examples" / "two_assistants.py"), oldest.url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "pirate: you said" in done.stdout


# --- what graphs and threads look like, beside the newest ---------------------------------------------------------

GRAPHS = ["approval", "chat", "team", "tokens"]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("xray", ["false", "true"])
def test_a_graph_is_drawn_alike(oldest, examples_server, graph, xray):
    drawings = [
        httpx.get(f"{server.url}/assistants/{graph}/graph", params={"xray": xray}).raise_for_status().json()
        for server in (oldest, examples_server)
    ]
    assert drawings[0] == drawings[1]
    assert {"__start__", "__end__"} < {node["id"] for node in drawings[0]["nodes"]}


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_has_the_same_schemas(oldest, examples_server, graph):
    schemas = [_schemas(server, graph) for server in (oldest, examples_server)]
    assert schemas[0] == schemas[1]
    assert schemas[0]["input_schema"]["properties"]


def _schemas(server: Server, graph: str) -> Any:
    system = {"graph_id": graph, "metadata": {"created_by": "system"}}
    (found,) = httpx.post(f"{server.url}/assistants/search", json=system).raise_for_status().json()
    return httpx.get(f"{server.url}/assistants/{found['assistant_id']}/schemas").raise_for_status().json()


RUNS = [
    pytest.param("team", {"topic": "bees"}, id="ended"),
    pytest.param("approval", {"action": "launch"}, id="interrupted"),
]


@pytest.mark.parametrize("graph, given", RUNS)
def test_state_and_history_tell_the_same(oldest, examples_server, graph, given):
    told = [_told(server, graph, given) for server in (oldest, examples_server)]
    assert told[0] == told[1]
    states = told[0]["history"]
    assert told[0]["state"] == states[0]
    assert [state["metadata"]["source"] for state in states] == ["loop"] * (len(states) - 1) + ["input"]


@pytest.mark.parametrize("graph, given", RUNS)
def test_streams_tell_the_same(oldest, examples_server, graph, given):
    """Leaves out `response_schema`, which interrupts of the oldest version do not have."""
    told = [list(_frames(server, graph, given)) for server in (oldest, examples_server)]
    assert told[0] == told[1]
    assert {"values", "updates"} <= {event for event, _ in told[0]}


def _frames(server: Server, graph: str, given: Any) -> Iterator[tuple[str, Any]]:
    """Return event and data of each frame, without ids."""
    body = {"assistant_id": graph, "input": given, "stream_mode": ["values", "updates"], "stream_subgraphs": True}
    answer = httpx.post(f"{server.url}/runs/stream", json=body, timeout=30).raise_for_status()
    for frame in answer.text.split("\r\n\r\n")[1:-1]:
        event, data = frame.split("\r\n")
        told = json.loads(data.removeprefix("data: "))
        for interrupt in told.get("__interrupt__", []):
            assert len(interrupt.pop("id")) == 32
            assert interrupt.pop("response_schema", None) is None
        yield event.removeprefix("event: ").partition(":")[0], told


def _told(server: Server, graph: str, given: Any) -> dict[str, Any]:
    """Return state and history after a run, without parts that differ between runs."""
    with httpx.Client(base_url=server.url, timeout=30) as http:
        thread_id = http.post("/threads", json={}).json()["thread_id"]
        http.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": graph, "input": given}).raise_for_status()
        place = f"/threads/{thread_id}"
        status = http.get(place).json()["status"]
        state = http.get(f"{place}/state").raise_for_status().json()
        history = http.post(f"{place}/history", json={"limit": 100}).raise_for_status().json()
        for older, newer in zip(history[1:], history, strict=False):
            assert newer["parent_checkpoint"] == older["checkpoint"]
        return {"status": status, "state": _lasting(state), "history": [_lasting(state) for state in history]}


def _lasting(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "values": state["values"],
        "next": state["next"],
        "metadata": {name: state["metadata"][name] for name in ("source", "step", "parents", "graph_id")},
        "tasks": [
            {
                "name": task["name"],
                "path": task["path"],
                "error": task["error"],
                "result": task["result"],
                "interrupts": [interrupt["value"] for interrupt in task["interrupts"]],
            }
            for task in state["tasks"]
        ],
    }
