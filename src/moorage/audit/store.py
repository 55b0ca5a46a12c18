"""SQL of the audit log. Rows are inserted and read; triggers of the database refuse updates and deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from moorage.audit.records import AuditRow
from moorage.kernel.postgres import Postgres

_INSERT_CHANGE = """
INSERT INTO audit_changes (id, workspace_id, actor, operation, method, path, client_host, client_port, forwarded_for,
    resource_ids)
VALUES (%(id)s, %(workspace_id)s, %(actor)s, %(operation)s, %(method)s, %(path)s, %(client_host)s, %(client_port)s,
    %(forwarded_for)s, %(resource_ids)s::uuid[])
"""
_INSERT_OUTCOME = "INSERT INTO audit_outcomes (change_id, status, resource_ids) VALUES (%s, %s, %s::uuid[])"
# Newest first, after the row that the cursor names. A NULL parameter leaves out its condition.
_PAGE = """
SELECT c.id, c.at, c.workspace_id, c.actor, c.operation, c.method, c.path, c.client_host, c.client_port, c.forwarded_for,
    o.status, c.resource_ids || coalesce(o.resource_ids, '{{}}') AS resource_ids
FROM audit_changes c LEFT JOIN audit_outcomes o ON o.change_id = c.id
WHERE c.at BETWEEN %(start)s AND %(end)s {conditions}
ORDER BY c.at DESC, c.id DESC LIMIT %(limit)s
"""
_OF_WORKSPACE = "AND c.workspace_id = %(workspace_id)s"
_OF_OPERATIONS = "AND c.operation = ANY(%(operations)s)"
_AFTER = "AND (c.at, c.id) < (%(after_at)s, %(after_id)s)"
# Delete outcomes first: an outcome without its change is never shown.
_REMOVE = (
    "DELETE FROM audit_outcomes WHERE at < now() - make_interval(days => %s)",
    "DELETE FROM audit_changes WHERE at < now() - make_interval(days => %s)",
)


class AuditStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert_change(self, values: Mapping[str, Any]) -> None:
        await self._postgres.execute(_INSERT_CHANGE, values)

    async def insert_outcome(self, change_id: UUID, status: int, resource_ids: Sequence[UUID]) -> None:
        await self._postgres.execute(_INSERT_OUTCOME, (change_id, status, list(resource_ids)))

    async def read_page(
        self,
        start: datetime,
        end: datetime,
        *,
        workspace_id: UUID | None,
        operations: Sequence[str] | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[AuditRow]:
        """Return rows newest first, of all workspaces if `workspace_id` is None."""
        conditions = [
            sql
            for sql, given in ((_OF_WORKSPACE, workspace_id), (_OF_OPERATIONS, operations), (_AFTER, after))
            if given is not None
        ]
        values = {
            "start": start,
            "end": end,
            "workspace_id": workspace_id,
            "operations": list(operations or ()),
            "after_at": after[0] if after else None,
            "after_id": after[1] if after else None,
            "limit": limit,
        }
        rows = await self._postgres.fetch(_PAGE.format(conditions=" ".join(conditions)), values)
        return cast(list[AuditRow], rows)

    async def remove_older(self, days: int) -> None:
        for statement in _REMOVE:
            await self._postgres.execute(statement, (days,))
