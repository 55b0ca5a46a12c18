"""A gate before a whole application: no request gets in without a credential, but for what tells of its health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.http.answers import AGENT_ERRORS, error_answer
from moorage.kernel.errors import MoorageError

_BEARER = "bearer "


class Admission(Protocol):
    async def admit(self, api_key: str | None, bearer: str | None) -> None:
        """Raises what is answered."""


class Gate:
    """ASGI middleware. Requests that `is_open` says yes to need no credential."""

    def __init__(self, app: ASGIApp, *, admission: Admission, is_open: Callable[[Scope], bool]) -> None:
        self._app = app
        self._admission = admission
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        authorization = headers.get("authorization", "")
        bearer = authorization[len(_BEARER) :] if authorization.lower().startswith(_BEARER) else None
        try:
            await self._admission.admit(headers.get("x-api-key"), bearer)
        except MoorageError as error:
            await error_answer(error, AGENT_ERRORS)(scope, receive, send)
            return
        await self._app(scope, receive, send)
