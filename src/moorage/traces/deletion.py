"""Deletion of traces: by callers, and by age. A call hides the traces at once; the removal follows when nothing can
write to them any more. By default nothing expires.

Orders are rows, so a crash at any moment loses none. Every step of an order may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from operator import attrgetter
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, MoorageError, NotFoundError, UnavailableError
from moorage.kernel.gathering import Gathering
from moorage.kernel.postgres import Postgres
from moorage.traces.attachments import Attachments
from moorage.traces.feedback import Feedback
from moorage.traces.records.deletion import TRACES_MAX, TtlSettings, TtlSettingsWrite
from moorage.traces.store.deletions import DeletionStore, Files, RemovalOrder, RetentionStore, TombstoneStore
from moorage.traces.store.feedback import FeedbackKeyStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.unfinished_inserts import UnfinishedInserts

log = structlog.get_logger(__name__)

# Ingest checks for tombstones before it writes. After this delay, all writes that were checked before the tombstone
# existed are done, and no process still maps the name of a deleted project to its id.
WAIT_S = 60.0
_RETRY_S = 5.0
# Orders that one statement removes together. Each names up to a thousand traces, and a statement can hold no more.
_TOGETHER_MAX = 5
# Files with deleted rows are rewritten at night, since rewriting takes a while.
_CLEANS_AFTER = time(3, tzinfo=UTC)
_SAME_START = timedelta(seconds=2)  # the engine reports its uptime in whole seconds


class Deletion:
    """Operations for callers."""

    def __init__(
        self,
        orders: DeletionStore,
        tombstones: TombstoneStore,
        projects: ProjectStore,
        *,
        wake: Callable[[], None],
        wait_s: float = WAIT_S,
    ) -> None:
        self._orders = orders
        self._tombstones = tombstones
        self._projects = projects
        self._wake = wake
        self._wait_s = wait_s

    async def delete_traces(self, caller: Caller, session_id: UUID, trace_ids: Sequence[UUID]) -> None:
        """Delete traces of one project. Ingest refuses traces that arrive later under these ids.

        Raises NotFoundError when the workspace has no such project, BadRequestError when a trace is in another one.
        """
        workspace_id = caller.workspace_id
        if not await self._projects.known(workspace_id, [session_id]):
            raise NotFoundError(f"Session with id {session_id} not found")
        if elsewhere := await self._tombstones.elsewhere(workspace_id, trace_ids, session_id):
            raise BadRequestError(f"Trace {min(elsewhere)} is not in session {session_id}; nothing was deleted")
        # The order comes first: even if the process dies right after it, the traces are removed.
        await self._orders.insert(workspace_id, trace_ids=trace_ids, wait_s=self._wait_s, actor=caller.actor)
        await self._tombstones.bury_and_hide(workspace_id, trace_ids)

    async def delete_with_metadata(self, caller: Caller, metadata: Mapping[str, str]) -> None:
        """Delete all traces of the workspace with any of the pairs on any run. Many traces take a while."""
        await self._orders.insert(caller.workspace_id, metadata=metadata, wait_s=0, actor=caller.actor)
        self._wake()

    async def delete_projects(self, caller: Caller, ids: Collection[UUID]) -> None:
        """Delete the projects at once, and their runs, feedback and attachments soon after. Raises NotFoundError when
        none of them exists.
        """
        removed = await self._projects.remove(caller.workspace_id, ids, caller.actor, self._wait_s)
        if not removed:
            raise NotFoundError(f"Session with id {min(ids)} not found")
        self._wake()
        try:
            await self._tombstones.bury(caller.workspace_id, removed)
        except UnavailableError as error:  # the projects are deleted, and the order writes the tombstones again
            log.warning("the trace store does not know yet that projects were deleted", error=str(error))


class DeletionQueue(DeletionStore):
    """Executes removal orders, which are rows with leases: see `worker/leases.py`.

    Orders that arrive during a removal are executed together by the next removal.
    """

    def __init__(
        self, postgres: Postgres, tombstones: TombstoneStore, attachments: Attachments, *, wait_s: float = WAIT_S
    ) -> None:
        super().__init__(postgres)
        self._tombstones = tombstones
        self._attachments = attachments
        self._wait_s = wait_s
        self._removals = Gathering[RemovalOrder](self._remove, (lambda _: 1, _TOGETHER_MAX))

    async def execute(self, order: RemovalOrder) -> bool:
        try:
            if order.metadata is None:
                await self._removals.add(order)
            else:
                await self._order_traces(order, order.metadata)
        except MoorageError as error:  # an engine or the bucket is away
            log.warning("a removal waits for an engine", order=str(order.lease.key), error=str(error))
            await self.postpone(order.lease, _RETRY_S)
            return False
        return await self.end(order.lease)

    async def _order_traces(self, order: RemovalOrder, metadata: Mapping[str, str]) -> None:
        """Turn an order by metadata into orders by traces. Hidden traces are skipped, so each round finds others."""
        more = True
        while more:
            found = await self._tombstones.with_metadata(order.workspace_id, metadata)
            more = len(found) == TRACES_MAX
            if found:
                await self.insert(order.workspace_id, trace_ids=found, wait_s=self._wait_s, actor=order.actor)
                await self._tombstones.bury_and_hide(order.workspace_id, found)

    async def _remove(self, orders: Sequence[RemovalOrder]) -> None:
        projects = [(order.workspace_id, order.project_id) for order in orders if order.project_id is not None]
        traces = [(order.workspace_id, trace_id) for order in orders for trace_id in order.trace_ids or ()]
        for workspace_id, project_id in projects:
            await self._tombstones.bury(workspace_id, [project_id])
        for order in orders:
            if order.trace_ids:
                await self._tombstones.bury_and_hide(order.workspace_id, order.trace_ids)
        with_attachments = await self._tombstones.with_attachments(projects) if projects else []
        for workspace_id, trace_id in [*traces, *with_attachments]:
            await self._attachments.delete_trace(workspace_id, trace_id)
        if projects:
            await self._tombstones.erase_projects(projects)
        if traces:
            await self._tombstones.erase_traces(traces)


class Retention:
    """Days that a workspace keeps runs."""

    def __init__(self, settings: RetentionStore) -> None:
        self._settings = settings

    async def list_settings(self, caller: Caller) -> list[TtlSettings]:
        """List the settings of the workspace; without any, runs are kept for ever."""
        found = await self._settings.read(caller.workspace_id)
        return [] if found is None else [found]

    async def write_settings(self, caller: Caller, wanted: TtlSettingsWrite) -> TtlSettings:
        if wanted.tenant_id not in {None, caller.workspace_id}:
            raise NotFoundError(f"Workspace with id {wanted.tenant_id} not found")
        return await self._settings.write(caller.workspace_id, wanted, caller.actor)


class Housekeeping:
    """Periodic work. Several processes may do it at once, since each step may be repeated."""

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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
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
        lifetimes = await self._settings.lifetimes()
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
