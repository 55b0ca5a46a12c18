"""A request is heard to its end before it is answered, where its connection ends with the answer.

A front door keeps no connections to an agent, so that a switch of revisions is one rename, and a server closes such a
connection as soon as it has answered. When the request was still on its way then, the front door cannot send the rest of
it, takes the agent for broken and says 502 in place of what was answered: a refusal mostly, for which no body is read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# More than front doors let through, and longer than their clients pause. Who sends on after that loses the answer.
_BYTES_MAX = 32 * 2**20
_SILENCE_S = 5.0


class HearsOut:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (_ends_with_its_answer(scope) and _has_body(scope)):
            await self._app(scope, receive, send)
            return
        is_heard = False

        async def hear() -> Message:
            nonlocal is_heard
            message = await receive()
            is_heard = not message.get("more_body", False)
            return message

        async def hear_out() -> None:
            size_bytes = 0
            with suppress(TimeoutError):
                while not is_heard and size_bytes < _BYTES_MAX:
                    async with asyncio.timeout(_SILENCE_S):
                        size_bytes += len((await hear()).get("body", b""))

        async def answer(message: Message) -> None:
            if not is_heard:
                await hear_out()
            await send(message)

        await self._app(scope, hear, answer)


def _ends_with_its_answer(scope: Scope) -> bool:
    """Asked of every request, so in the words of the wire."""
    return any(name == b"connection" and value.lower() == b"close" for name, value in scope["headers"])


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
