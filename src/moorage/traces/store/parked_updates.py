"""SQL of parked updates. They wait for their run to arrive, or for earlier parked updates of the same run.

The last written update of a run wins, so updates are written in the order of their arrival.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

_INSERT = """
INSERT INTO parked_updates (id, workspace_id, run_id, main, payload_names, payloads, attachments)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
# There is nearly never a parked update, and then single runs need no lookup.
_ANY = "SELECT EXISTS (SELECT FROM parked_updates) AS found"
_BEHIND = "SELECT DISTINCT run_id FROM parked_updates WHERE workspace_id = %s AND run_id = ANY(%s)"
# Lets one process at a time write parked updates, to keep those of a run in order. A process that dies loses the lock.
_ALONE = """
SELECT pg_try_advisory_xact_lock(7209664) AS alone,
    set_config('idle_in_transaction_session_timeout', '10min', true)
"""
# Among the runs that are due, takes the first update of each, then the second of each, so that no run starves.
_PAGE = """
WITH due AS MATERIALIZED (
    SELECT workspace_id, run_id FROM parked_updates WHERE not_before <= now()
    GROUP BY workspace_id, run_id ORDER BY min(not_before) LIMIT %(limit)s
), first AS MATERIALIZED (
    SELECT p.id, row_number() OVER (PARTITION BY p.workspace_id, p.run_id ORDER BY p.arrived_at, p.id) AS turn
    FROM due JOIN parked_updates p USING (workspace_id, run_id) ORDER BY turn LIMIT %(limit)s
)
SELECT p.id, p.workspace_id, p.run_id, p.main, p.payload_names, p.payloads, p.attachments, now() AS read_at
FROM first JOIN parked_updates p USING (id) ORDER BY first.turn, p.arrived_at, p.id
"""
# The longer a run's first update has waited, the less often the run is tried. Updates that arrived after the read are
# not postponed: they may have named the place of the run.
_PUT_OFF = """
UPDATE parked_updates p
SET not_before = now() + least(greatest((now() - run.waits_since) / 4, interval '1 second'), interval '1 minute')
FROM (
    SELECT workspace_id, run_id, min(arrived_at) AS waits_since FROM parked_updates
    WHERE (workspace_id, run_id) IN (SELECT * FROM unnest(%s::uuid[], %s::uuid[])) GROUP BY workspace_id, run_id
) AS run
WHERE (p.workspace_id, p.run_id) = (run.workspace_id, run.run_id) AND p.not_before <= %s
"""
_REMOVE = "DELETE FROM parked_updates WHERE id = ANY(%s)"
_REMOVE_OLD = "DELETE FROM parked_updates WHERE arrived_at < now() - make_interval(days => %s)"
_NEXT = "SELECT extract(epoch FROM min(not_before) - now())::float8 AS in_s FROM parked_updates"

# Seconds for which a process may cache that nothing is parked. The answer to a parked update is delayed by this time,
# so that in every process the client's next update is parked behind it.
NONE_KEPT_S = 0.2


@dataclass(frozen=True)
class ParkedUpdate:
    """An update as it came. `payloads` by name; `attachments` is JSON."""

    id: UUID
    workspace_id: UUID
    run_id: UUID
    main: bytes | None
    payloads: dict[str, bytes]
    attachments: bytes | None
    read_at: datetime

    @property
    def run(self) -> tuple[UUID, UUID]:
        return self.workspace_id, self.run_id


class ParkedUpdateStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._none_until = 0.0
        self._asking = asyncio.Lock()

    async def insert(
        self,
        workspace_id: UUID,
        updates: Sequence[tuple[str, bytes | None, dict[str, bytes], bytes | None]],
    ) -> None:
        """Park updates, in order of arrival, each as (run id, main part, payloads by name, attachments). Stores all or
        none. When this returns, `behind` reports their runs in every process.
        """
        rows = [
            (uuid7(), workspace_id, run_id, main, list(payloads), list(payloads.values()), attachments)
            for run_id, main, payloads, attachments in updates
        ]
        await self._postgres.execute_all([(_INSERT, rows)])
        await asyncio.sleep(NONE_KEPT_S)

    async def behind(self, workspace_id: UUID, run_ids: Collection[str]) -> set[str]:
        """Find the runs that have parked updates; newer updates of these runs must be parked too."""
        if not run_ids or await self._none_wait():
            return set()
        rows = await self._postgres.fetch(_BEHIND, (workspace_id, list(run_ids)))
        return {str(row["run_id"]) for row in rows}

    async def _none_wait(self) -> bool:
        if self._none_until > time.monotonic():
            return True
        async with self._asking:
            asked_at = time.monotonic()
            if self._none_until <= asked_at:
                row = await self._postgres.fetch_one(_ANY)
                assert row is not None
                self._none_until = 0.0 if row["found"] else asked_at + NONE_KEPT_S
            return self._none_until > 0

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Try to be the only writer of parked updates until the end of the context."""
        async with self._postgres.connection() as connection, connection.transaction():
            row = await (await connection.execute(_ALONE)).fetchone()
            assert row is not None
            yield row["alone"]

    async def page(self, limit: int) -> Sequence[ParkedUpdate]:
        """Read updates of runs that are due; for each run from its first update on, in order of arrival."""
        return [
            ParkedUpdate(
                row["id"],
                row["workspace_id"],
                row["run_id"],
                row["main"],
                dict(zip(row["payload_names"], row["payloads"], strict=True)),
                row["attachments"],
                row["read_at"],
            )
            for row in await self._postgres.fetch(_PAGE, {"limit": limit})
        ]

    async def put_off(self, updates: Collection[ParkedUpdate]) -> None:
        """Postpone the next try of these updates' runs."""
        if updates:
            workspaces, runs = zip(*{update.run for update in updates}, strict=True)
            read_at = max(update.read_at for update in updates)
            await self._postgres.execute(_PUT_OFF, (list(workspaces), list(runs), read_at))

    async def remove(self, ids: Collection[UUID]) -> None:
        await self._postgres.execute(_REMOVE, (list(ids),))

    async def remove_old(self, days: int) -> int:
        return await self._postgres.execute(_REMOVE_OLD, (days,))

    async def next_in_s(self) -> float | None:
        """Return when the next update is due; None when there is none."""
        row = await self._postgres.fetch_one(_NEXT)
        return None if row is None else row["in_s"]
