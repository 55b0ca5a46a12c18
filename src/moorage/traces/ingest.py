"""Ingest of trace runs: from a request body to rows that are durable before the client gets its answer.

An invalid run is refused and named in the answer. The other runs of the request are stored anyway, since clients drop a
whole request when it is refused. An update that names no project, and whose run has not arrived, is parked until the
run arrives; it never goes to the default project. Later updates of that run are parked behind it, since the last
written update wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import InvalidRequestError, MoorageError, UnavailableError
from moorage.kernel.request_cost import RequestCost, parse
from moorage.traces.attachments import Attachments, SentAttachment
from moorage.traces.parse_run import RefusedRunError, RunWrite, parse_run
from moorage.traces.prices import Prices, choose
from moorage.traces.records.run_rows import SentRun
from moorage.traces.resolve_runs import RunResolver
from moorage.traces.run_buffer import Counts, RunBuffer, UnstorableRunsError
from moorage.traces.sent_body import MultipartParser, SentBody
from moorage.traces.store.parked_updates import ParkedUpdate, ParkedUpdateStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunWrites
from moorage.traces.usage import priced
from moorage.worker.ticker import Ticker

log = structlog.get_logger(__name__)

# Days after which an update is dropped if its run never arrives.
PARKED_DAYS_MAX = 30
_PARKED_AT_ONCE = 20
_PARKED_POLL_S = 1.0

# Clients time out after ten seconds and would repeat requests that were not acknowledged.
_ANSWER_S = 9.0


class FeedbackSink(Protocol):
    async def accept(self, caller: Caller, items: Sequence[dict[str, Any]]) -> None:
        """Store the items. Raises InvalidRequestError for items that are not feedback."""


class Ingest:
    def __init__(
        self,
        *,
        writes: RunWrites,
        projects: ProjectStore,
        prices: Prices,
        attachments: Attachments,
        parked: ParkedUpdateStore,
        feedback: FeedbackSink,
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
        self, caller: Caller, pieces: AsyncIterator[bytes], boundary: bytes, cost: RequestCost
    ) -> Sequence[MoorageError]:
        """Write the contents of a multipart body durably; returns the refusals of invalid parts.

        Raises InvalidRequestError for a body that is not multipart, and then stores nothing. Raises OverloadedError and
        UnavailableError when the store cannot take it: the same request may be sent again.
        """
        parser, body, size_bytes = MultipartParser(boundary), SentBody(), 0
        async for piece in pieces:
            cost.take(len(piece))
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
        chunks: list[bytes] = []
        async for piece in pieces:
            cost.take(len(piece))
            chunks.append(piece)
        data = b"".join(chunks)
        chunks.clear()
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
    ) -> tuple[list[MoorageError], list[SentRun]]:
        """Write runs durably. Returns the refusals, and the updates that have to wait for their runs."""
        runs, refused = await parse(lambda: _parse_all(sent), size_bytes)
        placed = await self._places.find(workspace_id, runs)
        refused += placed.refused
        if attachments:
            await self._put_attachments(workspace_id, (*placed.runs, *placed.lost), attachments)
        behind = {run.id for run in placed.lost}
        behind |= await self._parked.behind(workspace_id, {run.id for run in placed.runs if run.is_patch})
        refused += await self._write_placed(workspace_id, placed.runs, behind, size_bytes)
        waiting = {run for run in (*placed.lost, *placed.runs) if run.is_patch and run.id in behind}
        return refused, [run.sent for run in runs if run in waiting]

    async def _write_placed(
        self, workspace_id: UUID, runs: Sequence[RunWrite], behind: Collection[str], size_bytes: int
    ) -> list[MoorageError]:
        """Write runs whose place is known; returns the refusals. For updates of runs in `behind`, only the place is
        written, so that the parked updates find their run.
        """
        if bearers := [run for run in runs if run.is_patch and run.sent.attachments and run.id not in behind]:
            await self._keep_earlier_attachments(workspace_id, bearers)
        await self._price(workspace_id, runs)
        tiers = await self._projects.tiers(workspace_id, {run.session_id for run in runs if run.session_id})
        rows = [run.row(workspace_id, tiers, place_only=run.is_patch and run.id in behind) for run in runs]
        try:
            await self._buffer.add(rows, size_bytes)
        except UnstorableRunsError as error:
            return [error]
        return []

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
                if update.run not in stuck:
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
            runs, refused = _parse_all([update.sent])
            placed = await self._places.find(update.workspace_id, runs)
            refused += placed.refused
            refused += await self._write_placed(update.workspace_id, placed.runs, (), 0)
        except UnavailableError:
            raise
        except Exception:  # one bad update must not block the others for ever
            log.exception("a parked update was not written", run_id=update.sent.id)
            return False
        for error in refused:
            log.warning("a parked update was refused", run_id=update.sent.id, error=str(error))
        return not placed.lost


def _parse_all(sent: Sequence[SentRun]) -> tuple[list[RunWrite], list[MoorageError]]:
    runs: list[RunWrite] = []
    refused: list[MoorageError] = []
    for each in sent:
        try:
            runs.append(parse_run(each))
        except RefusedRunError as error:
            refused.append(type(error)(f"run {each.id[:36]}: {error}"))
    return runs, refused
