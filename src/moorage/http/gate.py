"""A gate before a whole application: every request needs a credential, except health checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from moorage.http.answers import AGENT_ERRORS, error_answer
from moorage.kernel.access import Scope
from moorage.kernel.errors import MoorageError

_BEARER = "bearer "
_WEBSOCKET = "WEBSOCKET"  # stands for the method of a WebSocket
_POLICY_VIOLATION = 1008


class Admission(Protocol):
    async def admit(self, api_key: str | None, bearer: str | None, right: Scope) -> None:
        """Admit the caller. Raises the error that becomes the answer."""


class Gate:
    """ASGI middleware that admits requests. Those that `is_open` accepts need no credential. `right_for` returns the
    right that others need, from their method, path and query.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        admission: Admission,
        right_for: Callable[[str, str, bytes], Scope],
        is_open: Callable[[Connection], bool],
    ) -> None:
        self._app = app
        self._admission = admission
        self._right_for = right_for
        self._is_open = is_open

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        authorization = headers.get("authorization", "")
        bearer = authorization[len(_BEARER) :] if authorization.lower().startswith(_BEARER) else None
        try:
            right = self._right_for(scope.get("method", _WEBSOCKET), scope["path"], scope["query_string"])
            await self._admission.admit(headers.get("x-api-key"), bearer, right)
        except MoorageError as error:
            if scope["type"] == "websocket":  # before the handshake is accepted, so the client sees a 403
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
                return
            await error_answer(error, AGENT_ERRORS)(scope, receive, send)
            return
        await self._app(scope, receive, send)
