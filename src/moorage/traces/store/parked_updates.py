"""SQL of updates that wait for the run they belong to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

_INSERT = """
INSERT INTO parked_updates (id, workspace_id, run_id, main, payload_names, payloads, attachments)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
# Taking one puts its next try off: another process does not take it meanwhile, and after a crash it is tried again. The
# longer an update has waited, the rarer it is tried.
_TAKE = """
WITH due AS MATERIALIZED (
    SELECT id FROM parked_updates WHERE not_before <= now() ORDER BY not_before LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE parked_updates p
SET not_before = now() + least(greatest((now() - p.arrived_at) / 4, interval '1 second'), interval '1 minute')
FROM due WHERE p.id = due.id
RETURNING p.id, p.workspace_id, p.run_id, p.main, p.payload_names, p.payloads, p.attachments, p.arrived_at
"""
_REMOVE = "DELETE FROM parked_updates WHERE id = ANY(%s)"
_REMOVE_OLD = "DELETE FROM parked_updates WHERE arrived_at < now() - make_interval(days => %s)"
_NEXT = "SELECT extract(epoch FROM min(not_before) - now())::float8 AS in_s FROM parked_updates"


@dataclass(frozen=True)
class ParkedUpdate:
    """An update as it came. `payloads` by name; `attachments` is JSON."""

    id: UUID
    workspace_id: UUID
    run_id: UUID
    main: bytes | None
    payloads: dict[str, bytes]
    attachments: bytes | None
    arrived_at: datetime


class ParkedUpdateStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self,
        workspace_id: UUID,
        updates: Sequence[tuple[str, bytes | None, dict[str, bytes], bytes | None]],
    ) -> None:
        """Each is (run id, main part, payloads by name, attachments). All of them or none."""
        rows = [
            (uuid7(), workspace_id, run_id, main, list(payloads), list(payloads.values()), attachments)
            for run_id, main, payloads, attachments in updates
        ]
        await self._postgres.execute_all([(_INSERT, rows)])

    async def take(self, limit: int) -> Sequence[ParkedUpdate]:
        """Those that are due, the one that arrived first in front."""
        rows = await self._postgres.fetch(_TAKE, {"limit": limit})
        found = [
            ParkedUpdate(
                row["id"],
                row["workspace_id"],
                row["run_id"],
                row["main"],
                dict(zip(row["payload_names"], row["payloads"], strict=True)),
                row["attachments"],
                row["arrived_at"],
            )
            for row in rows
        ]
        return sorted(found, key=lambda update: (update.arrived_at, update.id))

    async def remove(self, ids: Collection[UUID]) -> None:
        await self._postgres.execute(_REMOVE, (list(ids),))

    async def remove_old(self, days: int) -> int:
        return await self._postgres.execute(_REMOVE_OLD, (days,))

    async def next_in_s(self) -> float | None:
        """When the next one is due; None when there is none."""
        row = await self._postgres.fetch_one(_NEXT)
        return None if row is None else row["in_s"]
