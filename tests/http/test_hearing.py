"""Answers to requests that were still on their way, over connections that end with their answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from moorage.http import hearing
from moorage.http.hearing import HearsOut

_BODY = b"x" * 1_000_000


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Without a look at what was sent, as what has no key is refused."""
    await PlainTextResponse("refused", 401)(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(HearsOut(refuse), lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve([listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving


async def asked(port: int, head: str, *body: bytes) -> bytes:
    """The answer to a request that comes in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
    for piece in body:
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(piece)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("pieces", [(_BODY,), (_BODY[:10], _BODY[10:-1], b"x")], ids=["at once", "in pieces"])
async def test_an_answer_waits_for_the_end_of_its_request(port: int, pieces: tuple[bytes, ...]) -> None:
    answer = await asked(port, f"Connection: close\r\nContent-Length: {len(_BODY)}", *pieces)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b"refused")


async def test_chunks_are_heard_out_too(port: int) -> None:
    chunk = b"%x\r\n%s\r\n" % (len(_BODY), _BODY)
    answer = await asked(port, "Connection: close\r\nTransfer-Encoding: chunked", chunk, chunk, b"0\r\n\r\n")
    assert answer.endswith(b"refused")


async def test_who_falls_silent_is_answered_all_the_same(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_SILENCE_S", 0.2)
    answer = await asked(port, "Connection: close\r\nContent-Length: 100", b"half of it")
    assert answer.endswith(b"refused")


@pytest.mark.parametrize("head", ["Connection: close", "Connection: close\r\nContent-Length: 0"])
async def test_what_has_no_body_is_not_waited_for(port: int, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_SILENCE_S", 3600)
    assert (await asked(port, head)).endswith(b"refused")
