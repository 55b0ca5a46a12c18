"""Webhooks: a real receiver is notified of every end of a run, whichever process is killed in between; and receivers
that are refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from tests.agents.receivers import Receiver, receiving
from tests.serving import Server, make_server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


GRAPHS = """
import asyncio
from typing import Any
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    text: str
    answer: Any

async def echo(state: State) -> State:
    return {"text": state.get("text", "") + "!"}

async def fail(state: State) -> State:
    raise ValueError("boom")

async def ask(state: State) -> State:
    return {"answer": interrupt("Which?")}

async def sleep(state: State) -> State:
    await asyncio.sleep(60)
    return {}

def _graph(node):
    return StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()

echoes, fails, asks, sleeps = map(_graph, (echo, fail, ask, sleep))
"""
LANGGRAPH_JSON = {
    "dependencies": ["."],
    "env": {"LG_WEBHOOK_TOKEN": "hunter2-header"},
    "graphs": {name: f"./graphs.py:{name}" for name in ("echoes", "fails", "asks", "sleeps")},
    "webhooks": {
        "headers": {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "X-From": "moorage"},
        "url": {"require_https": False, "disable_loopback": False},
    },
}
SECRETS = ("hunter2-header", "hunter2-query", "hunter2-login")


def project(folder: Path, **webhooks: Any) -> Path:
    """Write a langgraph.json whose runs may notify a receiver on this machine."""
    (folder / "graphs.py").write_text(GRAPHS)
    config = {**LANGGRAPH_JSON, "webhooks": {**LANGGRAPH_JSON["webhooks"], **webhooks}}  # type: ignore[dict-item]
    (folder / "langgraph.json").write_text(json.dumps(config))
    return folder / "langgraph.json"


@pytest.fixture(scope="module")
def telling() -> Iterator[Server]:
    """Start a server whose runs may notify a receiver on this machine, and end after three seconds."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        running = make_server(folder, project(folder), BG_JOB_TIMEOUT_SECS="3", LOG_LEVEL="DEBUG")
        running.start()
        yield running
        assert running.stop() == 0


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Server]:
    """Start a server for this test alone, which may be killed and restarted."""
    server = make_server(folder, project(folder), **environment)
    server.start()
    try:
        yield server
        assert server.stop() == 0
    except BaseException:
        server.kill()
        raise


@pytest.fixture
async def client(telling: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=telling.url, timeout=30) as http:
        yield http


async def new_thread(client: httpx.AsyncClient) -> str:
    return str((await client.post("/threads", json={})).json()["thread_id"])


# --- what is told -------------------------------------------------------------------------------------------------


async def test_the_end_of_a_run_is_told_with_the_run_and_the_values_of_its_thread(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "echoes", "input": {"text": "x"}, "metadata": {"m": 1}, "webhook": receiver.url("/good")}
    made = (await client.post(f"/threads/{thread_id}/runs", json=run)).json()
    (told,) = receiver.hears("/good")
    shown = (await client.get(f"/threads/{thread_id}/runs/{made['run_id']}")).json()
    times = {name: told.body.pop(name) for name in ("run_started_at", "run_ended_at", "webhook_sent_at")}
    assert told.body.pop("values") == {"text": "x!"}
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(told.body.pop(name)) == datetime.fromisoformat(shown.pop(name))
    assert told.body == shown
    assert (shown["status"], shown["kwargs"]["webhook"]) == ("success", receiver.url("/good"))
    assert sorted(map(datetime.fromisoformat, times.values())) == list(map(datetime.fromisoformat, times.values()))


