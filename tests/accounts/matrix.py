"""Every route of an application with the scope that it asks for, to be tried with every key that must not open it."""

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
        """The path with an id that nothing has for each parameter."""
        return re.sub(r"\{[^}]*\}", lambda _: str(uuid4()), self.path)


def operations(app: FastAPI) -> Iterator[Guarded]:
    """All operations, each once for every path that it is served at. A route that is not FastAPI's asks for no key."""
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        is_socket = isinstance(route.original_route, APIWebSocketRoute)
        methods = {"WEBSOCKET"} if is_socket else getattr(route, "methods", None)
        for method in sorted({*(methods or "*")} - {"HEAD"}):
            yield Guarded(method, route.path, *(_needed(dependant) if dependant else (None, False)))


def guarded(app: FastAPI) -> list[Guarded]:
    """The operations that ask for a key."""
    return [operation for operation in operations(app) if operation.asks]


def unguarded(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of the operations that ask for none, to be compared with a list written down."""
    return {(operation.method, operation.path) for operation in operations(app) if not operation.asks}


def _needed(dependant: Dependant) -> tuple[Scope | None, bool]:
    """The scope, and whether a key is asked for at all."""
    for dependency in dependant.dependencies:
        if hasattr(dependency.call, "scope"):
            return dependency.call.scope, True
        scope, asks = _needed(dependency)
        if asks:
            return scope, True
    return None, False
