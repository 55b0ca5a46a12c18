"""Limits before a request is complete: many connections, and headers that never end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.responses import PlainTextResponse

from moorage.cli.connections import HEADERS_BYTES_MAX, limited_connections

GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(per_client_max: int = 0, headers_s: float = 30) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = limited_connections(per_client_max, headers_s)
        config = uvicorn.Config(PlainTextResponse("here"), lifespan="off", log_config=None, http=http)  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


async def send(port: int, data: bytes, stream: Stream | None = None) -> tuple[Stream, bytes]:
    """Send bytes, and return the connection and the first line of the answer; no line when the
    connection was closed.
    """
    reader, writer = stream or await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    line = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(20):
            line = await reader.readline()
            while line and (await reader.readline()).strip():
                pass
    if not line:
        writer.transport.abort()
        await asyncio.sleep(0)
    return (reader, writer), line


async def test_a_client_may_keep_so_many_connections_and_no_more() -> None:
    async with serving(per_client_max=2) as port:
        one, answer = await send(port, GOOD)
        assert b"200" in answer
        two, answer = await send(port, GOOD)
        assert b"200" in answer
        assert (await send(port, GOOD))[1] == b""
        one[1].close()
        await one[1].wait_closed()
        three, answer = await send(port, GOOD)
        assert b"200" in answer
        two[1].close()
        three[1].close()


async def test_headers_that_never_end_are_cut_off() -> None:
    async with serving(headers_s=0.3) as port:
        assert (await send(port, b""))[1] == b""
        assert (await send(port, b"GET / HTTP/1.1\r\nHost: a\r\n"))[1] == b""
        # This holds for the second request of a connection, too.
        stream, answer = await send(port, GOOD)
        assert b"200" in answer
        await stream[0].readexactly(len("here"))
        assert (await send(port, b"GET / HTTP/1.1\r\n", stream))[1] == b""


async def test_a_connection_that_has_sent_its_headers_is_left_alone() -> None:
    async with serving(headers_s=0.3) as port:
        stream, _ = await send(port, GOOD)
        await stream[0].readexactly(len("here"))
        await asyncio.sleep(0.6)
        assert b"200" in (await send(port, GOOD, stream))[1]
        stream[1].close()


async def test_headers_may_be_large_and_not_huge() -> None:
    async with serving() as port:
        large = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (HEADERS_BYTES_MAX // 2)
        stream, answer = await send(port, large + b"\r\n\r\n")
        assert b"200" in answer
        stream[1].close()
        assert (await send(port, large + b"x" * HEADERS_BYTES_MAX))[1] == b""
