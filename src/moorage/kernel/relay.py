"""A relay for HTTP clients that cannot be given a checked address, nor be told to ignore redirects.

Such a client uses the relay as its proxy. The relay connects only to the origins of the client's route, so a redirect
cannot lead elsewhere. It connects to the very address that was checked, so a name that changes in between (DNS
rebinding) gains nothing. TLS is between the client and the origin, with the origin's name.

The relay listens on loopback, which other users of this machine can reach, so each route requires a token of its own.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from moorage.kernel.addresses import Resolve
from moorage.kernel.errors import MoorageError

Origin = tuple[str, int]

_ROUTES_MAX = 4096
_HEAD_BYTES_MAX = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_CONNECT_S = 5.0
_START_S = 10.0
_HEAD_S = 10.0  # a local client that connects and sends nothing is dropped
_LINGER_S = 5.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOP_HEADERS = frozenset({b"connection", b"proxy-authorization", b"proxy-connection", b"keep-alive"})
# The relay's own errors, in the form of a store's errors: clients of buckets read the code.
UNREACHABLE, MISDIRECTED = "RelayUnreachable", "RelayMisdirected"
_TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1")


def origin_of(url: str) -> Origin:
    """Return the host and port of a URL. Raises ValueError for a URL without them."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("not the URL of a web address")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    return host, parts.port or _DEFAULT_PORTS[parts.scheme]


class _RefusedError(Exception):
    """The request's origin is not in its route, or its form is not relayed."""


class Relay:
    """The relay. `addresses_of` resolves a name and raises MoorageError if it must not be connected to. It is called on
    the relay's own thread, which starts with the first route and ends with the process.
    """

    def __init__(self, addresses_of: Resolve) -> None:
        self._addresses_of = addresses_of
        self._routes: OrderedDict[frozenset[Origin], str] = OrderedDict()
        self._allowed: dict[bytes, frozenset[Origin]] = {}
        self._port: Future[int] | None = None
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def route(self, *origins: Origin) -> str:
        """Return the proxy URL by which a client reaches these origins. Equal origins share one URL."""
        key = frozenset(origins)
        with self._lock:
            if self._port is None:
                self._port = Future()
                threading.Thread(target=self._run, args=(self._port,), name="relay", daemon=True).start()
            if key not in self._routes:
                token = secrets.token_urlsafe(24)
                self._routes[key] = f"http://relay:{token}@127.0.0.1:{self._port.result(_START_S)}"
                self._allowed[b"Basic " + b64encode(f"relay:{token}".encode())] = key
            self._routes.move_to_end(key)
            if len(self._routes) > _ROUTES_MAX:
                gone, _ = self._routes.popitem(last=False)
                self._allowed = {name: allowed for name, allowed in self._allowed.items() if allowed != gone}
            return self._routes[key]

    def _run(self, port: Future[int]) -> None:
        asyncio.run(self._serve(port))

    async def _serve(self, port: Future[int]) -> None:
        try:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        except OSError as error:
            port.set_exception(error)
            return
        port.set_result(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task, "a server calls this in one"
        self._tasks.add(task)  # keeps a reference until the connection ends
        task.add_done_callback(self._tasks.discard)
        try:
            await self._relay(reader, writer)
        except _RefusedError:
            writer.write(_error(b"421 Misdirected Request", MISDIRECTED))
        except (MoorageError, OSError, UnicodeError):
            writer.write(_error(b"504 Gateway Timeout", UNREACHABLE))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client left, or does not speak HTTP
        finally:
            with suppress(OSError):
                await writer.drain()
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            method, target, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        allowed = self._allowed.get(_value(headers, b"proxy-authorization"), frozenset())
        is_tunnel = method == b"CONNECT"
        url = target.decode("ascii")
        try:
            origin = origin_of(f"https://{url}" if is_tunnel else url)
        except ValueError:
            raise _RefusedError from None
        if origin not in allowed:
            raise _RefusedError
        far_reader, far_writer = await self._connect(origin)
        try:
            if is_tunnel:
                writer.write(_TUNNEL)
                await _first_of(_pump(reader, far_writer), _pump(far_reader, writer))
            else:
                far_writer.write(_request_head(method, url, headers))
                await _exchange(headers, (reader, writer), (far_reader, far_writer))
        finally:
            far_writer.close()

    async def _connect(self, origin: Origin) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address checked just now. Raises OSError when none of them answers."""
        host, port = origin
        last: OSError = OSError("the host has no address")
        for address in await self._addresses_of(host):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(str(address), port, limit=_HEAD_BYTES_MAX)
            except OSError as error:  # a time-out is one too
                last = error
        raise last


def _error(status: bytes, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


Headers = list[tuple[bytes, bytes]]


def _parsed(head: bytes) -> tuple[bytes, bytes, Headers]:
    line, *lines = head[:-4].split(b"\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        raise _RefusedError
    return found[1], found[2], _headers(lines)


def _headers(lines: list[bytes]) -> Headers:
    return [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


def _value(headers: Headers, name: bytes) -> bytes:
    return next((value for known, value in headers if known == name), b"")


def _request_head(method: bytes, url: str, headers: Headers) -> bytes:
    """Return the request head for an origin without a proxy. A connection carries one request."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _head(method + b" " + path.encode() + b" HTTP/1.1", headers)


def _head(first_line: bytes, headers: Headers) -> bytes:
    kept = [name + b": " + value for name, value in headers if name not in _HOP_HEADERS]
    return b"\r\n".join([first_line, *kept, b"connection: close", b"", b""])


async def _exchange(
    headers: Headers,
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Relay the request's body and the answer. Removes the header that would make the client follow a redirect."""
    length = _value(headers, b"content-length") or b"0"
    if _value(headers, b"transfer-encoding") or not length.isdigit():
        raise _RefusedError

    async def ask() -> None:
        with suppress(OSError):  # an answer may come before the whole body was sent
            await _pump(near[0], far[1], int(length))
        while await near[0].read(_CHUNK_BYTES):
            pass  # until the client disconnects

    async def answer() -> None:
        line, *lines = (await far[0].readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        near[1].write(_head(line, [each for each in _headers(lines) if each[0] != b"location"]))
        await _pump(far[0], near[1])

    asking, answering = asyncio.create_task(ask()), asyncio.create_task(answer())
    try:
        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():  # closing a connection with unread data would discard the answer
            with suppress(OSError):
                near[1].write_eof()
            await asyncio.wait([asking], timeout=_LINGER_S)
    finally:
        await _end(asking, answering)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, size_bytes: int | None = None) -> None:
    """Copy bytes until the source ends, or until `size_bytes` were copied."""
    left = size_bytes
    while left is None or left > 0:
        data = await source.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
        if not data:
            return
        left = None if left is None else left - len(data)
        sink.write(data)
        await sink.drain()


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines until one of them ends, and cancel the rest: a tunnel needs both sides."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(*tasks)


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
