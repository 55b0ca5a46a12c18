"""Ingest of trace runs: from a request body to rows that are durable before the client gets its answer.

An invalid run is refused and named in the answer. The other runs of the request are stored anyway, since clients drop a
whole request when it is refused. An update that names no project, and whose run has not arrived, is parked until the
run arrives; it never goes to the default project. Later updates of that run are parked behind it, since the last
written update wins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Protocol
from uuid import UUID

import structlog

from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import InvalidRequestError, MoorageError, UnavailableError
from moorage.kernel.request_cost import RequestCost, parse
from moorage.traces.attachments import Attachments, SentAttachment
from moorage.traces.multipart import MultipartParser
from moorage.traces.parse_run import RefusedRunError, RunWrite, SentRun, parse_run
from moorage.traces.prices import Prices, choose
from moorage.traces.records.prices import plain
from moorage.traces.records.run_rows import NO_USAGE, RowKey, RunIdentity, RunRow, RunValues
from moorage.traces.resolve_runs import ResolvedRuns, RunResolver
from moorage.traces.run_buffer import Counts, RunBuffer, UnstorableRunsError
from moorage.traces.sent_body import SentBody
from moorage.traces.store.parked_updates import ParkedUpdate, ParkedUpdateStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunWrites
from moorage.traces.usage import Usage, priced

log = structlog.get_logger(__name__)

# Days after which an update is dropped if its run never arrives.
PARKED_DAYS_MAX = 30
_PARKED_AT_ONCE = 20
_PARKED_POLL_S = 15.0

# Clients time out after ten seconds and would repeat requests that were not acknowledged.
_ANSWER_S = 9.0

_NOTHING_SAID = (None,) * len(NO_USAGE)


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
        self._wake_resolver = asyncio.Event()
        self._resolver: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Counts:
        return self._buffer.counts

    def start(self) -> None:
        """Start the loop that writes parked updates."""
        self._resolver = asyncio.create_task(self._resolve_forever())

    async def stop(self) -> None:
        """Stop the loop and write the waiting runs."""
        if self._resolver is not None:
            self._resolver.cancel()
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
        body.read_feedback()
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
        return await self._write_body(caller, SentBody(list(runs)), len(data))

    async def _write_body(self, caller: Caller, body: SentBody, size_bytes: int) -> Sequence[MoorageError]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._write_all(caller, body, size_bytes)
        except TimeoutError:
            raise UnavailableError("The trace store is slow; try again in a moment") from None

    async def _write_all(self, caller: Caller, body: SentBody, size_bytes: int) -> Sequence[MoorageError]:
        body.runs += _runs_of_lone_attachments(body)
        refused, waiting = await self._write_runs(caller.workspace_id, body.runs, body.attachments, size_bytes)
        if waiting:
            await self._park(caller.workspace_id, waiting)
        if body.feedback:
            try:
                await self._feedback.accept(caller, body.feedback)
            except InvalidRequestError as error:
                refused.append(error)
        return refused

    async def _write_runs(
        self, workspace_id: UUID, sent: Sequence[SentRun], attachments: Sequence[SentAttachment], size_bytes: int
    ) -> tuple[list[MoorageError], list[RunWrite]]:
        """Write runs durably. Returns the refusals, and the updates that have to wait for their runs."""
        runs, refused = await parse(lambda: _read_all(sent), size_bytes)
        placed = await self._places.find(workspace_id, runs)
        refused += placed.refused
        if attachments:
            await self._put_attachments(workspace_id, placed, attachments)
        behind = {run.id for run in placed.lost}
        behind |= await self._parked.behind(workspace_id, {run.id for run in placed.runs if run.is_patch})
        refused += await self._write_placed(workspace_id, placed.runs, behind, size_bytes)
        waiting = {id(run) for run in (*placed.lost, *placed.runs) if run.is_patch and run.id in behind}
        return refused, [run for run in runs if id(run) in waiting]

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
        rows = [_row(workspace_id, run, tiers.get(run.session_id or UUID(int=0))) for run in runs]
        for row, run in zip(rows, runs, strict=True) if behind else ():
            if run.is_patch and run.id in behind:
                row.patched = None
        try:
            await self._buffer.add(rows, size_bytes)
        except UnstorableRunsError as error:
            return [error]
        return []

    async def _put_attachments(
        self, workspace_id: UUID, placed: ResolvedRuns, attachments: Sequence[SentAttachment]
    ) -> None:
        by_run: dict[str, list[SentAttachment]] = {}
        for attachment in attachments:
            by_run.setdefault(attachment.run_id, []).append(attachment)

        async def put(run: RunWrite, mine: Sequence[SentAttachment]) -> None:
            run.sent.attachments = encode(await self._attachments.put(workspace_id, run.trace_id or run.id, mine))

        await asyncio.gather(
            *(put(run, mine) for run in (*placed.runs, *placed.lost) if (mine := by_run.pop(run.id, None)))
        )

    async def _keep_earlier_attachments(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> None:
        """Add the stored attachments to those of updates, since an update's list replaces the earlier list."""
        stored = await self._places.read_stored(workspace_id, runs)
        for run in runs:
            if run.sent.attachments and (found := stored.get(run.id)) and found.attachments:
                run.sent.attachments = encode({**decode(found.attachments), **decode(run.sent.attachments)})

    async def _price(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> None:
        models = {run.model for run in runs if run.model}
        if not models:
            return
        tariffs = await self._prices.find(workspace_id, models)
        for run in runs:
            if run.model and run.usage and (price := choose(tariffs[run.model], run.start_us or 0)):
                run.usage = priced(run.usage, price)

    # --- updates that came before their run ---------------------------------------------------------------------------

    async def _park(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> None:
        updates = [(run.id, run.sent.main, run.sent.payloads, run.sent.attachments) for run in runs]
        await self._parked.insert(workspace_id, updates)
        self._wake_resolver.set()

    async def resolve_parked(self) -> int:
        """Write parked updates whose run has arrived, for each run in order of arrival; returns how many. Safe to run
        in many processes, and to repeat.
        """
        async with self._parked.alone() as alone:
            updates = await self._parked.page(_PARKED_AT_ONCE) if alone else ()
            written: list[UUID] = []
            stuck: dict[tuple[UUID, UUID], ParkedUpdate] = {}
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
            runs, refused = _read_all([_unparked(update)])
            placed = await self._places.find(update.workspace_id, runs)
            refused += placed.refused
            refused += await self._write_placed(update.workspace_id, placed.runs, (), 0)
        except UnavailableError:
            raise
        except Exception:  # one bad update must not block the others for ever
            log.exception("a parked update was not written", run_id=str(update.run_id))
            return False
        for error in refused:
            log.warning("a parked update was refused", run_id=str(update.run_id), error=str(error))
        return not placed.lost

    async def _resolve_forever(self) -> None:
        while True:
            try:
                while await self.resolve_parked():
                    pass
                if expired := await self._parked.remove_old(PARKED_DAYS_MAX):
                    log.warning("updates of runs that never came were dropped", updates=expired)
                next_in_s = await self._parked.next_in_s()
            except UnavailableError as error:
                log.warning("parked updates wait", error=str(error))
                next_in_s = None
            except Exception:
                log.exception("parked updates failed")
                next_in_s = None
            wait_s = _PARKED_POLL_S if next_in_s is None else min(max(next_in_s, 0.2), _PARKED_POLL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake_resolver.wait(), wait_s)
            self._wake_resolver.clear()


def _read_all(sent: Sequence[SentRun]) -> tuple[list[RunWrite], list[MoorageError]]:
    runs: list[RunWrite] = []
    refused: list[MoorageError] = []
    for each in sent:
        try:
            runs.append(parse_run(each))
        except RefusedRunError as error:
            refused.append(type(error)(f"run {each.id[:36]}: {error}"))
    return runs, refused


def _runs_of_lone_attachments(body: SentBody) -> list[SentRun]:
    """Make empty updates for runs of which the body has only attachments."""
    named = {run.id for run in body.runs}
    alone = dict.fromkeys(attachment.run_id for attachment in body.attachments if attachment.run_id not in named)
    return [SentRun(run_id, is_patch=True) for run_id in alone]


def _unparked(update: ParkedUpdate) -> SentRun:
    sent = SentRun(str(update.run_id), is_patch=True)
    sent.main, sent.payloads, sent.attachments = update.main, update.payloads, update.attachments
    return sent


def _row(workspace_id: UUID, run: RunWrite, trace_tier: str | None) -> RunRow:
    assert run.session_id is not None
    assert run.start_us is not None
    key = RowKey(workspace_id, run.session_id, run.start_us, run.id)
    is_root = None if run.dotted_order is None else run.parent_run_id is None
    identity = RunIdentity(run.trace_id, run.parent_run_id, run.dotted_order, is_root, trace_tier or "longlived")
    usage = _usage_columns(run.usage) if run.usage else _NOTHING_SAID
    values = RunValues._make((*run.values, run.sent.attachments, *usage))
    return RunRow(key, identity, None, values) if run.is_patch else RunRow(key, identity, values, None)


def _usage_columns(usage: Usage) -> list[Any]:
    """Make the usage columns. Each has a value, so that together they replace all usage of earlier writes."""
    said = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        encode(usage.prompt_token_details) if usage.prompt_token_details else None,
        encode(usage.completion_token_details) if usage.completion_token_details else None,
        usage.prompt_cost,
        usage.completion_cost,
        usage.total_cost,
        _costs(usage.prompt_cost_details),
        _costs(usage.completion_cost_details),
    )
    return [absent if value is None else value for value, absent in zip(said, NO_USAGE.values(), strict=True)]


def _costs(details: Any) -> bytes | None:
    return encode({kind: plain(cost) for kind, cost in details.items()}) if details else None
