"""How a route gets at its room."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from moorage.agents.room import Agents


def agents(request: Request) -> Agents:
    return cast(Agents, request.app.state.agents)
