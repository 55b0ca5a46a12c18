"""Logs the end of each request in one line, with the headers that the project wants to have logged."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)


class HeaderLog:
    """ASGI middleware that logs requests. `wanted` decides by a header's lower-case name whether it is logged."""

    def __init__(self, app: ASGIApp, wanted: Callable[[str], bool]) -> None:
        self._app = app
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_at = 500, time.perf_counter()

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
            headers = {name: value for name, value in named if self._wanted(name)}
            ms = round((time.perf_counter() - began_at) * 1000, 1)
            log.info("request", method=scope["method"], path=scope["path"], status=status, ms=ms, headers=headers)
