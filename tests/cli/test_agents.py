"""`moorage threads`, `runs`, `crons`, `assistants` and `chat` against a running agent server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from moorage.cli import app
from tests.serving import Server, free_port

Moorage = Callable[..., Result]


@pytest.fixture
def moorage(server: Server) -> Moorage:
    def run(*arguments: str, typed: str = "", **settings: str) -> Result:
        environment = {"MOORAGE_AGENT_URL": server.url, "MOORAGE_API_KEY": None, **settings}
        return CliRunner().invoke(app, list(arguments), env=environment, input=typed)

    return run


@pytest.fixture
def http(server: Server):
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def thread_with(http: httpx.Client, graph: str = "pair", **metadata: Any) -> str:
    thread = str(http.post("/threads", json={"metadata": metadata}).json()["thread_id"])
    body = {"assistant_id": graph, "input": {"text": "x" * 100}}
    assert http.post(f"/threads/{thread}/runs/wait", json=body).is_success
    return thread


def under_way(http: httpx.Client, **more: Any) -> tuple[str, str]:
    thread = str(http.post("/threads", json={}).json()["thread_id"])
    body = {"assistant_id": "slow", "input": {"seconds": 60}, **more}
    return thread, str(http.post(f"/threads/{thread}/runs", json=body).json()["run_id"])


# --- threads --------------------------------------------------------------------------------------------------------


def test_threads_are_listed(moorage: Moorage, http: httpx.Client) -> None:
    mark = uuid4().hex
    older, newer = thread_with(http, mark=mark), thread_with(http, "ask", mark=mark)
    listed = json.loads(moorage("threads", "list", "--metadata", f"mark={mark}", "-o", "json").stdout)
    assert [row["thread_id"] for row in listed] == [newer, older]
    assert listed[1]["values"]["text"].endswith("ab")
    lines = moorage("threads", "list", "--metadata", f"mark={mark}").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [[newer, "interrupted", "ask"], [older, "idle", "pair"]]
    narrowed = moorage("threads", "list", "--metadata", f"mark={mark}", "--status", "idle", "-o", "json").stdout
    assert [row["thread_id"] for row in json.loads(narrowed)] == [older]


def test_a_dry_run_of_prune_removes_nothing(moorage: Moorage, http: httpx.Client) -> None:
    thread = thread_with(http)
    told = json.loads(moorage("threads", "prune", thread, "--dry-run", "-o", "json").stdout)
    assert told["pruned_count"] == 1
    assert told["rows"] > 5 < told["bytes"]
    assert http.get(f"/threads/{thread}").status_code == 200
    shown = moorage("threads", "prune", thread, "--dry-run").stdout
    assert f"rows     {told['rows']}" in shown
    assert "KiB" in shown


def test_prune_asks_and_deletes_or_keeps_the_latest_state(moorage: Moorage, http: httpx.Client) -> None:
    gone, kept = thread_with(http), thread_with(http)
    refused = moorage("threads", "prune", gone, typed="n\n")
    assert refused.exit_code == 1
    assert "1 thread, " in refused.stderr
    assert http.get(f"/threads/{gone}").status_code == 200
    assert json.loads(moorage("threads", "prune", gone, "--yes", "-o", "json").stdout)["pruned_count"] == 1
    assert http.get(f"/threads/{gone}").status_code == 404
    assert moorage("threads", "prune", kept, "--strategy", "keep-latest", "-y").exit_code == 0
    assert len(http.get(f"/threads/{kept}/history?limit=10").json()) == 1


def test_idle_threads_are_pruned_and_busy_or_younger_ones_are_not(moorage: Moorage, http: httpx.Client) -> None:
    mark = uuid4().hex
    old = [thread_with(http, mark=mark) for _ in range(3)]
    busy, _ = under_way(http)
    http.patch(f"/threads/{busy}", json={"metadata": {"mark": mark}})
    some = ("threads", "prune", "--metadata", f"mark={mark}", "-o", "json", "-y")
    assert json.loads(moorage(*some, "--idle-for", "1h").stdout)["pruned_count"] == 0
    assert json.loads(moorage(*some, "--idle-for", "0s", "--status", "error").stdout)["pruned_count"] == 0
    assert json.loads(moorage(*some, "--idle-for", "0s").stdout)["pruned_count"] == len(old)
    left = http.post("/threads/search", json={"metadata": {"mark": mark}}).json()
    assert [row["thread_id"] for row in left] == [busy]
    assert moorage("runs", "cancel", busy).exit_code == 0


@pytest.mark.parametrize(
    "wrong", [(), (str(uuid4()), "--idle-for", "1h"), (str(uuid4()), "--metadata", "a=b"), ("--idle-for", "soon")]
)
def test_a_prune_that_names_no_threads_clearly_is_refused(moorage: Moorage, wrong: tuple[str, ...]) -> None:
    assert moorage("threads", "prune", "--yes", *wrong).exit_code == 2


# --- runs -----------------------------------------------------------------------------------------------------------


def test_runs_under_way_are_listed_and_cancelled(moorage: Moorage, http: httpx.Client) -> None:
    thread, run = under_way(http)
    _, other = under_way(http)
    listed = {row["run_id"] for row in json.loads(moorage("runs", "list", "-o", "json", "--limit", "1000").stdout)}
    assert {run, other} <= listed
    assert moorage("runs", "list", "--status", "error").exit_code == 2
    cancelled = moorage("runs", "cancel", thread)
    assert (cancelled.exit_code, cancelled.stderr) == (0, "1 run cancelled\n")
    http.get(f"/threads/{thread}/runs/{run}/join")
    assert moorage("runs", "list", "--thread", thread).stdout.splitlines()[1].split()[:2] == [run, "interrupted"]
    assert moorage("runs", "cancel", thread).exit_code == 3
    assert moorage("runs", "cancel").exit_code == 2
    assert moorage("runs", "cancel", "--all", "--rollback").exit_code == 0
    assert json.loads(moorage("runs", "list", "-o", "json").stdout) == []


def test_a_run_is_followed_to_its_end(moorage: Moorage, http: httpx.Client) -> None:
    thread, run = under_way(http, input={"seconds": 1}, stream_resumable=True, stream_mode=["updates"])
    tailed = moorage("runs", "tail", thread, "-o", "json")
    assert tailed.exit_code == 0
    events = [json.loads(line) for line in tailed.stdout.splitlines()]
    assert [list(event["data"]) for event in events if event["event"] == "updates"] == [["count"], ["sleep"], ["last"]]
    assert tailed.stderr == f"run {run}: success\n"
    lines = moorage("runs", "tail", thread, run).stdout.splitlines()
    assert lines[0].split()[0] == "metadata"
    failing = str(http.post(f"/threads/{thread}/runs", json={"assistant_id": "raises", "input": {}}).json()["run_id"])
    assert moorage("runs", "tail", thread, failing).exit_code == 1
    assert moorage("runs", "tail", thread, str(uuid4())).exit_code == 3


# --- crons and assistants -------------------------------------------------------------------------------------------


def test_crons_are_made_paused_resumed_and_deleted(moorage: Moorage, http: httpx.Client) -> None:
    arguments = ("--timezone", "Europe/Berlin", "--input", '{"text": "x"}', "--keep", "--metadata", "a=b", "-o", "json")
    made = json.loads(moorage("crons", "create", "echo", "0 7 1 1 *", *arguments).stdout)
    assert (made["timezone"], made["on_run_completed"], made["metadata"]) == ("Europe/Berlin", "keep", {"a": "b"})
    assert made["payload"]["input"] == {"text": "x"}

    def state() -> str:
        rows = [line.split() for line in moorage("crons", "list").stdout.splitlines()]
        return next(" ".join(row) for row in rows if row[0] == made["cron_id"])

    assert "waiting" in state()
    assert moorage("crons", "pause", made["cron_id"]).exit_code == 0
    assert "paused" in state()
    assert "fires next at 20" in moorage("crons", "resume", made["cron_id"]).stderr
    assert "waiting" in state()
    assert moorage("crons", "delete", made["cron_id"]).exit_code == 0
    assert moorage("crons", "delete", made["cron_id"]).exit_code == 3
    thread = thread_with(http)
    on_thread = json.loads(moorage("crons", "create", "echo", "0 7 1 1 *", "--thread", thread, "-o", "json").stdout)
    assert on_thread["thread_id"] == thread
    http.delete(f"/threads/{thread}")
    assert "31 2" in moorage("crons", "create", "echo", "0 7 31 2 *").stderr
    assert moorage("crons", "create", "echo", "0 7 1 1 *", "--input", "{").exit_code == 2


def test_assistants_are_listed_and_shown(moorage: Moorage) -> None:
    [row] = json.loads(moorage("assistants", "list", "--graph", "described", "-o", "json").stdout)
    assert row["description"] == "An echo with a description."
    shown = moorage("assistants", "show", row["assistant_id"]).stdout
    assert "An echo with a description." in shown
    assert moorage("assistants", "show", str(uuid4())).exit_code == 3


# --- chat -----------------------------------------------------------------------------------------------------------


def test_a_talk_streams_tokens_and_goes_on_with_its_thread(moorage: Moorage, examples_server: Server) -> None:
    first = moorage("chat", "chat", "--url", examples_server.url, typed="My name is Ada.\n\nWho am I?\n")
    assert first.exit_code == 0, first.output
    assert len(first.stdout.splitlines()) == 2
    thread = first.stderr.split()[1]
    with httpx.Client(base_url=examples_server.url) as http:
        messages = http.get(f"/threads/{thread}/state").json()["values"]["messages"]
    assert [message["content"] for message in messages[::2]] == ["My name is Ada.", "Who am I?"]
    assert first.stdout.splitlines() == [message["content"] for message in messages[1::2]]
    again = moorage("chat", "chat", "--url", examples_server.url, "--thread", thread, "-m", "And now?")
    assert again.exit_code == 0
    events = moorage("chat", "tokens", "--url", examples_server.url, "-m", "x", "-o", "json").stdout.splitlines()
    assert sum(json.loads(line)["event"] == "messages" for line in events) > 1


def test_an_agent_that_asks_goes_on_with_the_answer(moorage: Moorage, http: httpx.Client) -> None:
    talked = moorage("chat", "ask_twice", "--field", "text", typed='go\nthe red one\n{"and": 1}\n')
    assert talked.exit_code == 0, talked.output
    thread, *asked = talked.stderr.splitlines()
    assert asked == ['? {"question": "Which?"}', "? And then?"]
    values = http.get(f"/threads/{thread.split()[1]}/state").json()["values"]
    assert values["items"] == ["the red one", {"and": 1}, "echo"]


def test_a_run_that_fails_is_told_and_the_talk_goes_on(moorage: Moorage) -> None:
    failed = moorage("chat", "raises", "--field", "text", "-m", "a", "-m", "b")
    assert failed.exit_code == 1
    assert failed.stderr.count("error: ") == 2
    assert "boom" in failed.stderr


def test_text_of_an_agent_cannot_steer_the_terminal(moorage: Moorage) -> None:
    talked = moorage("chat", "echo", "--field", "text", "-m", "a\x1b[2Jb\x07")
    assert talked.stdout == "a [2Jb !\n"


def test_a_server_of_several_graphs_wants_a_name(moorage: Moorage) -> None:
    unnamed = moorage("chat", "-m", "x")
    assert unnamed.exit_code == 2
    assert "name a graph: `moorage chat GRAPH`. This server has: ask, ask_twice" in unnamed.stderr


# --- where it is ----------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_or_no_address_is_told(moorage: Moorage) -> None:
    away = moorage("threads", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert away.exit_code == 7
    assert "moorage dev" in away.stderr
    assert moorage("chat", "x", "-m", "x", "--url", f"http://127.0.0.1:{free_port()}").exit_code == 7
    assert moorage("threads", "list", "--url", "localhost").exit_code == 1
    assert moorage("threads", "list", "--url", "http://x", "--deployment", "y").exit_code == 2


def test_the_key_reaches_the_server(moorage: Moorage) -> None:
    """A deployed agent asks for the key, at addresses below that of the deployment."""
    seen: list[tuple[str, str]] = []

    class Agent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, self.headers["X-Api-Key"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Agent) as agent:
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{agent.server_port}/d/bot/"
        assert moorage("threads", "list", "--url", url, MOORAGE_API_KEY="k").exit_code == 0
        agent.shutdown()
    assert seen == [("/d/bot/threads/search", "k")]
