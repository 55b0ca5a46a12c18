"""Ingest of trace runs: from a request body to rows that are durable before the client gets its answer.

An invalid run is refused and named in the answer. The other runs of the request are stored anyway, since clients drop a
whole request when it is refused. An update that names no project, and whose run has not arrived, is parked until the
run arrives; it never goes to the default project. Later updates of that run are parked behind it, since the last
written update wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import InvalidRequestError, MoorageError, UnavailableError
from moorage.kernel.request_cost import RequestCost, parse
from moorage.traces.attachments import Attachments, SentAttachment
from moorage.traces.feedback import Feedback
from moorage.traces.parse_run import (
    SEGMENT_CHARS,
    STAMP_CHARS,
    RefusedRunError,
    RunWrite,
    order_segment,
    parse_run,
)
from moorage.traces.prices import Prices, choose
from moorage.traces.records.run_rows import Row, SentRun
from moorage.traces.records.words import time_of, us_of
from moorage.traces.run_buffer import Counts, RunBuffer, UnstorableRunsError
from moorage.traces.sent_body import MultipartParser, SentBody, read_boundary
from moorage.traces.store.parked_updates import ParkedUpdate, ParkedUpdateStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunLocation, RunWrites
from moorage.traces.usage import priced
from moorage.worker.ticker import Ticker

log = structlog.get_logger(__name__)

# Days after which an update is dropped if its run never arrives.
PARKED_DAYS_MAX = 30
_PARKED_AT_ONCE = 20
_PARKED_POLL_S = 1.0

# A run that names only its parent gets an order that names all ancestors. Without a limit, a client with a deep chain
# could multiply the size of its request by thousands.
_DERIVED_ORDER_CHARS_MAX = 100 * (SEGMENT_CHARS + 1)
_TOO_DEEP = "a run more than 100 levels below its root needs a dotted_order"
# Clients time out after ten seconds and would repeat requests that were not acknowledged.
_ANSWER_S = 9.0


class Ingest:
    def __init__(
        self,
        *,
        writes: RunWrites,
        projects: ProjectStore,
        prices: Prices,
        attachments: Attachments,
        parked: ParkedUpdateStore,
        feedback: Feedback,
    ) -> None:
        self._buffer = RunBuffer(writes)
        self._places = RunResolver(writes=writes, projects=projects)
        self._projects = projects
        self._prices = prices
        self._attachments = attachments
        self._parked = parked
        self._feedback = feedback
        self._ticker = Ticker("parked updates", self._write_due, every_s=_PARKED_POLL_S)

    @property
    def counts(self) -> Counts:
        return self._buffer.counts

    def start(self) -> None:
        """Start the loop that writes parked updates."""
        self._ticker.start()

    async def stop(self) -> None:
        """Stop the loop and write the waiting runs."""
        await self._ticker.stop()
        await self._buffer.stop()

    async def write_multipart(
        self, caller: Caller, pieces: AsyncIterator[bytes], content_type: str, cost: RequestCost
    ) -> Sequence[MoorageError]:
        """Write the contents of a multipart body durably; returns the refusals of invalid parts.

        Raises InvalidRequestError for a body that is not multipart, and then stores nothing. Raises OverloadedError and
        UnavailableError when the store cannot take it: the same request may be sent again.
        """
        parser, body, size_bytes = MultipartParser(read_boundary(content_type)), SentBody(), 0
        async for piece in pieces:
            size_bytes += len(piece)
            body.add(parser.feed(piece))
        body.add(parser.close())
        await cost.take_json(*body.texts())
        return await self._write_body(caller, body, size_bytes)

    async def write_json(
        self,
        caller: Caller,
        pieces: AsyncIterator[bytes],
        split: Callable[[bytes], Sequence[SentRun]],
        cost: RequestCost,
    ) -> Sequence[MoorageError]:
        """Write the runs of a JSON body, as `split` finds them; `split` raises RefusedRunError for any other body."""
        data = b"".join([piece async for piece in pieces])
        await cost.take_json(data)
        runs = await parse(lambda: split(data), len(data))
        return await self._write_body(caller, SentBody(runs), len(data))

    async def _write_body(self, caller: Caller, body: SentBody, size_bytes: int) -> Sequence[MoorageError]:
        feedback = body.read_feedback()
        try:
            async with asyncio.timeout(_ANSWER_S):
                refused, waiting = await self._write_runs(
                    caller.workspace_id, body.all_runs(), body.attachments, size_bytes
                )
                if waiting:
                    await self._parked.insert(caller.workspace_id, waiting)
                try:
                    if feedback:
                        await self._feedback.accept(caller, feedback)
                except InvalidRequestError as error:
                    refused.append(error)
        except TimeoutError:
            raise UnavailableError("The trace store is slow; try again in a moment") from None
        return refused

    async def _write_runs(
        self,
        workspace_id: UUID,
        sent: Sequence[SentRun],
        attachments: Mapping[str, Sequence[SentAttachment]],
        size_bytes: int,
        *,
        in_turn: bool = False,
    ) -> tuple[list[MoorageError], list[SentRun]]:
        """Write runs durably. Returns the refusals, and the updates that have to wait for their runs.

        `in_turn`: parked updates of the same runs do not come first.
        """
        runs, refused = await parse(lambda: _parse_all(sent), size_bytes)
        refused += await self._places.find(workspace_id, runs)
        placed = [run for run in runs if run.has_place and run.session_id is not None]
        lost = [run for run in runs if not run.has_place]
        if attachments:
            await self._put_attachments(workspace_id, (*placed, *lost), attachments)
        behind = {run.id for run in lost}
        if not in_turn:
            behind |= await self._parked.behind(workspace_id, {run.id for run in placed if run.is_patch})
        waiting = {run for run in (*placed, *lost) if run.is_patch and run.id in behind} if behind else set()
        if bearers := [run for run in placed if run.is_patch and run.sent.attachments and run not in waiting]:
            await self._keep_earlier_attachments(workspace_id, bearers)
        await self._price(workspace_id, placed)
        tiers = await self._projects.tiers(workspace_id, {run.session_id for run in placed if run.session_id})
        # Parked updates find their run by its place, so the place is written even for updates that wait.
        rows = [run.row(workspace_id, tiers, place_only=run in waiting) for run in placed]
        try:
            await self._buffer.add(rows, size_bytes)
        except UnstorableRunsError as error:
            refused.append(error)
        return refused, [run.sent for run in runs if run in waiting]

    async def _put_attachments(
        self, workspace_id: UUID, runs: Sequence[RunWrite], by_run: Mapping[str, Sequence[SentAttachment]]
    ) -> None:
        """Store the attachments, and tell the first operation on each run where they lie."""

        async def put(run: RunWrite) -> None:
            stored = await self._attachments.put(workspace_id, run.trace_id or run.id, by_run[run.id])
            run.sent.attachments = encode(stored)

        first = {run.id: run for run in reversed(runs)}
        await asyncio.gather(*(put(run) for run in first.values() if run.id in by_run))

    async def _keep_earlier_attachments(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> None:
        """Add the stored attachments to those of updates, since an update's list replaces the earlier list."""
        stored = await self._places.read_stored(workspace_id, runs)
        for run in runs:
            if run.sent.attachments and (found := stored.get(run.id)) and found["attachments"]:
                run.sent.attachments = encode({**decode(found["attachments"]), **decode(run.sent.attachments)})

    async def _price(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> None:
        models = {run.model for run in runs if run.model}
        tariffs = await self._prices.find(workspace_id, models) if models else {}
        for run in runs:
            if run.model and run.usage and (price := choose(tariffs[run.model], run.start_us or 0)):
                run.usage = priced(run.usage, price)

    # --- updates that came before their run ---------------------------------------------------------------------------

    async def _write_due(self) -> None:
        """Write the parked updates that are due, and drop old ones."""
        if await self._parked.none_wait():
            return
        while await self.resolve_parked():
            pass
        if expired := await self._parked.remove_old(PARKED_DAYS_MAX):
            log.warning("updates of runs that never came were dropped", updates=expired)

    async def resolve_parked(self) -> int:
        """Write parked updates whose run has arrived, for each run in order of arrival; returns how many. Safe to run
        in many processes, and to repeat.
        """
        async with self._parked.alone() as alone:
            updates = await self._parked.page(_PARKED_AT_ONCE) if alone else ()
            written: list[UUID] = []
            stuck: dict[tuple[UUID, str], ParkedUpdate] = {}
            for update in updates:
                if update.run in stuck:
                    continue
                if await self._write_parked(update):
                    written.append(update.id)
                else:
                    stuck[update.run] = update
            await self._parked.remove(written)
            await self._parked.put_off(stuck.values())
        return len(written)

    async def _write_parked(self, update: ParkedUpdate) -> bool:
        """Write a parked update; False when it has to wait longer."""
        try:
            refused, waiting = await self._write_runs(update.workspace_id, [update.sent], {}, 0, in_turn=True)
        except UnavailableError:
            raise
        except Exception:  # one bad update must not block the others for ever
            log.exception("a parked update was not written", run_id=update.sent.id)
            return False
        for error in refused:
            log.warning("a parked update was refused", run_id=update.sent.id, error=str(error))
        return not waiting


def _parse_all(sent: Sequence[SentRun]) -> tuple[list[RunWrite], list[MoorageError]]:
    runs: list[RunWrite] = []
    refused: list[MoorageError] = []
    for each in sent:
        try:
            runs.append(parse_run(each))
        except RefusedRunError as error:
            refused.append(type(error)(f"run {each.id[:36]}: {error}"))
    return runs, refused


# --- what runs leave out ------------------------------------------------------------------------------------------------


class RunResolver:
    """Most runs contain their project, start and place in the trace. Values that an update leaves out come from its run in
    the same request, else from the store. Values that a child leaves out come from its parent.
    """

    def __init__(self, *, writes: RunWrites, projects: ProjectStore) -> None:
        self._writes = writes
        self._projects = projects

    async def find(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> list[RefusedRunError]:
        """Set session_id, start_us and (except of updates) dotted_order of the runs; returns refusals. Updates of unknown
        runs are left without a place.
        """
        posts = {run.id: run for run in runs if not run.is_patch}
        if patches := [run for run in runs if run.is_patch]:
            await self._complete(workspace_id, patches, posts)
        refused: list[RefusedRunError] = []
        if orphans := [run for run in posts.values() if run.dotted_order is None]:
            refused = await self._adopt(workspace_id, orphans, posts)
        placed = [run for run in runs if run.has_place and (run.is_patch or run.dotted_order is not None)]
        refused += await self._find_projects(workspace_id, placed)
        if unclear := [run for run in patches if run.unclear and run.session_id is not None]:
            stored = await self.read_stored(workspace_id, [run for run in unclear if run.id not in posts])
            for run in unclear:
                run.clarify(posts[run.id].values if run.id in posts else stored.get(run.id, {}))
        return refused

    async def _complete(self, workspace_id: UUID, patches: Sequence[RunWrite], posts: Mapping[str, RunWrite]) -> None:
        """Set the start and the project of updates that leave them out."""
        for run in patches:
            if post := posts.get(run.id):
                run.start_us, run.project = post.start_us, post.project
        if not (missing := [run for run in patches if not run.has_place]):
            return
        wanted = {found for run in missing for found in (run.id, run.trace_id) if found}
        places = await self._writes.read_places(workspace_id, wanted)
        for run in missing:
            if place := places.get(run.id):
                run.session_id, run.start_us = place.session_id, us_of(place.start_at)
                run.trace_id = run.trace_id or (str(place.trace_id) if place.trace_id else None)
            elif run.trace_id in places:  # all of a trace is in one project
                run.session_id = places[run.trace_id].session_id

    async def _find_projects(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> list[RefusedRunError]:
        """Set the ids of the projects that the runs name. The first run that names a project creates it."""
        open_runs = [run for run in runs if run.session_id is None]
        given = {run.project for run in open_runs if isinstance(run.project, UUID)}
        first_starts: dict[str, int] = {}
        for run in open_runs:
            if isinstance(run.project, str) and run.start_us is not None:
                first_starts[run.project] = min(run.start_us, first_starts.get(run.project, run.start_us))
        starts = {name: time_of(start_us) for name, start_us in first_starts.items()}
        ids: dict[UUID | str | None, UUID] = {id_: id_ for id_ in await self._projects.known(workspace_id, given)}
        ids.update(await self._projects.ensure(workspace_id, starts))
        for run in open_runs:
            run.session_id = ids.get(run.project)
        return [
            RefusedRunError(f"run {run.id}: session_id {run.project} is not a project of this workspace")
            for run in open_runs
            if run.session_id is None
        ]

    async def _adopt(
        self, workspace_id: UUID, orphans: Sequence[RunWrite], posts: Mapping[str, RunWrite]
    ) -> list[RefusedRunError]:
        """Set the orders of runs that name only their parent. Returns refusals of runs that lie too deep."""
        orders = {run.id: run.dotted_order for run in posts.values()}
        absent = {parent_id for run in orphans if (parent_id := run.parent_run_id) and parent_id not in posts}
        if places := await self._writes.read_places(workspace_id, absent):
            stored = await self._writes.read_stored(workspace_id, places)
            orders |= {run_id: row["dotted_order"] for run_id, row in stored.items()}
        open_runs: dict[str | None, RunWrite] = {run.id: run for run in orphans}
        too_deep: set[str | None] = set()
        for orphan in orphans:
            # Ancestors first, since a request may hold several generations. A cycle of parents ends where it began.
            line: list[RunWrite] = []
            run_id: str | None = orphan.id
            while run := open_runs.pop(run_id, None):
                line.append(run)
                run_id = run.parent_run_id
            for run in reversed(line):
                order = _order_under(run, orders.get(run.parent_run_id or ""))
                if run.parent_run_id in too_deep or len(order) > _DERIVED_ORDER_CHARS_MAX:
                    too_deep.add(run.id)
                else:
                    orders[run.id] = run.dotted_order = order
                    run.trace_id = order[STAMP_CHARS:SEGMENT_CHARS]
        return [RefusedRunError(f"run {run_id}: {_TOO_DEEP}") for run_id in too_deep]

    async def read_stored(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> dict[str, Row]:
        """Read the stored values of runs whose place is known."""
        places = {
            run.id: RunLocation(run.session_id, time_of(run.start_us), None)
            for run in runs
            if run.session_id is not None and run.start_us is not None
        }
        return await self._writes.read_stored(workspace_id, places)


def _order_under(run: RunWrite, parent_order: str | None) -> str:
    """Write the order of a run below its parent. An unknown parent is assumed to have started with its child."""
    assert run.start_us is not None
    assert run.parent_run_id is not None
    if parent_order is None:
        ancestors = dict.fromkeys([run.trace_id or run.parent_run_id, run.parent_run_id])
        parent_order = ".".join(order_segment(run.start_us, ancestor) for ancestor in ancestors)
    return f"{parent_order}.{order_segment(run.start_us, run.id)}"
