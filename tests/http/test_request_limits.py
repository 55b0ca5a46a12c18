"""Limits of every request: draining before the answer, the pace of bodies, and the limits of one client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.http import request_limits
from moorage.http.answers import AGENT_ERRORS, error_answer
from moorage.http.request_limits import LimitRequests, RequestLimits, cost_of
from moorage.kernel.errors import MoorageError
from moorage.kernel.request_cost import MemoryBudget

_BODY = b"x" * 1_000_000


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse without reading the body, as a request without a key is refused."""
    await PlainTextResponse("refused", 401)(scope, receive, send)


def limited(app: ASGIApp, **limits: Any) -> LimitRequests:
    made = RequestLimits(2**20, **limits)
    return LimitRequests(app, limits=made, budget=MemoryBudget(made.held_bytes_max), errors=AGENT_ERRORS)


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, as a route does."""
    request = Request(scope, receive)
    try:
        async for chunk in request.stream():
            cost_of(request).take(len(chunk))
        await PlainTextResponse("read")(scope, receive, send)
    except MoorageError as error:
        await error_answer(error, AGENT_ERRORS)(scope, receive, send)


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """Serve the application, and return its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve([listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(limited(refuse)) as number:
        yield number


async def asked(port: int, head: str, *body: bytes) -> bytes:
    """Return the answer to a request that arrives in pieces."""
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
    monkeypatch.setattr(request_limits, "_DRAIN_SILENCE_S", 0.2)
    answer = await asked(port, "Connection: close\r\nContent-Length: 100", b"half of it")
    assert answer.endswith(b"refused")


@pytest.mark.parametrize("head", ["Connection: close", "Connection: close\r\nContent-Length: 0"])
async def test_what_has_no_body_is_not_waited_for(port: int, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "_DRAIN_SILENCE_S", 3600)
    assert (await asked(port, head)).endswith(b"refused")


# --- pace ---------------------------------------------------------------------------------------------------------------


async def test_a_body_behind_its_pace_is_refused_and_one_that_keeps_it_is_read() -> None:
    async with serving(limited(read_all, body_grace_s=0.3, body_bytes_per_s_min=1000)) as port:
        late, steady = await asyncio.gather(
            asked(port, "Content-Length: 100\r\nConnection: close", b"x", b"", b"", b"", b"", b"", b"", b"", b"x"),
            asked(port, "Content-Length: 5000\r\nConnection: close", *(b"x" * 500 for _ in range(10))),
        )
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b"1000 bytes a second" in late
    assert steady.endswith(b"read")


async def test_a_client_has_so_many_slow_bodies_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "_SLOW_AFTER_S", 1.0)
    limits = {"body_grace_s": 3.0, "body_bytes_per_s_min": 1000, "slow_bodies_per_client_max": 3}
    async with serving(limited(read_all, **limits)) as port:
        answers = await asyncio.gather(*(asked(port, "Content-Length: 9\r\nConnection: close", b"x") for _ in range(8)))
        again = await asked(port, "Content-Length: 1\r\nConnection: close", b"x")
    assert sorted(answer.split()[1] for answer in answers) == [b"408"] * 3 + [b"429"] * 5
    assert again.endswith(b"read")


# --- one client ---------------------------------------------------------------------------------------------------------


def scope_of(client: str, **headers: str) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": "/", "headers": raw, "client": (client, 1)}


async def answer_of(app: ASGIApp, client: str) -> int:
    """Return the status for a request without a body."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    await app(scope_of(client), receive, send)
    return statuses[0]


async def test_a_client_has_so_many_open_requests_and_others_their_own() -> None:
    go_on = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await PlainTextResponse("done")(scope, receive, send)

    app = limited(wait, requests_per_client_max=2)
    first = [asyncio.create_task(answer_of(app, "10.0.0.1")) for _ in range(2)]
    other = asyncio.create_task(answer_of(app, "10.0.0.2"))
    await asyncio.sleep(0)
    assert await answer_of(app, "10.0.0.1") == 429
    go_on.set()
    assert await asyncio.gather(*first, other) == [200, 200, 200]
    assert await answer_of(app, "10.0.0.1") == 200
    assert not app._open._counts


async def test_bad_keys_are_slowed_down_for_the_client_that_tries_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    go_on = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        await go_on.wait()

    app = limited(refuse, refusals_per_minute=5)
    assert [await answer_of(app, "10.0.0.1") for _ in range(5)] == [401] * 5
    monkeypatch.setattr(request_limits.asyncio, "sleep", sleep)
    slow = [asyncio.create_task(answer_of(app, "10.0.0.1")) for _ in range(request_limits._DELAYED_MAX)]
    while len(slept) < len(slow):
        await asyncio.wait(slow, timeout=0.01)
    assert await answer_of(app, "10.0.0.1") == 429
    assert await answer_of(app, "10.0.0.2") == 401
    go_on.set()
    assert await asyncio.gather(*slow) == [401] * len(slow)


async def test_refusals_of_a_bounded_number_of_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "_REFUSED_CLIENTS_MAX", 10)
    app = limited(refuse, refusals_per_minute=5)
    for number in range(50):
        await answer_of(app, f"10.0.0.{number}")
    assert len(app._refusals._clients) == 10
