"""A real HTTP proxy in front of an S3 server. It disturbs requests as networks and stores do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from urllib.parse import unquote

from tests.exports.seaweed import Seaweed


class Fault(StrEnum):
    """The fault that one request meets."""

    ERROR = "500, an internal error"
    SLOW_DOWN = "503, slow down"
    DENIED = "403, access denied"
    NO_BUCKET = "404, no such bucket"
    REVOKED = "403, no such key id"
    NOT_TAKEN = "400, a header that it does not take"
    HANG = "no answer"
    CLOSE = "the connection is closed at once"
    DROP = "it is done, and the answer is lost"
    LOSE = "it is done, and the object is lost afterwards"
    CHANGE = "a byte of it is another when it arrives"


Plan = Callable[[str, str], Fault | None]
_ERRORS = {
    Fault.ERROR: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.DENIED: (403, "AccessDenied"),
    Fault.NO_BUCKET: (404, "NoSuchBucket"),
    Fault.REVOKED: (403, "InvalidAccessKeyId"),
    Fault.NOT_TAKEN: (400, "InvalidRequest"),
}


class Proxy:
    """The proxy. `plan` returns the fault for a method and a path; it may be changed at any time."""

    def __init__(self, s3: Seaweed) -> None:
        self.plan: Plan = lambda _method, _path: None
        self.requests: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.forms: list[str] = []  # bodies of requests that concern no object
        self.url = ""
        self._s3 = s3

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward one request. Returns True if the connection may be used for another one."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        body = await reader.readexactly(_length_of(head))
        self.requests.append((method, path))
        self.heads.append(head.decode())
        if path == "/":
            self.forms.append(body.decode())
        fault = self.plan(method, path)
        if fault in _ERRORS:
            writer.write(_error(*_ERRORS[fault]))
            await writer.drain()
            return True
        if fault is Fault.HANG:
            await asyncio.sleep(3600)
        if fault is Fault.CLOSE:
            return False
        if fault is Fault.CHANGE:
            body = body[:-1] + bytes([body[-1] ^ 1])
        answer = await self._forward(head + body, method)
        if fault is Fault.LOSE:
            await asyncio.to_thread(self._s3.remove, unquote(path.lstrip("/").partition("?")[0]))
        if fault is Fault.DROP:
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _forward(self, request: bytes, method: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._s3.port)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            return head + (b"" if method == "HEAD" else await reader.readexactly(_length_of(head)))
        finally:
            writer.close()


def _length_of(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _error(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def proxy_of(s3: Seaweed) -> AsyncIterator[Proxy]:
    proxy = Proxy(s3)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
