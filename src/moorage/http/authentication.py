"""Authenticates each request before it reaches an operation, and stores the result as `scope["principal"]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.authentication import AuthCredentials
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.http.answers import AGENT_ERRORS, error_answer
from moorage.http.request_limits import cost_of, limits_of
from moorage.kernel.encoding import decode
from moorage.kernel.errors import BodyTooLargeError, MoorageError
from moorage.kernel.request_cost import parse


class Authenticator(Protocol):
    @property
    def takes(self) -> frozenset[str]:
        """Return the names from `PARAMETERS` that the handler takes."""

    async def principal(self, headers: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
        """Authenticate the request. Raises a MoorageError, which becomes the answer."""


class RequestHeaders(dict[bytes, bytes]):
    """Headers by lower-case name. Handlers may look up bytes, or strings to get strings."""

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            return super().__getitem__(name.lower().encode("latin-1")).decode("latin-1")
        return super().__getitem__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower().encode("latin-1") if isinstance(name, str) else name)


# Arguments that an authenticator may take, by name. The body is not among them, since it must be awaited.
_READ: dict[str, Callable[[Request], Any]] = {
    "request": lambda request: request,
    "path": lambda request: request.url.path,
    "method": lambda request: request.method,
    "path_params": lambda request: request.path_params,
    "query_params": lambda request: dict(request.query_params),
    "headers": lambda request: RequestHeaders(request.headers.raw),
    "authorization": lambda request: request.headers.get("authorization"),
}
_POLICY_VIOLATION = 1008
PARAMETERS = frozenset({*_READ, "body"})


class Authentication:
    """ASGI middleware that authenticates requests. Those that `is_open` accepts need no user."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        is_open: Callable[[Scope], bool],
        routes: Sequence[BaseRoute],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._takes = authenticator.takes
        self._is_open = is_open
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        is_socket = scope["type"] == "websocket"
        heard = None if is_socket or self._takes.isdisjoint({"request", "body"}) else Heard(scope, receive)
        try:
            request = self._handshake(scope) if is_socket else self._request(scope, heard or receive)
            arguments = await self._arguments(request)
            principal = await self._authenticator.principal(request.headers, arguments)
        except MoorageError as error:
            if is_socket:  # before the handshake is accepted, so the client sees a 403
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
                return
            await error_answer(error, AGENT_ERRORS)(scope, receive, send)
            return
        # Routes of a project read `user`, in any framework based on Starlette.
        scope["principal"], scope["user"] = principal, principal.user
        scope["auth"] = AuthCredentials(principal.user.permissions)
        await self._app(scope, heard.again if heard else receive, send)

    def _handshake(self, scope: Scope) -> Request:
        """Return the request that opens a WebSocket. It has no body."""
        return Request({**scope, "type": "http", "method": "GET", "path_params": self._path_params(scope)}, _no_body)

    def _request(self, scope: Scope, receive: Receive) -> Request:
        """Return the request. Path parameters are looked up here if the handler takes them, since routing happens only
        later.
        """
        if self._takes.isdisjoint({"request", "path_params"}):
            return Request(scope, receive)
        return Request({**scope, "path_params": self._path_params(scope)}, receive)

    def _path_params(self, scope: Scope) -> Mapping[str, Any]:
        matches = (route.matches(scope) for route in self._routes)
        found = next((child for match, child in matches if match is Match.FULL), {})
        return found.get("path_params", {})  # type: ignore[no-any-return]

    async def _arguments(self, request: Request) -> dict[str, Any]:
        arguments = {name: _READ[name](request) for name in self._takes - {"body"}}
        if "body" in self._takes:
            arguments["body"] = await _read_body(request)
        return arguments


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _read_body(request: Request) -> Any:
    """Return the parsed body, or None if it is not JSON."""
    body = await request.body()
    await cost_of(request).take_json(body)
    try:
        return await parse(lambda: decode(body), len(body))
    except ValueError:
        return None


class Heard:
    """A `receive` that records its messages, so that the next application can receive them again."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        request = Request(scope)
        self._receive = receive
        self._limit_bytes = self._left_bytes = limits_of(request).body_bytes_max
        self._cost = cost_of(request)
        self._messages: list[Message] = []

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left_bytes -= len(message.get("body", b""))
        if self._left_bytes < 0:
            raise BodyTooLargeError(f"The request body is larger than the limit of {self._limit_bytes} bytes")
        self._cost.take(len(message.get("body", b"")))
        self._messages.append(message)
        return message

    async def again(self) -> Message:
        return self._messages.pop(0) if self._messages else await self._receive()
