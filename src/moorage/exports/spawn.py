"""The job that spawns exports from schedules: one export for each window that ended ten minutes ago or earlier.

Any number of processes may run it at any time: a unique index allows only one export for each window of a schedule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from moorage.exports.notify import Webhooks
from moorage.exports.partitions import partitions_of
from moorage.exports.records.exports import SPAWN_DELAY
from moorage.exports.schedules import windows_due
from moorage.exports.store.exports import DueSchedule, ExportStore, Spawning
from moorage.kernel.ids import uuid7

log = structlog.get_logger(__name__)

# Limits that keep the transaction short. The rest is spawned in the next round.
_SCHEDULES_AT_ONCE = 20
_WINDOWS_AT_ONCE = 24

Experiments = Callable[[UUID], Awaitable[list[UUID]]]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Spawner:
    def __init__(
        self, store: ExportStore, webhooks: Webhooks, experiments: Experiments, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._webhooks = webhooks
        self._experiments = experiments
        self._now = now

    async def spawn(self) -> int:
        """Create the exports that are due; returns how many."""
        count = 0
        now = self._now()
        async with self._store.schedules_due(now, SPAWN_DELAY, _SCHEDULES_AT_ONCE) as (spawning, schedules):
            for schedule in schedules:
                count += await self._spawn_from(schedule, now, spawning)
        return count

    async def _spawn_from(self, schedule: DueSchedule, now: datetime, spawning: Spawning) -> int:
        model = schedule.model
        sessions = [model.session_id] if model.session_id else await self._experiments(model.workspace_id)
        windows = windows_due(schedule.next_start_at, timedelta(hours=schedule.interval_hours), now, _WINDOWS_AT_ONCE)
        count = 0
        for window in windows:
            export_id = uuid7()
            partitions = partitions_of(window, sessions)
            count += await spawning.spawn(schedule, window, export_id, partitions, self._resealed(schedule, export_id))
        if windows:
            await spawning.advance(schedule, windows[-1].end_at)
            log.info("exports spawned", schedule=str(model.id), exports=count, until=windows[-1].end_at.isoformat())
        return count

    def _resealed(self, schedule: DueSchedule, export_id: UUID) -> bytes | None:
        sealed = schedule.model.webhook_secret
        return self._webhooks.reseal(sealed, schedule.model.id, export_id) if sealed else None
