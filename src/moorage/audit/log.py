"""The audit log: every change writes to it, and owners of a workspace or the installation read it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from moorage.audit.records import WIRE_NAMES, AuditPage, ocsf_event
from moorage.audit.store import AuditStore
from moorage.kernel.access import Caller, Scope
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import ForbiddenError, InvalidRequestError
from moorage.kernel.ids import uuid7

_INSTALLATION = "installation"


class _Change(Protocol):
    """A change that a request makes, as `http/audit.py` describes it."""

    @property
    def operation(self) -> str: ...


class AuditLog:
    """The audit log. Its rows are kept for `days` days."""

    def __init__(self, store: AuditStore, days: int) -> None:
        self._store = store
        self._days = days

    async def begin(self, change: _Change) -> None:
        """Write the row of a change that is about to be made. Raises UnavailableError; then the change must not be
        made.
        """
        values = dict(vars(change))
        values["operation"] = WIRE_NAMES.get(change.operation, change.operation)
        await self._store.insert_change(values)

    async def end(self, change_id: UUID, status: int, resource_ids: Sequence[UUID]) -> None:
        await self._store.insert_outcome(change_id, status, resource_ids)

    async def record_command(self, operation: str, command: str, workspace_id: UUID) -> None:
        """Record a change that was made on the machine itself, without a request."""
        values: Mapping[str, Any] = {
            "id": uuid7(),
            "workspace_id": workspace_id,
            "actor": _INSTALLATION,
            "operation": operation,
            "method": "",
            "path": command,
            "client_host": None,
            "client_port": None,
            "forwarded_for": None,
            "resource_ids": [],
        }
        await self._store.insert_change(values)
        await self._store.insert_outcome(values["id"], 200, [])

    async def page(
        self,
        caller: Caller,
        start: datetime,
        end: datetime,
        *,
        workspace_id: UUID | None = None,
        operations: Sequence[str] | None = None,
        cursor: str | None = None,
        limit: int,
    ) -> AuditPage:
        """Return the changes of the caller's workspace. An operator gets the changes of all workspaces, or
        of `workspace_id`.

        Raises ForbiddenError for a workspace that is not the caller's, InvalidRequestError for an invalid cursor.
        """
        rows = await self._store.read_page(
            start,
            end,
            workspace_id=_chosen_workspace(caller, workspace_id),
            operations=operations,
            after=_read_cursor(cursor) if cursor else None,
            limit=limit + 1,
        )
        shown = rows[:limit]
        following = _cursor(shown[-1]["at"], shown[-1]["id"]) if len(rows) > limit else None
        return {"cursor": following, "items": [ocsf_event(row) for row in shown]}

    async def forget(self) -> None:
        await self._store.remove_older(self._days)


def _chosen_workspace(caller: Caller, wanted: UUID | None) -> UUID | None:
    if Scope.OPERATOR in caller.scopes:
        return wanted
    if wanted not in {None, caller.workspace_id}:
        raise ForbiddenError("Only an operator's key reads the audit log of another workspace: leave out workspace_id")
    return caller.workspace_id


def _cursor(at: datetime, row_id: UUID) -> str:
    return base64.urlsafe_b64encode(encode({"at": at.astimezone(UTC).isoformat(), "id": str(row_id)})).decode()


def _read_cursor(text: str) -> tuple[datetime, UUID]:
    try:
        told = decode(base64.urlsafe_b64decode(text))
        at = datetime.fromisoformat(told["at"])
        return at if at.tzinfo else at.replace(tzinfo=UTC), UUID(told["id"])
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequestError("Invalid cursor: send the one of the page before", "query", "cursor") from None
