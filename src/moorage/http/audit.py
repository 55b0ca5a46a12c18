"""The audit of changes: a row before a request changes anything, and its outcome before the request is answered.

`needs` of `http/access.py` calls `begin_change` for every route that may change something, so no route can forget it.
The row holds ids, but never a body or a query, which may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode
from moorage.kernel.errors import UnavailableError
from moorage.kernel.ids import uuid7

log = structlog.get_logger(__name__)

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
RESOURCES_MAX = 1000
_TEXT_MAX = 500
_BODY_BYTES_MAX = 64 * 1024
_CHANGE = "moorage.change"


@dataclass(frozen=True)
class Change:
    """A request that may change something, before its route runs. `resource_ids` are the ids in its path."""

    id: UUID
    workspace_id: UUID
    actor: str
    operation: str
    method: str
    path: str
    client_host: str | None
    client_port: int | None
    forwarded_for: str | None
    resource_ids: list[UUID]


class Trail(Protocol):
    async def begin(self, change: Change) -> None:
        """Write the row. Raises UnavailableError; then nothing may be changed."""

    async def end(self, change_id: UUID, status: int, resource_ids: list[UUID]) -> None:
        """Write the outcome. Raises UnavailableError."""


@dataclass
class _Open:
    """A change in progress, with the ids of resources that are not in its path."""

    trail: Trail
    change_id: UUID
    resource_ids: list[UUID]


async def begin_change(request: Request, caller: Caller, trail: Trail) -> None:
    client, forwarded = request.client, request.headers.get("x-forwarded-for")
    change = Change(
        id=uuid7(),
        workspace_id=caller.workspace_id,
        actor=caller.actor,
        operation=request.scope["endpoint"].__name__,
        method=request.method,
        path=request.url.path[:_TEXT_MAX],
        client_host=client.host if client else None,
        client_port=client.port if client else None,
        forwarded_for=forwarded[:_TEXT_MAX] if forwarded else None,
        resource_ids=_ids([*request.path_params.values(), *request.query_params.values()]),
    )
    await trail.begin(change)
    request.scope[_CHANGE] = _Open(trail, change.id, [])


def name_resources(request: Request, resource_ids: Iterable[UUID]) -> None:
    """Add ids to the request's row. Used by routes whose body names the resources."""
    if opened := request.scope.get(_CHANGE):
        opened.resource_ids.extend(resource_ids)


class ChangeOutcomes:
    """ASGI middleware that records the outcome of a change before its answer begins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING_METHODS:
            await self._app(scope, receive, send)
            return
        held: Message | None = None

        async def send_after_outcome(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and _CHANGE in scope:
                held = message
                return
            if held is not None:
                start, held = held, None
                await _end(scope.pop(_CHANGE), start["status"], _made(start, message))
                await send(start)
            await send(message)

        try:
            await self._app(scope, receive, send_after_outcome)
        except Exception:
            if opened := scope.pop(_CHANGE, None):
                await _end(opened, 500, [])
            raise


async def _end(opened: _Open, status: int, made: list[UUID]) -> None:
    """Record the outcome. If that fails, the request must still be answered: the change has its row already."""
    try:
        await opened.trail.end(opened.change_id, status, [*opened.resource_ids, *made][:RESOURCES_MAX])
    except UnavailableError as error:
        log.error(
            "the outcome of a change is not in the audit log", id=str(opened.change_id), status=status, error=str(error)
        )


def _made(start: Message, body: Message) -> list[UUID]:
    """Return the ids of created resources, read from the answer."""
    content = body.get("body", b"")
    if (
        start["status"] >= 300
        or body.get("more_body")
        or len(content) > _BODY_BYTES_MAX
        or content[:1] not in {b"{", b"["}
    ):
        return []
    told = decode(content)
    return _ids([item.get("id") for item in (told if isinstance(told, list) else [told]) if isinstance(item, dict)])


def _ids(values: Iterable[Any]) -> list[UUID]:
    """Return the values that are ids."""
    found = []
    for value in values:
        try:
            found.append(value if isinstance(value, UUID) else UUID(str(value)))
        except ValueError:
            continue  # a name, a number or null
    return found[:RESOURCES_MAX]
