"""Access of routes to their room."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from moorage.traces.room import Traces


def traces(request: Request) -> Traces:
    return cast(Traces, request.app.state.traces)
