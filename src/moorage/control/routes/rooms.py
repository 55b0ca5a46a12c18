"""Access of the routes to the room of their application."""

from __future__ import annotations

from typing import cast

from starlette.requests import HTTPConnection

from moorage.control.room import Control

REFUSED = (401, 403)


def control(request: HTTPConnection) -> Control:
    return cast(Control, request.app.state.control)
