"""Limits for every request: the pace of its body, the requests and refusals of one client, and the memory of all
bodies.

A request is read to its end before it is answered, within limits. Otherwise a client that is still sending would see a
broken connection instead of the answer, and a front door that keeps no connections would report the server as broken,
with 502.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.http.answers import ErrorForm, error_answer
from moorage.kernel.errors import MoorageError, OverloadedError, SlowBodyError
from moorage.kernel.request_cost import MemoryBudget, RequestCost

# How many bytes of a refused body are read and discarded, and for how long. A client that sends more does not get the
# answer.
_DRAIN_BYTES_MAX = 64 * 2**20
_DRAIN_SILENCE_S = 5.0
_DRAIN_S = 30.0
# A body counts as slow after it was behind its pace for this long.
_SLOW_AFTER_S = 5.0
# How long refusals of a client are remembered, and for how many clients.
_REFUSALS_REMEMBERED_S = 60.0
_REFUSED_CLIENTS_MAX = 10_000
_REFUSAL_DELAY_S = 0.5
_DELAYED_MAX = 32

_TRY_AGAIN_LATER = 1013
_COST, _LIMITS = "moorage.cost", "moorage.limits"


@dataclass(frozen=True)
class RequestLimits:
    """The limits. 0 disables a limit, except the first three."""

    body_bytes_max: int
    json_values_max: int = 1_000_000  # of one request; includes keys
    held_bytes_max: int = 384 * 2**20  # of the bodies of all requests, including their parsed objects
    body_bytes_per_s_min: int = 10_000
    body_grace_s: float = 30.0  # how long a body may be behind that pace
    slow_bodies_per_client_max: int = 256
    requests_per_client_max: int = 10_000
    refusals_per_minute: int = 0  # 401 answers to one client before the next ones are delayed


def limits_of(request: Request) -> RequestLimits:
    return cast(RequestLimits, request.scope[_LIMITS])


def cost_of(request: Request) -> RequestCost:
    """Return the share of the memory budget that the request's body holds. It is freed when the answer begins."""
    return cast(RequestCost, request.scope[_COST])


