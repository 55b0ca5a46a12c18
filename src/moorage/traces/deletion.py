"""Deletion of traces. A call hides the traces at once; the removal follows when nothing can write to them any more.

Orders are rows, so a crash at any moment loses none. Every step of an order may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, MoorageError, NotFoundError, UnavailableError
from moorage.kernel.gathering import Gathering
from moorage.traces.attachments import Attachments
from moorage.traces.records.deletion import TRACES_MAX
from moorage.traces.store.deletions import DeletionStore, RemovalOrder, TombstoneStore
from moorage.traces.store.projects import ProjectStore
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

# Ingest checks for tombstones before it writes. After this delay, all writes that were checked before the tombstone
# existed are done, and no process still maps the name of a deleted project to its id.
WAIT_S = 60.0
_RETRY_S = 5.0
# With a thousand traces each, as many orders as one statement can name.
_TOGETHER_MAX = 5


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
        now = datetime.now(UTC)
        await self._tombstones.bury(workspace_id, trace_ids, now)
        await self._tombstones.hide(workspace_id, trace_ids, now)

    async def delete_with_metadata(self, caller: Caller, metadata: Mapping[str, str]) -> None:
        """Delete all traces of the workspace with any of the pairs on any run. Many traces take a while."""
        await self._orders.insert(caller.workspace_id, metadata=metadata, wait_s=0, actor=caller.actor)
        self._wake()

    async def delete_projects(self, caller: Caller, ids: Collection[UUID]) -> list[UUID]:
        """Delete the projects at once, and their contents soon after; returns the ids of projects that existed."""
        removed = await self._projects.remove(caller.workspace_id, ids, caller.actor, self._wait_s)
        if removed:
            self._wake()
            try:
                await self._tombstones.bury(caller.workspace_id, removed, datetime.now(UTC))
            except UnavailableError as error:  # the projects are deleted, and the order writes the tombstones again
                log.warning("the trace store does not know yet that projects were deleted", error=str(error))
        return removed


class DeletionQueue:
    """Removal orders as rows with leases: see `worker/leases.py`.

    Orders that arrive during a removal are executed together by the next removal.
    """

    def __init__(
        self, orders: DeletionStore, tombstones: TombstoneStore, attachments: Attachments, *, wait_s: float = WAIT_S
    ) -> None:
        self._orders = orders
        self._tombstones = tombstones
        self._attachments = attachments
        self._wait_s = wait_s
        self._removals = Gathering[RemovalOrder](self._remove, (lambda _: 1, _TOGETHER_MAX))

    async def claim(self, worker: str, slots: int, lease_s: float) -> Sequence[RemovalOrder]:
        return await self._orders.claim(worker, slots, lease_s)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        return await self._orders.beat(leases, lease_s)

    async def reap(self) -> int:
        return await self._orders.reap()

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self._orders.hand_back(leases, wait_s=0)

    async def execute(self, order: RemovalOrder) -> bool:
        try:
            if order.metadata is None:
                await self._removals.add(order)
            else:
                await self._order_traces(order, order.metadata)
        except MoorageError as error:  # an engine or the bucket is away
            log.warning("a removal waits for an engine", order=str(order.lease.key), error=str(error))
            await self._orders.hand_back([order.lease], wait_s=_RETRY_S)
            return False
        return await self._orders.end(order.lease)

    async def _order_traces(self, order: RemovalOrder, metadata: Mapping[str, str]) -> None:
        """Turn an order by metadata into orders by traces. Hidden traces are skipped, so each round finds others."""
        more = True
        while more:
            found = await self._tombstones.with_metadata(order.workspace_id, metadata)
            more = len(found) == TRACES_MAX
            if found:
                await self._orders.insert(order.workspace_id, trace_ids=found, wait_s=self._wait_s, actor=order.actor)
                await self._bury_and_hide(order.workspace_id, found)

    async def _remove(self, orders: Sequence[RemovalOrder]) -> None:
        projects = [(order.workspace_id, order.project_id) for order in orders if order.project_id is not None]
        traces = [(order.workspace_id, trace_id) for order in orders for trace_id in order.trace_ids or ()]
        for workspace_id, project_id in projects:
            await self._tombstones.bury(workspace_id, [project_id], datetime.now(UTC))
        for order in orders:
            if order.trace_ids:
                await self._bury_and_hide(order.workspace_id, order.trace_ids)
        with_attachments = await self._tombstones.with_attachments(projects) if projects else []
        for workspace_id, trace_id in [*traces, *with_attachments]:
            await self._attachments.delete_trace(workspace_id, trace_id)
        if projects:
            await self._tombstones.erase_projects(projects)
        if traces:
            await self._tombstones.erase_traces(traces)

    async def _bury_and_hide(self, workspace_id: UUID, trace_ids: Sequence[UUID]) -> None:
        now = datetime.now(UTC)
        await self._tombstones.bury(workspace_id, trace_ids, now)
        await self._tombstones.hide(workspace_id, trace_ids, now)
