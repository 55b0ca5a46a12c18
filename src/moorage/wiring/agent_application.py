"""The web application of an agent server: its routes, its middleware, and the project's own application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Scope

from moorage.agents.auth import CustomAuth, load_auth
from moorage.agents.imports import cause_of, import_variable, own_line
from moorage.agents.langgraph_json import AuthConfig, HttpConfig, LanggraphJson
from moorage.agents.platform_access import PlatformAccess
from moorage.agents.principals import ANYONE
from moorage.agents.rights import right_for
from moorage.agents.routes import assistants, crons, items, protocol, runs, system, threads
from moorage.agents.routes.missing import NOT_SERVED
from moorage.http import console, docs
from moorage.http.application import make_application
from moorage.http.authentication import Authentication
from moorage.http.gate import Gate
from moorage.http.header_log import HeaderLog
from moorage.http.metrics import Metrics
from moorage.http.missing import Missing
from moorage.http.openapi import extend_document
from moorage.http.own_application import Below, WithState, has_route, lifespan_of, serve_with
from moorage.http.request_log import RequestLog
from moorage.kernel.errors import StartupError
from moorage.settings.agents import AgentSettings
from moorage.wiring.requests import request_limits

log = structlog.get_logger(__name__)

# Operations that need no credential. The documentation's operations are added if it is public.
_OPEN_PATHS = ("/ok", "/info", "/metrics")
# Routes that `disable_meta` disables; `/ok` then does not ask the database.
_META = frozenset({"/info", "/metrics", *docs.ROUTES})
_MODULES = {
    "runs": runs,
    "threads": threads,
    "assistants": assistants,
    "items": items,
    "crons": crons,
    "protocol": protocol,
    "system": system,
}
# Routes are matched in order, and each takes some microseconds: these come first, the busiest before the others. None
# of them matches a request for another route.
_BUSIEST = (
    "POST /threads/{thread_id}/runs/stream",
    "POST /threads",
    "POST /threads/{thread_id}/runs/wait",
    "GET /threads/{thread_id}/state",
    "POST /runs/wait",
    "POST /runs/stream",
    "POST /threads/{thread_id}/runs",
    "POST /threads/{thread_id}/history",
    "POST /threads/search",
)
# Operations that are not served yet, by the option that disables them.
_CLOSED = {
    "disable_a2a": "A2A",
    "disable_mcp": "MCP",
    "disable_ui": "the generative UI",
}


@dataclass(frozen=True)
class AgentApplication:
    """The served application, the server's own operations in it, and the project's own application, if there is one."""

    served: ASGIApp
    operations: FastAPI
    own: ASGIApp | None
    state: dict[str, Any]  # the state of the project's lifespan, for each request


async def import_application(path: str | None, folder: Path) -> ASGIApp | None:
    """Import the project's application. Raises StartupError that names the failing line of the project."""
    if path is None:
        return None
    with _told(path, folder):
        return await asyncio.to_thread(_imported, path, folder)


@asynccontextmanager
async def started(app: AgentApplication, path: str | None, folder: Path) -> AsyncIterator[None]:
    """Run the lifespan of the project's application around the context. Raises StartupError as the import does."""
    async with AsyncExitStack() as stack:
        if app.own is not None and path is not None:
            with _told(path, folder):
                await stack.enter_async_context(lifespan_of(app.own, app.state))
        yield


