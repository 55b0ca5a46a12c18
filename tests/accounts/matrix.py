"""Every route of an application with its scope, for tests that try each key that must not open it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIWebSocketRoute, iter_route_contexts

from moorage.kernel.access import Scope


class Guarded(NamedTuple):
    """An operation, and the scope that `needs` demands; None where any key is enough, or none is needed."""

    method: str
    path: str
    scope: Scope | None
    asks: bool = True

    @property
    def url(self) -> str:
        """Return the path, with an id of nothing for each parameter."""
        return re.sub(r"\{[^}]*\}", lambda _: str(uuid4()), self.path)


def operations(app: FastAPI) -> Iterator[Guarded]:
    """Return all operations, once for every path that serves them. A route that is not FastAPI's needs no key."""
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        is_socket = isinstance(route.original_route, APIWebSocketRoute)
        methods = {"WEBSOCKET"} if is_socket else getattr(route, "methods", None)
        for method in sorted({*(methods or "*")} - {"HEAD"}):
            yield Guarded(method, route.path, *(_needed(dependant) if dependant else (None, False)))


def guarded(app: FastAPI) -> list[Guarded]:
    """Return the operations that need a key."""
    return [operation for operation in operations(app) if operation.asks]


def unguarded(app: FastAPI) -> set[tuple[str, str]]:
    """Return method and path of the operations that need no key, to be compared with a fixed list."""
    return {(operation.method, operation.path) for operation in operations(app) if not operation.asks}


def _needed(dependant: Dependant) -> tuple[Scope | None, bool]:
    """Return the scope, and whether a key is needed at all."""
    for dependency in dependant.dependencies:
        if hasattr(dependency.call, "scope"):
            return dependency.call.scope, True
        scope, asks = _needed(dependency)
        if asks:
            return scope, True
    return None, False
