"""How a route gets at its room."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from moorage.agents.langgraph_json import HttpConfig
from moorage.agents.principals import ANYONE, Principal, Sent
from moorage.agents.room import Agents


def principal(request: Request) -> Principal:
    """On whose behalf the request is: whoever the project's authentication let in, or anyone when it has none."""
    return cast(Principal, request.scope.get("principal", ANYONE))


def sent(request: Request) -> Sent:
    headers = http_rules(request).configurable(request.headers.items())
    return Sent(request.headers.get("x-request-id"), headers)


def http_rules(request: Request) -> HttpConfig:
    return cast(HttpConfig, request.app.state.http)


def agents(request: Request) -> Agents:
    return cast(Agents, request.app.state.agents)