class LimitRequests:
    """ASGI middleware that limits requests. It must be the outermost."""

    def __init__(self, app: ASGIApp, *, limits: RequestLimits, budget: MemoryBudget, errors: ErrorForm) -> None:
        self._app = app
        self._limits = limits
        self._budget = budget
        self._errors = errors
        self._open = _PerClient(limits.requests_per_client_max)
        self._slow = _PerClient(limits.slow_bodies_per_client_max)
        self._refusals = _Refusals(limits.refusals_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else ""
        body = _Body(scope, receive, self._limits, self._slow, client)
        scope[_LIMITS] = self._limits
        scope[_COST] = cost = RequestCost(self._budget, self._limits.json_values_max)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                cost.give_back()
                if not await body.drain():
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                if message["status"] == 401:
                    await self._refusals.delay(client)
            await send(message)

        try:
            self._enter(client)
        except MoorageError as error:
            body.give_up()
            await error_answer(error, self._errors)(scope, body.receive, answer)
            return
        try:
            await self._app(scope, body.receive, answer)
        finally:
            cost.give_back()
            body.close()
            self._open.leave(client)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a WebSocket as one request while it is open."""
        client = scope["client"][0] if scope.get("client") else ""
        scope[_LIMITS] = self._limits
        scope[_COST] = RequestCost(self._budget, self._limits.json_values_max)
        try:
            self._enter(client)
        except MoorageError:
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._open.leave(client)

    def _enter(self, client: str) -> None:
        if self._refusals.are_too_many(client):
            raise OverloadedError("Too many requests without a good key come from this address; try again in a moment")
        if not self._open.enter(client):
            raise OverloadedError("This address has too many requests open; try again in a moment")


class _Body:
    """A request's body as it arrives. Enforces its pace."""

    def __init__(self, scope: Scope, receive: Receive, limits: RequestLimits, slow: _PerClient, client: str) -> None:
        self._receive = receive
        self._limits = limits
        self._slow = slow
        self._client = client
        self._has_ended = not _has_body(scope)
        self._is_slow = self._is_given_up = False
        self._size_bytes = 0
        self._waited_s = 0.0

    async def receive(self) -> Message:
        """Return the next message. Raises SlowBodyError, or OverloadedError if the client has too many slow bodies."""
        if self._has_ended:
            return await self._receive()
        return self._take(await (self._receive_in_time() if self._limits.body_bytes_per_s_min else self._receive()))

    async def drain(self) -> bool:
        """Read the rest of the body. Returns True if its end was reached."""
        return self._has_ended or await self._drain_rest()

    async def _drain_rest(self) -> bool:
        size_bytes = _DRAIN_BYTES_MAX if self._is_given_up else 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while not self._has_ended and size_bytes < _DRAIN_BYTES_MAX:
                    async with asyncio.timeout(_DRAIN_SILENCE_S):
                        size_bytes += len(self._take(await self._receive()).get("body", b""))
        return self._has_ended

    def give_up(self) -> None:
        """Skip draining: the client sends too slowly, or too many requests."""
        self._is_given_up = True

    def close(self) -> None:
        if self._is_slow:
            self._slow.leave(self._client)
            self._is_slow = False

    def _take(self, message: Message) -> Message:
        self._size_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._has_ended = True
            self.close()
        return message

    async def _receive_in_time(self) -> Message:
        while True:
            began_at = time.monotonic()
            try:
                async with asyncio.timeout(self._allowed_s() - self._waited_s):
                    return await self._receive()
            except TimeoutError:
                self._fall_behind()
            finally:
                self._waited_s += time.monotonic() - began_at

    def _allowed_s(self) -> float:
        grace_s = self._limits.body_grace_s
        if not self._is_slow:
            grace_s = min(grace_s, _SLOW_AFTER_S)
        return grace_s + self._size_bytes / self._limits.body_bytes_per_s_min

    def _fall_behind(self) -> None:
        if self._is_slow:
            self.give_up()
            raise SlowBodyError(
                f"The request body came more slowly than {self._limits.body_bytes_per_s_min} bytes a second"
            )
        if not self._slow.enter(self._client):
            self.give_up()
            raise OverloadedError("This address sends too many slow request bodies; try again in a moment")
        self._is_slow = True


class _PerClient:
    """Counts per client. Only clients with a count above zero are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = Counter[str]()

    def enter(self, client: str) -> bool:
        """Count one more for the client. Returns False if the limit was reached already."""
        if self._most and self._counts[client] >= self._most:
            return False
        self._counts[client] += 1
        return True

    def leave(self, client: str) -> None:
        self._counts[client] -= 1
        if self._counts[client] <= 0:
            del self._counts[client]


class _Refusals:
    """Delays clients that try one invalid key after another."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._clients: OrderedDict[str, tuple[float, int]] = OrderedDict()  # time of the first one, and their number
        self._delayed = Counter[str]()

    def are_too_many(self, client: str) -> bool:
        return client in self._delayed and self._delayed[client] >= _DELAYED_MAX

    async def delay(self, client: str) -> None:
        if not self._per_minute or self._count(client) <= self._per_minute:
            return
        self._delayed[client] += 1
        try:
            await asyncio.sleep(_REFUSAL_DELAY_S)
        finally:
            self._delayed[client] -= 1
            if not self._delayed[client]:
                del self._delayed[client]

    def _count(self, client: str) -> int:
        now = time.monotonic()
        since, count = self._clients.pop(client, (now, 0))
        if now - since > _REFUSALS_REMEMBERED_S:
            since, count = now, 0
        self._clients[client] = since, count + 1
        if len(self._clients) > _REFUSED_CLIENTS_MAX:
            self._clients.popitem(last=False)
        return count + 1


def _has_body(scope: Scope) -> bool:
    """Return True if the request has a body. Called for every request, so it reads the raw headers."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
