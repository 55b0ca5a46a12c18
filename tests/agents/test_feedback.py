"""Feedback links: the last frame of a stream that asks for them. The process's trace store signs them, and its failure
never fails a run.

The store is a small HTTP server that answers the requests of the installed LangSmith client.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from tests.serving import Server, make_server

KEY = "lsv2-hunter2"


@dataclass
class TraceStore:
    """A store that signs feedback links, and records the requests for them."""

    server: ThreadingHTTPServer | None = None
    asked: list[tuple[str | None, list[dict[str, Any]]]] = field(default_factory=list)
    status: int = 200
    wait_s: float = 0

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def start(self, port: int = 0) -> None:
        store = self

        class Signing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.path == "/feedback/tokens"
                store.asked.append((self.headers["x-api-key"], wanted))
                time.sleep(store.wait_s)
                tokens = [
                    {
                        "id": "00000000-0000-4000-8000-000000000001",
                        "url": f"{store.url}/feedback/tokens/{each['run_id']}/{each['feedback_key']}",
                        "expires_at": "2100-01-01T00:00:00Z",
                    }
                    for each in wanted
                ]
                body = json.dumps(tokens).encode()
                self.send_response(store.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Print nothing: tests read the recorded requests instead."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *arguments: Any) -> None:
                """Ignore the error: a client that does not wait for its answer is no fault."""

        self.server = Quiet(("127.0.0.1", port), Signing)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def running_store() -> Iterator[TraceStore]:
    store = TraceStore()
    store.start()
    yield store
    store.stop()


@pytest.fixture
def store(running_store: TraceStore) -> TraceStore:
    running_store.asked.clear()
    running_store.status, running_store.wait_s = 200, 0
    return running_store


@pytest.fixture(scope="module")
def traced(running_store: TraceStore) -> Iterator[Server]:
    """Start a server that is configured for the store. Tracing itself is off, since other tests cover it."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        environment = {
            "LANGSMITH_ENDPOINT": running_store.url,
            "LANGSMITH_API_KEY": KEY,
            "LANGSMITH_TRACING": "false",
        }
        running = make_server(Path(name), **environment)
        running.start()
        yield running
        assert running.stop() == 0


def frames(url: str, path: str = "/runs/stream", **fields: Any) -> list[tuple[str, Any]]:
    """Return the frames of a streamed run. Fails if the answer is cut off."""
    run = {"assistant_id": "echo", "input": {"text": "x"}, "stream_mode": "updates", **fields}
    answer = httpx.post(f"{url}{path}", json=run, timeout=30)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def parsed(text: str) -> list[tuple[str, Any]]:
    found = []
    for frame in text.replace("\r\n", "\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_the_last_frame_has_a_link_for_each_key(traced, store):
    (_, first), *_, (event, links) = frames(traced.url, feedback_keys=["good", "helpful"])
    assert event == "feedback"
    assert links == {key: f"{store.url}/feedback/tokens/{first['run_id']}/{key}" for key in ("good", "helpful")}
    ((key, wanted),) = store.asked
    assert key == KEY
    assert [(each["run_id"], each["feedback_key"]) for each in wanted] == [
        (first["run_id"], "good"),
        (first["run_id"], "helpful"),
    ]


def test_a_stream_that_is_joined_again_has_the_links_too(traced, store):
    thread_id = httpx.post(f"{traced.url}/threads", json={}).json()["thread_id"]
    told = frames(traced.url, f"/threads/{thread_id}/runs/stream", feedback_keys=["good"], stream_resumable=True)
    run_id = told[0][1]["run_id"]
    again = httpx.get(
        f"{traced.url}/threads/{thread_id}/runs/{run_id}/stream", headers={"Last-Event-ID": "-1"}, timeout=30
    )
    assert parsed(again.text) == told
    assert told[-1][0] == "feedback"
    run = httpx.get(f"{traced.url}/threads/{thread_id}/runs/{run_id}").json()
    assert (run["status"], run["kwargs"]["feedback_keys"]) == ("success", ["good"])


@pytest.mark.parametrize("fields", [{}, {"feedback_keys": None}, {"feedback_keys": []}])
def test_a_stream_that_does_not_ask_has_none(traced, store, fields):
    assert [event for event, _ in frames(traced.url, **fields)] == ["metadata", "updates"]
    assert store.asked == []


def test_a_run_that_nobody_streams_does_not_ask_the_store(traced, store):
    run = {"assistant_id": "echo", "input": {"text": "x"}, "feedback_keys": ["good"]}
    assert httpx.post(f"{traced.url}/runs/wait", json=run, timeout=30).json()["text"] == "x!"
    assert store.asked == []


def test_a_run_that_fails_has_no_links(traced, store):
    events = [event for event, _ in frames(traced.url, assistant_id="raises", feedback_keys=["good"])]
    assert events[-1] == "error"
    assert "feedback" not in events
    assert store.asked == []


@pytest.mark.parametrize("status", [401, 500, 429])
def test_a_store_that_refuses_leaves_a_good_run_good(traced, store, status):
    store.status = status
    assert [event for event, _ in frames(traced.url, feedback_keys=["good"])] == ["metadata", "updates"]
    assert len(store.asked) == 1


def test_a_store_that_is_slow_is_not_waited_for(traced, store):
    store.wait_s = 8
    start = time.monotonic()
    assert [event for event, _ in frames(traced.url, feedback_keys=["good"])] == ["metadata", "updates"]
    assert time.monotonic() - start < 6


def test_no_key_reaches_the_log(traced, store):
    store.status = 401
    frames(traced.url, feedback_keys=["good"])
    log = traced.log.read_text()
    assert "no feedback links" in log
    assert KEY not in log


def test_a_store_that_is_away_leaves_a_good_run_good(traced, store):
    port = store.server.server_address[1]
    store.stop()
    try:
        start = time.monotonic()
        assert [event for event, _ in frames(traced.url, feedback_keys=["good"])] == ["metadata", "updates"]
        assert time.monotonic() - start < 3
    finally:
        store.start(port)


def test_without_a_store_there_are_no_links(server):
    assert [event for event, _ in frames(server.url, feedback_keys=["good"])] == ["metadata", "updates"]


@pytest.mark.parametrize("keys", ["good", [1], {"good": 1}, ["k"] * 101])
def test_keys_are_a_list_of_text(server, keys):
    run = {"assistant_id": "echo", "feedback_keys": keys}
    answer = httpx.post(f"{server.url}/runs/stream", json=run)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("feedback_keys")
