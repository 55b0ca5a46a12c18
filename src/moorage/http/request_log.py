"""Follows each request from its first byte to its last: assigns an id, counts it, and logs its end in one line.

The line names the route instead of the address: path parameters and the query may hold secrets.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.http.metrics import Metrics

log = structlog.get_logger(__name__)

REQUEST_ID = "X-Request-Id"
_SOUND_ID = re.compile(rb"[\w.:-]{1,64}", re.ASCII)
_NO_ROUTE = "none"


class RequestLog:
    """ASGI middleware that logs requests. `prefixes` are the mount points of routers, longer ones first. `shows_id`
    sends the id as a header of the answer.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, prefixes: Sequence[str], shows_id: bool = True) -> None:
        self._app = app
        self._metrics = metrics
        self._prefixes = prefixes
        self._shows_id = shows_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        status, started_at = 500, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._shows_id:
                    message = {**message, "headers": [*message["headers"], (REQUEST_ID.lower().encode(), request_id)]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id.decode()):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._tell(scope, status, time.perf_counter() - started_at)

    def _tell(self, scope: Scope, status: int, duration_s: float) -> None:
        method, route = scope["method"], self._route(scope)
        self._metrics.request_ended(method, route, status, duration_s)
        _level(status)("request", method=method, route=route, status=status, ms=round(duration_s * 1000, 1))

    def _route(self, scope: Scope) -> str:
        """Return the route's template with the prefix that the caller used.

        In some versions of FastAPI, a route's path contains the prefix; in others it does not.
        """
        path = str(getattr(scope.get("route"), "path", _NO_ROUTE))
        prefix = next((prefix for prefix in self._prefixes if scope["path"].startswith(prefix + "/")), "")
        return path if path == _NO_ROUTE or path.startswith(prefix) else prefix + path


def _level(status: int) -> Callable[..., None]:
    """Return the log level of a request.

    Successful requests are logged at DEBUG: at INFO they would hide the first API key and warnings.
    """
    if status >= 500:
        return log.warning  # type: ignore[no-any-return]
    return log.info if status >= 400 else log.debug  # type: ignore[no-any-return]


def _request_id(scope: Scope) -> bytes:
    """Return the caller's own id if it is printable, so that the caller's log and ours name the same id."""
    name = REQUEST_ID.lower().encode()
    given = next((value for key, value in scope["headers"] if key == name), b"")
    return given if _SOUND_ID.fullmatch(given) else secrets.token_hex(16).encode()
