"""A client that costs little: HTTP/1.1 by hand over asyncio, one request at a time on a connection.

It shares the machine with the server that it measures, so it looks at a stream no closer than it must: it counts the
events in a segment and notes when the segment came. It knows what the measured servers send, and no more of HTTP.
"""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import Any

ANSWER_BOUND_S = 60.0

_EVENT = b"event: "
_ERROR = b"event: error"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_OVERLAP = len(_LAST_CHUNK) - 1  # also that of an _EVENT that is split over two segments


class Answer:
    """One answer as it arrives. Of a stream it keeps times and counts, of anything else the body."""

    def __init__(self, *, streamed: bool) -> None:
        self.streamed = streamed
        self.status = 0
        self.events = 0
        self.gaps_s: list[float] = []
        self.failed = False
        self.started_at = perf_counter()
        self.first_data_at: float | None = None
        self.ended_at = 0.0
        self._last_event_at = 0.0
        self._head: bytes | None = b""
        self._body: list[bytes] = []
        self._overlap = b""
        self._missing_bytes: int | None = None  # None: the body comes in chunks

    def take(self, segment: bytes) -> bool:
        """Whether the answer is complete."""
        if self._head is not None:
            head, found, segment = (self._head + segment).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return False
            self._read_head(head.lower())
            self._head, self._overlap = None, b"\r\n"
        if self.streamed:
            self._note_events(segment)
        if not self.streamed or self.status >= 400:
            self._body.append(segment)
        return self._is_complete(segment)

    def _read_head(self, head: bytes) -> None:
        self.status = int(head[9:12])
        if b"\r\ntransfer-encoding: chunked" not in head:
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._missing_bytes = int(length or 0)

    def _note_events(self, segment: bytes) -> None:
        seen = self._overlap + segment
        events = seen.count(_EVENT)
        if not events:
            return
        now = perf_counter()
        if self.events:
            self.gaps_s.append(now - self._last_event_at)
        self.gaps_s += [0.0] * (events - 1)
        self._last_event_at = now
        self.events += events
        if self.first_data_at is None and self.events > 1:  # the first event is the metadata of the run
            self.first_data_at = now
        self.failed = self.failed or _ERROR in seen

    def _is_complete(self, segment: bytes) -> bool:
        if self._missing_bytes is None:
            self._overlap = (self._overlap + segment)[-len(_LAST_CHUNK) :]
            complete = self._overlap == _LAST_CHUNK
            self._overlap = self._overlap[-_OVERLAP:]
        else:
            self._missing_bytes -= len(segment)
            complete = self._missing_bytes <= 0
        if complete:
            self.ended_at = perf_counter()
        return complete

    @property
    def took_s(self) -> float:
        return self.ended_at - self.started_at

    @property
    def body(self) -> bytes:
        raw = b"".join(self._body)
        return raw if self._missing_bytes is not None else b"".join(_chunks(raw))

    def json(self) -> Any:
        return json.loads(self.body)


def _chunks(raw: bytes) -> list[bytes]:
    chunks, at = [], 0
    while True:
        line_end = raw.find(b"\r\n", at)
        size = int(raw[at:line_end], 16) if line_end > 0 else 0
        if not size:
            return chunks
        chunks.append(raw[line_end + 2 : line_end + 2 + size])
        at = line_end + 4 + size


class RequestFailedError(Exception):
    """The server answered with an error, or not at all."""


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._complete: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # TCP has no other kind

    def data_received(self, data: bytes) -> None:
        if self._answer and self._complete and not self._complete.done() and self._answer.take(data):
            self._complete.set_result(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._complete and not self._complete.done():
            self._complete.set_exception(RequestFailedError(f"the connection was closed: {exc}"))

    async def send(self, request: bytes, *, streamed: bool = False) -> Answer:
        """Raises RequestFailedError."""
        assert self._transport is not None
        self._complete = asyncio.get_running_loop().create_future()
        self._answer = Answer(streamed=streamed)
        self._transport.write(request)
        try:
            answer = await asyncio.wait_for(self._complete, ANSWER_BOUND_S)
        except TimeoutError:
            raise RequestFailedError(f"no complete answer in {ANSWER_BOUND_S:.0f} s") from None
        if answer.status >= 400:
            raise RequestFailedError(f"{answer.status}: {answer.body[:300]!r}")
        if answer.failed:
            raise RequestFailedError("the run of the stream failed")
        return answer

    def close(self) -> None:
        if self._transport:
            self._transport.close()


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


def request(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
