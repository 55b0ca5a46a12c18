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
from moorage.traces.records.run_rows import SentRun

_INSERT = """
INSERT INTO parked_updates (id, workspace_id, run_id, main, payload_names, payloads, attachments)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
# There is nearly never a parked update, and then single runs need no lookup.
_ANY = "SELECT 1 FROM parked_updates LIMIT 1"
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
SET not_before = now() + least(greatest((now() - first.arrived_at) / 4, interval '1 second'), interval '1 minute')
FROM parked_updates AS first
WHERE first.id = ANY(%s) AND (p.workspace_id, p.run_id) = (first.workspace_id, first.run_id) AND p.not_before <= %s
"""
_REMOVE = "DELETE FROM parked_updates WHERE id = ANY(%s)"
_REMOVE_OLD = "DELETE FROM parked_updates WHERE arrived_at < now() - make_interval(days => %s)"

# Seconds for which a process may cache that nothing is parked. The answer to a parked update is delayed by this time,
# so that in every process the client's next update is parked behind it.
NONE_KEPT_S = 0.2


@dataclass(frozen=True)
class ParkedUpdate:
    """An update that waits, as it came."""

    id: UUID
    workspace_id: UUID
    sent: SentRun
    read_at: datetime

    @property
    def run(self) -> tuple[UUID, str]:
        return self.workspace_id, self.sent.id


class ParkedUpdateStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._none_until = 0.0

    async def insert(self, workspace_id: UUID, updates: Sequence[SentRun]) -> None:
        """Park updates, in order of arrival. Stores all or none. When this returns, `behind` reports their runs in every
        process.
        """
        rows = [
            (uuid7(), workspace_id, sent.id, sent.main, [*sent.payloads], [*sent.payloads.values()], sent.attachments)
            for sent in updates
        ]
        await self._postgres.execute_all([(_INSERT, rows)])
        await asyncio.sleep(NONE_KEPT_S)

    async def behind(self, workspace_id: UUID, run_ids: Collection[str]) -> set[str]:
        """Find the runs that have parked updates; newer updates of these runs must be parked too."""
        if not run_ids or await self.none_wait():
            return set()
        rows = await self._postgres.fetch(_BEHIND, (workspace_id, list(run_ids)))
        return {str(row["run_id"]) for row in rows}

    async def none_wait(self) -> bool:
        asked_at = time.monotonic()
        if self._none_until <= asked_at and not await self._postgres.fetch(_ANY):
            self._none_until = asked_at + NONE_KEPT_S
        return self._none_until > asked_at

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Try to be the only writer of parked updates until the end of the context."""
        async with self._postgres.connection() as connection, connection.transaction():
            row = await (await connection.execute(_ALONE)).fetchone()
            assert row is not None
            yield row["alone"]

    async def page(self, limit: int) -> Sequence[ParkedUpdate]:
        """Read updates of runs that are due; for each run from its first update on, in order of arrival."""
        updates = []
        for row in await self._postgres.fetch(_PAGE, {"limit": limit}):
            payloads = dict(zip(row["payload_names"], row["payloads"], strict=True))
            sent = SentRun(str(row["run_id"]), True, row["main"], payloads, row["attachments"])
            updates.append(ParkedUpdate(row["id"], row["workspace_id"], sent, row["read_at"]))
        return updates

    async def put_off(self, updates: Collection[ParkedUpdate]) -> None:
        """Postpone the next try of these updates' runs. Each update is the first of its run."""
        if updates:
            read_at = max(update.read_at for update in updates)
            await self._postgres.execute(_PUT_OFF, ([update.id for update in updates], read_at))

    async def remove(self, ids: Collection[UUID]) -> None:
        await self._postgres.execute(_REMOVE, (list(ids),))

    async def remove_old(self, days: int) -> int:
        return await self._postgres.execute(_REMOVE_OLD, (days,))
