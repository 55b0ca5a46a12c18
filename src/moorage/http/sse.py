"""Server-sent events as the clients of this platform expect them, and JSON answers that take a while.

Framing: `event`, then `data`, then `id`, each line ended by CRLF; one data line of compact JSON; no end event, the
server closes. A comment is sent after `HEARTBEAT_S` of silence, so that proxies keep the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

HEARTBEAT_S = 5.0
HEARTBEAT = b": heartbeat\r\n\r\n"
_CHUNK_BYTES = 65_536
_SILENCE_S = HEARTBEAT_S - 0.1  # a wait of HEARTBEAT_S may end a moment early
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# An answer that is ready within this time is sent as a whole, together with its headers.
_PROMPT_S = 1.0


# Lists of frames as they come; an empty list marks silence.
Frames = AsyncGenerator[list[bytes], None]


def frame(event: str, data: bytes, event_id: str | None = None) -> bytes:
    if event_id is None:
        return b"event: %b\r\ndata: %b\r\n\r\n" % (event.encode(), data)
    return b"event: %b\r\ndata: %b\r\nid: %b\r\n\r\n" % (event.encode(), data, event_id.encode())


def event_of(frame: bytes) -> str:
    """Return the event name of a frame made by `frame`."""
    return frame[len(b"event: ") : frame.index(b"\r")].decode()


def data_of(frame: bytes) -> bytes:
    """Return the data of a frame made by `frame`."""
    start = frame.index(b"\r\ndata: ") + len(b"\r\ndata: ")
    return frame[start : frame.index(b"\r", start)]


async def with_heartbeats(frames: Frames) -> AsyncIterator[bytes]:
    """Yield the frames in chunks, and a heartbeat when an empty list comes after `HEARTBEAT_S` of silence."""
    heard_at = time.monotonic()
    try:
        async for some in frames:
            is_silent = not some and time.monotonic() - heard_at >= _SILENCE_S
            for chunk in _chunks([HEARTBEAT] if is_silent else some):
                heard_at = time.monotonic()
                yield chunk
    finally:
        await frames.aclose()


def _chunks(frames: list[bytes]) -> Iterator[bytes]:
    """Join frames into chunks.

    Clients share the frames, but each chunk is a copy, so small chunks limit the memory that slow clients take.
    """
    chunk: list[bytes] = []
    size = 0
    for each in frames:
        chunk.append(each)
        size += len(each)
        if size >= _CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)


async def _until_disconnect(receive: Receive, task: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


class EventStream(Response):
    """A response that sends the iterator's chunks until it ends or the client disconnects, and then closes the
    iterator.

    If it raises UnavailableError, the connection is cut, so that the client knows that the stream is not complete.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        self.body = b""
        self.init_headers({**_STREAM_HEADERS, **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sender = asyncio.create_task(self._send_all(send))
        watcher = asyncio.create_task(_until_disconnect(receive, sender))
        try:
            await asyncio.wait([sender])
        finally:
            watcher.cancel()
            sender.cancel()
        error = None if sender.cancelled() else sender.exception()
        if isinstance(error, UnavailableError):
            log.warning("stream cut off", path=scope["path"], error=str(error))
        elif error:
            raise error

    async def _send_all(self, send: Send) -> None:
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if hasattr(self._chunks, "aclose"):
                await self._chunks.aclose()


class JsonWhenReady(Response):
    """A JSON answer that may take any time. Meanwhile a newline every `HEARTBEAT_S` keeps the connection open.

    The status 200 is sent before the outcome is known, so the body must report a failure.
    """

    media_type = "application/json"

    def __init__(self, body: Awaitable[bytes], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._ready = asyncio.ensure_future(body)
        self.body = b""
        self.init_headers(dict(headers or {}))
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(_until_disconnect(receive, task))
        try:
            await self._send(send)
        except asyncio.CancelledError:
            if not watcher.done():
                raise
            task.uncancel()
        finally:
            watcher.cancel()
            self._ready.cancel()

    async def _send(self, send: Send) -> None:
        await asyncio.wait([self._ready], timeout=_PROMPT_S)
        if self._ready.done():
            self._ready.result()  # a failure can still set the status
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while not self._ready.done():
            await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            await asyncio.wait([self._ready], timeout=HEARTBEAT_S)
        try:
            body = self._ready.result()
        except UnavailableError as error:
            log.warning("answer cut off", error=str(error))  # the client sees an incomplete body
            return
        await send({"type": "http.response.body", "body": body, "more_body": False})