@contextmanager
def _told(path: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except StartupError:
        raise
    except (Exception, SystemExit) as error:
        where = own_line(error, folder)
        cause = cause_of(error) + (f" ({where})" if where else "")
        raise StartupError(f"http.app of langgraph.json ({path}) does not start: {cause}") from error


def _imported(path: str, folder: Path) -> ASGIApp:
    app: ASGIApp = import_variable(path, folder)
    if not callable(app):
        raise TypeError(f"it is a {type(app).__name__}, not an ASGI application")
    return app


def custom_auth(
    config: AuthConfig | None, folder: Path, timeout_s: float, access: PlatformAccess | None
) -> CustomAuth | None:
    if config is None:
        return None
    studio = None if config.disable_studio_auth else access
    return CustomAuth(load_auth(config.path, folder), timeout_s, studio, config.cache)


def agent_application(
    settings: AgentSettings,
    config: LanggraphJson,
    access: PlatformAccess | None,
    auth: CustomAuth | None,
    own: ASGIApp | None,
    metrics: Metrics,
    *,
    development: bool,
) -> AgentApplication:
    prefix = (config.http.mount_prefix or settings.mount_prefix).rstrip("/")
    app = _server(settings, config.http, prefix, metrics)
    app.state.development = development
    app.state.without_authentication = ANYONE if auth is None else None
    app.state.has_console = development and not prefix  # its paths begin at the root
    if development:
        app.include_router(system.development_router)
    if app.state.has_console:
        app.include_router(console.router)
    extend_document(app, own, config.auth.openapi.model_dump() if config.auth else {})
    before = _before(settings, config.http, access, auth, own, prefix, development=development)
    outside, app.user_middleware[:] = list(app.user_middleware), []
    if config.http.logging_headers is not None:
        rules = config.http.logging_headers
        outside.append(Middleware(HeaderLog, wanted=lambda name: rules.takes(name, "*")))
    if own is None:
        app.user_middleware[:] = [*outside, *before]
        served: ASGIApp = app
    elif config.http.middleware_order == "auth_first":
        served = serve_with(own, app, outside=[*outside, *before], inside=[])
    else:
        served = serve_with(own, app, outside=outside, inside=before)
    state: dict[str, Any] = {}
    served = served if own is None else WithState(served, state)
    return AgentApplication(Below(served, prefix) if prefix else served, app, own, state)


def _server(settings: AgentSettings, http: HttpConfig, prefix: str, metrics: Metrics) -> FastAPI:
    """Make the application with the server's own operations, without those that are disabled."""
    closed = {name for switch, name in _CLOSED.items() if getattr(http, switch)}
    missing = {name: operations for name, operations in NOT_SERVED.items() if name not in closed}
    app = make_application(
        title="moorage agent server",
        limits=request_limits(settings),
        cors_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
        cors=http.cors.model_dump(exclude_none=True) if http.cors else None,
        missing=Missing((missing, [prefix])),
    )
    app.state.http = http
    # Answers match the reference API to the byte, so without our own header.
    app.add_middleware(RequestLog, metrics=metrics, prefixes=(), shows_id=False)
    _mount(app, http)
    return app


def mount_all(app: FastAPI) -> None:
    _mount(app, HttpConfig())


def _mount(app: FastAPI, http: HttpConfig) -> None:
    off = {name for name in ("runs", "threads", "assistants") if getattr(http, f"disable_{name}")}
    off |= ({"crons", "protocol"} if http.disable_runs else set()) | ({"items"} if http.disable_store else set())
    served = [route for name, module in _MODULES.items() if name not in off for route in module.router.routes]
    shown = [route for route in served if not (http.disable_meta and _is_meta(route))]
    # Not with `include_router`: FastAPI would make each route a second time, at the first request.
    app.router.routes.extend(sorted(shown, key=_rank))
    if http.disable_meta:
        app.router.routes[:] = [route for route in app.router.routes if not _is_meta(route)]


def _rank(route: BaseRoute) -> int:
    names = {f"{method} {getattr(route, 'path', '')}" for method in getattr(route, "methods", None) or ()}
    return next((place for place, busy in enumerate(_BUSIEST) if busy in names), len(_BUSIEST))


def _is_meta(route: BaseRoute) -> bool:
    """Return True for a route that `disable_meta` disables. Newer versions of FastAPI keep an included router as one
    route.
    """
    return getattr(route, "path", None) in _META or getattr(route, "original_router", None) is docs.router


def _before(
    settings: AgentSettings,
    http: HttpConfig,
    access: PlatformAccess | None,
    auth: CustomAuth | None,
    own: ASGIApp | None,
    prefix: str,
    *,
    development: bool,
) -> list[Middleware]:
    """Return the middleware that admits requests: the project's authentication, the platform's keys, or none."""
    docs_are_open = settings.open_docs or access is None
    open_paths = (*_OPEN_PATHS, *docs.PATHS) if docs_are_open else _OPEN_PATHS
    paths = frozenset({"/ok", *(f"{prefix}{path}" for path in open_paths)})

    def is_open(scope: Scope) -> bool:
        if own is not None and has_route(own, scope):
            return not http.enable_custom_route_auth
        return scope["path"] in paths or (development and not prefix and console.is_console(scope["path"]))

    routes: list[BaseRoute] = [route for module in _MODULES.values() for route in module.router.routes]
    if auth is not None:
        return [Middleware(Authentication, authenticator=auth, is_open=is_open, routes=routes)]
    if access is not None:
        right = partial(right_for, mount_prefix=prefix)
        # Metrics of a deployed agent are for its workspace only: Prometheus must send a key.
        closed = f"{prefix}/metrics"

        def needs_no_key(scope: Scope) -> bool:
            return scope["path"] != closed and is_open(scope)

        return [Middleware(Gate, admission=access, right_for=right, is_open=needs_no_key)]
    return []
