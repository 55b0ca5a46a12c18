"""How a route gets at its room."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from moorage.agents.langgraph_json import HttpConfig
from moorage.agents.principals import Principal, Sent
from moorage.agents.room import Agents
from moorage.kernel.errors import UnauthenticatedError


def principal(request: Request) -> Principal:
    """On whose behalf the request is: whoever the project's authentication let in, or anyone when it has none.

    Raises UnauthenticatedError for a request that came around authentication, as a project's own middleware may send it.
    """
    found = request.scope.get("principal", request.app.state.without_authentication)
    if found is None:
        raise UnauthenticatedError("Unauthorized")
    return cast(Principal, found)


def sent(request: Request) -> Sent:
    headers = http_rules(request).configurable(request.headers.items())
    return Sent(request.headers.get("x-request-id"), headers)


def http_rules(request: Request) -> HttpConfig:
    return cast(HttpConfig, request.app.state.http)


def agents(request: Request) -> Agents:
    return cast(Agents, request.app.state.agents)
