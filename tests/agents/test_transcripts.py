"""Whole answers, byte for byte, as a plain HTTP/1.1 client gets them: `transcripts/*.txt` is what clients rely on.

A line end is written as `\r\n` at its place in the answer. Values that differ between runs are replaced by a name and a
number, in the order of appearance: `<uuid 2>` is the same id wherever it appears.

`UPDATE_GOLDENS=1 pytest tests/agents/test_transcripts.py` writes the files anew; read the difference before you keep
it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Server

TRANSCRIPTS = Path(__file__).parent / "transcripts"
# Headers that depend on the web server, not on us.
UNTOLD_HEADERS = frozenset({"date", "connection", "content-length", "transfer-encoding", "vary"})
NOBODY = "00000000-0000-4000-8000-000000000000"

VOLATILE = re.compile(
    r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<time>\d{4}-\d\d-\d\dT[\d:.]+\+00:00)"
    r"|(?P<hex>\b[0-9a-f]{32}\b)"
    r"|(?P<id>\b\d{13}-\d+\b)"
    r'|(?P<version>(?<=_version":")[^"]+|(?<="lc_versions":)\{[^}]*\})'
)


def stable(text: str) -> str:
    """Return the text with numbered names for values that differ between runs."""
    seen: defaultdict[str, list[str]] = defaultdict(list)

    def name(match: re.Match[str]) -> str:
        kind, found = match.lastgroup or "", match[0]
        if kind in ("time", "version"):
            return f"<{kind}>"
        if found == NOBODY:
            return "<unknown id>"
        if found not in seen[kind]:
            seen[kind].append(found)
        return f"<{kind} {seen[kind].index(found) + 1}>"

    return VOLATILE.sub(name, text)


def visible(body: bytes) -> str:
    """Write line ends as `\r\n`, followed by a real line end for the reader."""
    return body.decode().replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n\n")


def without_chunks(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        if not (length := int(size, 16)):
            return whole
        whole, body = whole + body[:length], body[length + 2 :]
    raise AssertionError("the answer ended without its last chunk")


async def exchange(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[str, str, bytes]:
    """Send a request, and return request and answer as text, and the answer's body. It uses only a socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    sent = b"" if body is None else json.dumps(body).encode()
    told = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    length = [f"Content-Length: {len(sent)}"] if sent else []
    head = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *told, *length, "", ""]
    writer.write("\r\n".join(head).encode() + sent)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    answered_head, _, answered = answer.partition(b"\r\n\r\n")
    status, *lines = answered_head.decode().split("\r\n")
    if "transfer-encoding: chunked" in lines:
        answered = without_chunks(answered)
    shown = sorted(line for line in lines if line.split(":")[0] not in UNTOLD_HEADERS)
    request = "\n".join([f"{method} {path}", *told, *([sent.decode()] if sent else [])])
    return request, "\n".join([status, *shown]), answered


Talk = Callable[..., Awaitable[bytes]]


