"""Access of routes to the verbs of their room."""

from __future__ import annotations

from typing import cast
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from moorage.agents.langgraph_json import HttpConfig
from moorage.agents.principals import Principal, Sent
from moorage.agents.room import Agents
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError


def principal(request: HTTPConnection) -> Principal:
    """Return the principal of a request: the authenticated user, or anyone if the project has no authentication.

    Raises UnauthenticatedError for a request that bypassed authentication, which a project's own middleware can cause.
    """
    found = request.scope.get("principal", request.app.state.without_authentication)
    if found is None:
        raise UnauthenticatedError("Unauthorized")
    return cast(Principal, found)


def sent(request: HTTPConnection) -> Sent:
    headers = http_rules(request).configurable(request.headers.items())
    return Sent(request.headers.get("x-request-id"), headers)


def http_rules(request: HTTPConnection) -> HttpConfig:
    return cast(HttpConfig, request.app.state.http)


def agents(request: HTTPConnection) -> Agents:
    return cast(Agents, request.app.state.agents)


def check_origin(request: HTTPConnection) -> None:
    """Check that the page that opens a WebSocket may do so: browsers let any page connect, with this server's cookies.

    Raises ForbiddenError for a page of another origin that CORS does not name.
    """
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc == request.headers.get("host"):
        return
    named = request.app.state.cors_origins
    if origin not in named and not ("*" in named and "cookie" not in request.headers):
        raise ForbiddenError(f"Pages of {origin[:200]} may not connect")