async def test_headers_hold_what_the_environment_says(client, receiver):
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url("/headers")})
    (told,) = receiver.hears("/headers")
    assert told.headers["Authorization"] == "Bearer hunter2-header"
    assert told.headers["X-From"] == "moorage"
    assert told.headers["Content-Type"] == "application/json"
    assert told.headers["Host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("way", ["/runs", "/runs/wait", "/runs/stream"])
async def test_a_temporary_run_is_told_without_values(client, receiver, way):
    path = f"/temporary{way}"
    await client.post(way, json={"assistant_id": "echoes", "input": {"text": "x"}, "webhook": receiver.url(path)})
    (told,) = receiver.hears(path)
    assert (told.body["status"], told.body["values"]) == ("success", None)
    assert "error" not in told.body


async def test_a_stateless_run_that_keeps_its_thread_is_told_with_values(client, receiver):
    run = {"assistant_id": "echoes", "input": {"text": "x"}, "on_completion": "keep", "webhook": receiver.url("/keep")}
    await client.post("/runs/wait", json=run)
    assert receiver.hears("/keep")[0].body["values"] == {"text": "x!"}


@pytest.mark.parametrize("temporary", [False, True])
async def test_a_run_that_fails_is_told_with_its_error(client, receiver, temporary):
    place, path = (
        ("/runs", "/fails/temporary") if temporary else (f"/threads/{await new_thread(client)}/runs", "/fails")
    )
    await client.post(f"{place}/wait", json={"assistant_id": "fails", "input": {}, "webhook": receiver.url(path)})
    (told,) = receiver.hears(path)
    assert (told.body["status"], told.body["error"]) == ("error", {"error": "ValueError", "message": "boom"})


async def test_a_run_that_takes_too_long_is_told(client, receiver):
    await client.post("/runs", json={"assistant_id": "sleeps", "input": {}, "webhook": receiver.url("/timeout")})
    (told,) = receiver.hears("/timeout")
    assert (told.body["status"], told.body["error"]["error"]) == ("timeout", "TimeoutError")


async def test_an_interrupted_graph_is_a_success(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "asks", "input": {"text": "x"}, "webhook": receiver.url("/asks")}
    await client.post(f"/threads/{thread_id}/runs/wait", json=run)
    (told,) = receiver.hears("/asks")
    assert told.body["status"] == "success"
    assert told.body["values"]["text"] == "x"
    assert "error" not in told.body
    assert (await client.get(f"/threads/{thread_id}")).json()["status"] == "interrupted"


@pytest.mark.parametrize("action, error", [("interrupt", "UserInterrupt"), ("rollback", "UserRollback")])
async def test_cancelled_runs_are_told_also_those_that_never_started(client, receiver, action, error):
    thread_id = await new_thread(client)
    runs = [
        (await client.post(f"/threads/{thread_id}/runs", json=run)).json()["run_id"]
        for run in (
            {"assistant_id": "sleeps", "input": {}, "webhook": receiver.url(f"/cancelled/{action}/{number}")}
            for number in range(2)
        )
    ]
    await client.post("/runs/cancel", params={"action": action}, json={"thread_id": thread_id, "run_ids": runs})
    running, waiting = (receiver.hears(f"/cancelled/{action}/{number}")[0].body for number in range(2))
    for told, run_id in zip((running, waiting), runs, strict=True):
        assert (told["run_id"], told["status"], told["error"]["error"]) == (run_id, "interrupted", error)
    assert running["run_started_at"] is not None
    assert waiting["run_started_at"] is None


async def test_a_deleted_run_tells_nobody(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "sleeps", "input": {}, "webhook": receiver.url("/deleted")}
    run_id = (await client.post(f"/threads/{thread_id}/runs", json=run)).json()["run_id"]
    await client.delete(f"/threads/{thread_id}/runs/{run_id}")
    await client.post(
        "/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url("/after/deleted")}
    )
    receiver.hears("/after/deleted")
    assert not [told for told in receiver.told if told.path == "/deleted"]


async def test_odd_text_arrives_as_it_was_sent(client, receiver):
    run = {"assistant_id": "echoes", "input": {"text": "a\0b"}, "webhook": receiver.url("/odd?x=ü")}
    await client.post("/runs/wait", json=run)
    assert receiver.hears("/odd?x=%C3%BC")[0].body["kwargs"]["input"] == {"text": "a\0b"}


# --- and again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_a_receiver_that_does_not_take_it_is_told_again(client, receiver, status):
    path = f"/again/{status}"
    receiver.answers[path] = [status]
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url(path)})
    first, second = receiver.hears(path, times=2)
    assert 0.9 < second.at - first.at < 4
    assert first.body.pop("webhook_sent_at") < second.body.pop("webhook_sent_at")
    assert first.body == second.body
    assert not [told for told in receiver.told if told.path == "/elsewhere"]  # a redirect is not followed


async def test_no_secret_reaches_the_log(telling, client, receiver):
    path = "/secret?token=hunter2-query"
    receiver.answers[path] = [500]
    url = receiver.url(path, login="me:hunter2-login@")
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": url})
    first, _ = receiver.hears(path, times=2)
    assert first.headers["Authorization"] == "Bearer hunter2-header"  # the operator's setting overrides it
    nobody = "http://127.0.0.1:9/?token=hunter2-query"
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": nobody})
    deadline = time.monotonic() + 10
    while "trouble=ConnectError" not in (log := telling.log.read_text()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert "webhook delivered" in log
    assert "HTTP 500" in log
    assert not [secret for secret in SECRETS if secret in log]


def test_kill_between_the_end_of_a_run_and_its_delivery_loses_nothing_and_a_lost_run_is_told(folder):
    """The first receiver accepts the request and never answers; the second does not exist; the third works."""
    environment = {"MOORAGE_LEASE_SECONDS": "2", "BG_JOB_MAX_RETRIES": "1"}
    with (
        receiving() as mute,
        receiving() as absent,
        receiving() as good,
        running(folder, **environment) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
    ):
        absent.stop()
        mute.silent.set()
        for url in (mute.url("/mute"), absent.url("/absent")):
            http.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": url})
        thread_id = http.post("/threads", json={}).json()["thread_id"]
        lost = {"assistant_id": "sleeps", "input": {}, "webhook": good.url("/lost")}
        http.post(f"/threads/{thread_id}/runs", json=lost)
        mute.hears("/mute")
        server.kill()
        mute.silent.clear()
        absent.start()
        server.start()
        first, second = mute.hears("/mute", times=2)
        assert first.body["run_id"] == second.body["run_id"]
        assert absent.hears("/absent", within_s=20)[0].body["status"] == "success"
        told = good.hears("/lost")[0].body
        assert (told["status"], told["error"]["error"]) == ("error", "WorkerLost")


def test_a_server_with_a_wrong_header_says_so_and_does_not_start(folder):
    config = project(folder, headers={"X-Key": "${{ env.HOME }}"})
    server = make_server(folder, config)
    with pytest.raises(AssertionError, match="HOME does not begin with LG_WEBHOOK_"):
        server.start()