class Transcript:
    """A sequence of exchanges with the server, and the file that recorded the last one."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self._server = server
        self._http = http
        self._said: list[str] = []

    async def thread(self) -> str:
        return str((await self._http.post("/threads", json={})).json()["thread_id"])

    async def say(self, method: str, path: str, body: Any = None, **headers: str) -> bytes:
        """Make an exchange, record it, and return the body."""
        request, head, answered = await exchange(self._server, method, path, body, **headers)
        self._said.append(f"{request}\n\n{head}\n\n{visible(answered)}\n")
        return answered

    async def stream(self, graph: str, thread_id: str | None = None, **run: Any) -> bytes:
        """Start a run on a thread (a new one by default), and record its stream as `say` does."""
        path = f"/threads/{thread_id or await self.thread()}/runs/stream"
        return await self.say("POST", path, {"assistant_id": graph, **run})

    def agrees_with(self, name: str) -> None:
        file = TRANSCRIPTS / f"{name}.txt"
        text = stable("\n".join(self._said))
        if os.environ.get("UPDATE_GOLDENS") == "1":
            file.write_text(text)
        assert text == file.read_text()


@pytest.fixture
def transcript(server: Server, http: httpx.AsyncClient) -> Transcript:
    return Transcript(server, http)


HELLO = {"messages": [{"role": "user", "content": "hello", "id": "hello"}]}
X = {"text": "x"}


# Section (b) of the wire page, line by line.
@pytest.mark.parametrize(
    "name, graph, run",
    [
        ("values", "pair", {"input": X}),
        ("updates", "pair", {"input": X, "stream_mode": "updates"}),
        ("messages_tuple", "tokens", {"input": HELLO, "stream_mode": "messages-tuple"}),
        ("messages", "tokens", {"input": HELLO, "stream_mode": "messages"}),
        ("messages_complete", "says", {"input": HELLO, "stream_mode": ["messages", "messages-tuple"]}),
        ("custom", "writes_custom", {"input": {}, "stream_mode": "custom"}),
        ("tasks", "pair", {"input": X, "stream_mode": "tasks"}),
        ("checkpoints", "pair", {"input": X, "stream_mode": ["checkpoints"]}),
        ("debug", "pair", {"input": X, "stream_mode": "debug"}),
        ("events", "pair", {"input": X, "stream_mode": "events"}),
        ("several_modes", "writes_custom", {"input": X, "stream_mode": ["updates", "values", "custom"]}),
        ("subgraphs", "nested", {"input": X, "stream_mode": ["values", "updates"], "stream_subgraphs": True}),
        ("interrupt", "ask", {"input": X, "stream_mode": ["values", "updates"]}),
        ("interrupt_before", "pair", {"input": X, "stream_mode": ["values", "updates"], "interrupt_before": ["b"]}),
        ("interrupt_after", "pair", {"input": X, "stream_mode": ["values", "updates"], "interrupt_after": ["a"]}),
        ("error", "raises", {"input": X}),
        ("error_debug", "raises", {"input": X, "stream_mode": "debug"}),
        ("error_tasks", "raises", {"input": X, "stream_mode": "tasks"}),
        ("error_private", "leaks", {"input": X}),
        ("error_private_everywhere", "leaks", {"input": X, "stream_mode": ["values", "updates", "tasks", "debug"]}),
    ],
)
async def test_a_run_streams_as_it_did(transcript, name, graph, run):
    await transcript.stream(graph, **run)
    transcript.agrees_with(name)


async def test_a_command_resumes_an_interrupted_run(transcript):
    thread_id = await transcript.thread()
    both = ["values", "updates"]
    await transcript.stream("ask", thread_id, input=X, stream_mode=both)
    await transcript.stream("ask", thread_id, command={"resume": "this one"}, stream_mode=both)
    transcript.agrees_with("resume")


async def test_input_null_goes_on_after_a_static_interrupt(transcript):
    thread_id = await transcript.thread()
    await transcript.stream("pair", thread_id, input=X, stream_mode="updates", interrupt_before="*")
    await transcript.stream("pair", thread_id, input=None, stream_mode="updates")
    transcript.agrees_with("resume_static")


async def test_a_stateless_run_names_itself_without_a_thread(transcript):
    await transcript.say("POST", "/runs/stream", {"assistant_id": "echo", "input": X})
    transcript.agrees_with("stateless")


# --- coming back --------------------------------------------------------------------------------------------------


def ids_of(body: bytes) -> list[str]:
    return re.findall(r"^id: (.+?)\r$", body.decode(), re.MULTILINE)


def run_of(http_answer: bytes) -> str:
    return str(json.loads(http_answer.split(b"data: ")[1].split(b"\r\n")[0])["run_id"])


async def test_a_resumable_stream_is_replayed_from_any_place(transcript):
    thread_id = await transcript.thread()
    streamed = await transcript.stream(
        "pair", thread_id, input=X, stream_mode=["values", "updates"], stream_resumable=True
    )
    place, ids = f"/threads/{thread_id}/runs/{run_of(streamed)}/stream", ids_of(streamed)

    for after in ("-1", "0"):
        assert await transcript.say("GET", place, Last_Event_ID=after) == streamed
    assert await transcript.say("GET", place) == streamed
    assert ids_of(await transcript.say("GET", place, Last_Event_ID=ids[2])) == ids[3:]
    assert await transcript.say("GET", place, Last_Event_ID=ids[-1]) == b""
    assert await transcript.say("GET", place, Last_Event_ID="yesterday") == b""
    only_updates = await transcript.say("GET", f"{place}?stream_mode=updates", Last_Event_ID="-1")
    assert re.findall(r"event: (\w+)", only_updates.decode()) == ["updates", "updates"]
    transcript.agrees_with("replay")


def test_ids_of_a_stream_grow(server):
    with httpx.Client(base_url=server.url, timeout=30) as http:
        run = {"assistant_id": "pair", "input": X, "stream_mode": ["values", "debug"], "stream_resumable": True}
        ids = ids_of(http.post("/runs/stream", json=run).content)
    positions = [tuple(map(int, event_id.split("-"))) for event_id in ids]
    assert positions == sorted(set(positions))
    assert len(positions) > 5


async def test_joining_a_run_that_ended_and_kept_nothing_is_an_empty_stream(transcript):
    thread_id = await transcript.thread()
    streamed = await transcript.stream("echo", thread_id, input=X)
    assert await transcript.say("GET", f"/threads/{thread_id}/runs/{run_of(streamed)}/stream") == b""
    transcript.agrees_with("join_ended")


async def test_joining_a_run_that_does_not_exist_is_an_error_frame(transcript):
    thread_id = await transcript.thread()
    await transcript.say("GET", f"/threads/{thread_id}/runs/{NOBODY}/stream")
    await transcript.say("GET", f"/threads/{thread_id}/runs/{NOBODY}/join")
    transcript.agrees_with("join_missing")


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, graph",
    [("wait", "pair"), ("wait_interrupt", "ask"), ("wait_error", "raises"), ("wait_error_private", "leaks")],
)
async def test_wait_answers_with_the_outcome(transcript, name, graph):
    await transcript.say("POST", f"/threads/{await transcript.thread()}/runs/wait", {"assistant_id": graph, "input": X})
    transcript.agrees_with(name)


async def test_a_stateless_wait_names_its_hidden_thread(transcript):
    await transcript.say("POST", "/runs/wait", {"assistant_id": "echo", "input": X})
    transcript.agrees_with("wait_stateless")


async def test_silence_is_broken_every_five_seconds(server, http):
    """A stream sends a comment; a wait sends a newline before its JSON, which every parser skips."""
    stream, wait = Transcript(server, http), Transcript(server, http)
    run = {"assistant_id": "slow", "input": {"seconds": 6.5}}
    await asyncio.gather(
        stream.stream("slow", input={"seconds": 6.5}),
        wait.say("POST", f"/threads/{await wait.thread()}/runs/wait", run),
    )
    stream.agrees_with("heartbeat")
    wait.agrees_with("heartbeat_wait")
