"""Retention of runs, and the loop that removes expired runs. By default nothing expires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from operator import attrgetter
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.errors import MoorageError, NotFoundError
from moorage.traces.attachments import Attachments
from moorage.traces.feedback import Feedback
from moorage.traces.records.retention import SHORTLIVED_DAYS, TtlSettings, TtlSettingsWrite
from moorage.traces.store.deletions import DeletionStore, Files, TombstoneStore
from moorage.traces.store.feedback_keys import FeedbackKeyStore
from moorage.traces.store.retention import RetentionRow, RetentionStore
from moorage.traces.store.unfinished_inserts import UnfinishedInserts

log = structlog.get_logger(__name__)

EVERY_S = 60.0
# Files with deleted rows are rewritten at night, since rewriting takes a while.
_CLEANS_AFTER = time(3, tzinfo=UTC)
_SAME_START = timedelta(seconds=2)  # the engine reports its uptime in whole seconds


def _now() -> datetime:
    return datetime.now(UTC)


class Retention:
    """Operations for callers."""

    def __init__(self, settings: RetentionStore) -> None:
        self._settings = settings

    async def list_settings(self, caller: Caller) -> list[TtlSettings]:
        """List the settings of the workspace; without any, runs are kept for ever."""
        row = await self._settings.read(caller.workspace_id)
        return [] if row is None else [_shown(row)]

    async def write_settings(self, caller: Caller, wanted: TtlSettingsWrite) -> TtlSettings:
        if wanted.tenant_id not in {None, caller.workspace_id}:
            raise NotFoundError(f"Workspace with id {wanted.tenant_id} not found")
        before = await self._settings.read(caller.workspace_id)
        named = wanted.model_fields_set
        longlived = wanted.longlived_ttl_days
        if "longlived_ttl_days" not in named and before is not None:
            longlived = before["longlived_ttl_days"]
        row = await self._settings.write(
            caller.workspace_id,
            default_trace_tier=wanted.default_trace_tier,
            longlived_ttl_days=longlived,
            shortlived_ttl_days=wanted.shortlived_ttl_days
            or (before["shortlived_ttl_days"] if before else SHORTLIVED_DAYS),
            apply_to_all_projects=wanted.apply_to_all_projects,
            actor=caller.actor,
        )
        return {**_shown(row), "apply_to_all_projects": wanted.apply_to_all_projects}


def _shown(row: RetentionRow) -> TtlSettings:
    return {
        **row,
        "organization_id": row["tenant_id"],
        "apply_to_all_projects": False,
        "configured_by": "user",
    }


class Housekeeping:
    """Periodic work. Several processes may run it at once, since each step may be repeated."""

    def __init__(
        self,
        settings: RetentionStore,
        orders: DeletionStore,
        tombstones: TombstoneStore,
        attachments: Attachments,
        feedback: Feedback,
        keys: FeedbackKeyStore,
        inserts: UnfinishedInserts,
        *,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._settings = settings
        self._orders = orders
        self._tombstones = tombstones
        self._attachments = attachments
        self._feedback = feedback
        self._keys = keys
        self._inserts = inserts
        self._clock = clock
        self._completed_at: datetime | None = None
        self._night: date | None = None
        self._cleaned: set[Files] = set()

    async def run(self) -> None:
        """Run a tick every EVERY_S seconds until cancelled."""
        while True:
            try:
                await self.tick()
            except MoorageError as error:  # an engine or the bucket is away
                log.warning("housekeeping waits for an engine", error=str(error))
            except Exception:  # the loop must go on, or the disk would fill up
                log.exception("housekeeping failed")
            await asyncio.sleep(EVERY_S)

    async def tick(self) -> None:
        now = self._clock()
        await self._complete_inserts()
        await self._tombstones.stop_failing_cleaning()
        await self._feedback.settle(now)
        await self.expire(now)
        if now.timetz() >= _CLEANS_AFTER:
            await self._clean(now.date())

    async def _complete_inserts(self) -> None:
        """Complete unfinished inserts, once after each start of the trace store."""
        started_at = await self._inserts.engine_started_at()
        if self._completed_at is None or abs(started_at - self._completed_at) > _SAME_START:
            await self._inserts.complete(started_at)
            self._completed_at = started_at

    async def _clean(self, today: date) -> None:
        """Rewrite the files of one month at each tick, after those of the last tick; all files once a night."""
        if self._night != today:
            await self._orders.remove_done()
            await self._keys.remove_expired_tokens()
            self._night, self._cleaned = today, set()
        left = [files for files in await self._tombstones.masked() if files not in self._cleaned]
        if left and not await self._tombstones.is_cleaning():
            await self._tombstones.clean(left[0])
            self._cleaned.add(left[0])

    async def expire(self, now: datetime) -> int:
        """Remove runs that are older than their projects allow; returns how many projects had some.

        Ages are counted in whole days. So a project is cleaned once a day, and its runs live up to a day longer.
        """
        lifetimes = await self._settings.lifetimes(SHORTLIVED_DAYS)
        expired: dict[datetime, list[tuple[UUID, UUID]]] = {}
        for days, group in groupby(lifetimes, key=attrgetter("days")):
            before = datetime.combine(now.date(), time(), UTC) - timedelta(days=days)
            projects = [(each.workspace_id, each.project_id) for each in group]
            if found := await self._tombstones.with_runs_before(projects, before):
                expired[before] = found
        # Attachments go first: they can only be found while their runs exist.
        for before, found in expired.items():
            for workspace_id, trace_id in await self._tombstones.with_attachments(found, before):
                await self._attachments.delete_trace(workspace_id, trace_id)
        if expired:
            await self._tombstones.erase_before(expired)
            log.info("runs have expired", projects=sum(map(len, expired.values())))
        return sum(map(len, expired.values()))
