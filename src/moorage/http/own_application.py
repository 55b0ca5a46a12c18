"""A project's own application beside the server's operations: its routes win, and its middleware surrounds everything.

Applications based on Starlette show their routes and middleware. Any other ASGI application gets each request first,
and a request that it does not know goes on to the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.http.authentication import Heard
from moorage.kernel.errors import StartupError

log = structlog.get_logger(__name__)

_START_S = 120.0
_STOP_S = 10.0
# The statuses with which an application answers an unknown operation.
_UNKNOWN = frozenset({404, 405})


def has_route(own: ASGIApp, scope: Scope) -> bool:
    """Return True if the request goes to a route of the project's application."""
    routes = own.routes if isinstance(own, Starlette) else []
    return any(not isinstance(route, _TheRest) and route.matches(scope)[0] is Match.FULL for route in routes)


def serve_with(own: ASGIApp, app: Starlette, *, outside: Sequence[Middleware], inside: Sequence[Middleware]) -> ASGIApp:
    """Combine both applications. `outside` runs before the project's own middleware, `inside` after it."""
    if isinstance(own, Starlette):
        own.router.routes.append(_TheRest("", app))
        own.user_middleware[:] = [*outside, *own.user_middleware, *inside]
        return own
    app.user_middleware[:] = [*inside, *app.user_middleware]
    both: ASGIApp = _Both(own, app)
    for middleware in reversed(outside):
        both = middleware.cls(both, *middleware.args, **middleware.kwargs)
    return both


class _TheRest(Mount):
    """The last route of a project's application, which matches everything that its other routes do not."""


class _Both:
    """A project's application whose routes are not visible, combined with the server's.

    A request for one of the server's operations goes on to the server if the project's application does not know it.
    """

    def __init__(self, own: ASGIApp, app: Starlette) -> None:
        self._own = own
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] != "lifespan" and any(r.matches(scope)[0] is Match.FULL for r in self._app.routes)
        if scope["type"] != "http" or not is_ours:
            await (self._app if is_ours else self._own)(scope, receive, send)
            return
        heard, is_unknown = Heard(scope, receive), False

        async def send_what_is_known(message: Message) -> None:
            nonlocal is_unknown
            is_unknown = is_unknown or (message["type"] == "http.response.start" and message["status"] in _UNKNOWN)
            if not is_unknown:
                await send(message)

        await self._own(dict(scope), heard, send_what_is_known)
        if is_unknown:
            await self._app(scope, heard.again, send)


class Below:
    """ASGI middleware that serves everything below a path prefix. Outside of it, it serves only `/ok`, which monitors
    need.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/ok":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(f"{self._prefix}/"):
            await self._app({**scope, "root_path": scope.get("root_path", "") + self._prefix}, receive, send)
        else:
            await self._app({**scope, "root_path": "", "path": f"/{_NOWHERE}"}, receive, send)


# No route has this path, so the answer is the usual 404 of unknown paths.
_NOWHERE = "\0"


class WithState:
    """ASGI middleware that gives requests the state that the application's lifespan has filled."""

    def __init__(self, app: ASGIApp, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = dict(self._state)
        await self._app(scope, receive, send)


@asynccontextmanager
async def lifespan_of(own: ASGIApp, state: dict[str, Any]) -> AsyncIterator[None]:
    """Start the application, which fills its `state`, and stop it at the end. Applications need not support lifespans.

    Raises the application's own error at its start, and StartupError when the start does not finish in time.
    """
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    task = asyncio.ensure_future(own(scope, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    try:
        await _started(task, from_app)
        yield
        await to_app.put({"type": "lifespan.shutdown"})
        _, late = await asyncio.wait([task], timeout=_STOP_S)
        if late:
            log.warning("the application of langgraph.json does not stop; it is left behind")
        elif not task.cancelled() and (error := task.exception()):
            log.error("the application of langgraph.json failed while it stopped", error=str(error), exc_info=error)
    finally:
        task.cancel()


async def _started(task: asyncio.Future[Any], from_app: asyncio.Queue[Message]) -> None:
    told = asyncio.create_task(from_app.get())
    done, _ = await asyncio.wait([task, told], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        told.cancel()
        raise StartupError(f"The application of langgraph.json does not start: it is not ready after {_START_S:.0f} s")
    if told not in done:  # it supports no lifespan; some applications signal that by raising
        told.cancel()
        return
    if told.result()["type"] == "lifespan.startup.failed":
        await asyncio.wait([task], timeout=1)
        error = task.exception() if task.done() and not task.cancelled() else None
        raise error or StartupError(
            f"The application of langgraph.json does not start: {told.result().get('message') or 'it says no reason'}"
        )
