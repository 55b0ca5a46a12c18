"""Reading trace runs: pages of what a search selects, and single runs.

Whoever asks names the fields that are wanted, and nothing else is read. Besides columns of the table these are
`feedback_stats`, `child_run_ids`, `direct_child_run_ids`, `first_token_below` and `trace_times`.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError, NotFoundError, UnavailableError
from moorage.traces.families import CHILDREN, add_family, families
from moorage.traces.page_lengths import PageGuess, PageLengths
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS, SortOrder
from moorage.traces.searches import selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_columns import READABLE, SMALL
from moorage.traces.store.run_reads import FoundRun, Place, Row, RunKey, RunReads
from moorage.traces.store.selections import EVER, NEVER, Position, Selection, shifted
from moorage.traces.store.trace_reads import RowsInTraces, RunInTrace, TraceReads, columns_in_trace, run_in_trace

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_ORDERED = 7
_MILLIS_MAX = 10**13  # of the year 2286; ids are what callers make of them
# An id that says when it was made is mostly that of a run which began at that moment, and else of one about that time.
_ID_MADE_WITH = timedelta(seconds=1)
_ID_MADE_WITHIN = timedelta(days=1)
# Most traces are over by then; of a longer one the rest is read when its keys are known.
_TRACE_MOSTLY_LASTS = timedelta(minutes=1)
# Of a trace that fits into a page: POST and PATCH lie apart until they are merged, and some runs have more rows.
_ROWS_A_RUN_MAX = 3
_SOME_PROJECT = UUID(int=0)
# Rows that are read of the newest page, of as many as it took the last time.
_SPARE = 1.25
# Keys travel as parameters, which the engine takes up to some length.
_READ_AT_ONCE = 1000
_OF_FAMILIES = frozenset({*USAGE_FIELDS, *USAGE_DETAILS, *CHILDREN, "first_token_below"})


@dataclass(frozen=True)
class FoundRuns:
    """A page of runs. A cursor is None where there is no further page."""

    runs: Sequence[Row] = ()
    next: str | None = None
    previous: str | None = None


# --- cursors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cursor:
    """Where a page begins: after a run, in the order of the search or against it."""

    position: Position
    order: SortOrder
    backwards: bool = False

    def text(self) -> str:
        at = self.position.start_time.isoformat()
        data = orjson.dumps([at, str(self.position.id), self.order, self.backwards])
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def read_cursor(text: str | None, order: SortOrder) -> Cursor | None:
    """Raises BadRequestError for what was not given out as a cursor of a search in this order."""
    if not text:
        return None
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        at, run_id, cursor_order, backwards = orjson.loads(data)
        position = Position(datetime.fromisoformat(at), UUID(run_id))
        valid = cursor_order == order and isinstance(backwards, bool) and EVER <= position.start_time <= NEVER
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise BadRequestError("Invalid cursor: give one from an earlier page of the same search, in the same order")
    return Cursor(position, order, backwards)


# --- verbs --------------------------------------------------------------------------------------------------------


class Reading:
    def __init__(self, clickhouse: ClickHouse, feedback: FeedbackStore) -> None:
        self._runs = RunReads(clickhouse)
        self._traces = TraceReads(clickhouse)
        self._feedback = feedback
        self._lengths = PageLengths()

    async def query(
        self,
        workspace_id: UUID,
        search: RunsFilter,
        *,
        fields: Collection[str],
        order: SortOrder = "desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> FoundRuns:
        """A page of the runs that the search selects, by start time.

        Runs of projects that are unknown, or not this workspace's, are none. Raises InvalidFiltersError (422) and
        BadRequestError (400: nothing to look in, or not a cursor).
        """
        selection, begin = selection_of(workspace_id, search, indexed=True), read_cursor(cursor, order)
        backwards = begin is not None and begin.backwards
        newest_first = (order == "desc") is not backwards
        if (trace_id := selection.whole_trace) and begin is None and limit < _READ_AT_ONCE:
            page, known = await self._begin_of_trace(
                selection, trace_id, set(fields), newest_first=newest_first, limit=limit + 1
            )
        elif newest_first and begin is None and not selection.located:
            page, known = await self._begin_of_newest(selection, set(fields), limit=limit + 1)
        else:
            after = begin.position if begin else None
            page, known = await self._page(selection, fields, newest_first=newest_first, limit=limit + 1, after=after)
        more, page = len(page) > limit, page[:limit]
        if backwards:
            page.reverse()
        keys = [run.key for run in page]
        found = await self.read(workspace_id, keys, fields, known)
        if not keys:
            return FoundRuns(found)
        onwards = Cursor(Position(keys[-1].start_time, keys[-1].id), order).text()
        back = Cursor(Position(keys[0].start_time, keys[0].id), order, backwards=True).text()
        if backwards:
            return FoundRuns(found, next=onwards, previous=back if more else None)
        return FoundRuns(found, next=onwards if more else None, previous=back if begin else None)

    async def _begin_of_trace(
        self, selection: Selection, trace_id: UUID, wanted: set[str], *, newest_first: bool, limit: int
    ) -> tuple[list[FoundRun], _Known]:
        """The runs are read while their keys are looked up, with what they add to one another: a trace that fits into the
        page is all that its runs add up to.
        """
        names = wanted & _OF_FAMILIES
        columns = columns_in_trace(names, roots=False) if names else ()
        page, rows = await asyncio.gather(
            self._runs.page(selection, newest_first=newest_first, limit=limit, after=None, fields=columns),
            self._rows_of_trace(selection, trace_id, wanted & READABLE.keys(), newest_first=newest_first, limit=limit),
        )
        is_whole = names and len(page) < limit
        return page, _Known(rows, [run_in_trace(run.key, run.row) for run in page] if is_whole else None)

    async def _rows_of_trace(
        self, selection: Selection, trace_id: UUID, fields: Collection[str], *, newest_first: bool, limit: int
    ) -> dict[Place, Row]:
        """Of the runs that the page of a trace begins with most, and maybe of others."""
        if (made_at := _made_at(trace_id)) is None:
            return await self._runs.rows_of_trace(selection, trace_id, fields, newest_first=newest_first, limit=limit)
        since, until = made_at - _ID_MADE_WITH, made_at + _TRACE_MOSTLY_LASTS
        rows_max = _ROWS_A_RUN_MAX * limit
        try:
            return await self._runs.rows_of_trace_near(
                selection.workspace_id, trace_id, since, until, fields, rows_max=rows_max
            )
        except UnavailableError:  # of large texts these rows may be more than memory holds, where the page is not
            return {}

    async def _page(
        self, selection: Selection, fields: Collection[str], *, newest_first: bool, limit: int, after: Position | None
    ) -> tuple[list[FoundRun], _Known]:
        """Short fields are read with the keys."""
        with_keys = SMALL.issuperset(fields) and selection.trace_id is None
        page = await self._runs.page(
            selection,
            newest_first=newest_first,
            limit=limit,
            after=after,
            fields=fields if with_keys else (),
            confirmed=with_keys,
        )
        if with_keys:
            return page, _Known({run.key.place: run.row for run in page})
        return page, _Known(unsure=None if all(run.sure for run in page) else selection)

    async def _begin_of_newest(
        self, selection: Selection, wanted: set[str], *, limit: int
    ) -> tuple[list[FoundRun], _Known]:
        """Where the last page was filled by the newest hours, it is looked for in these first: who shows a list asks for it
        again and again. All runs, or all roots, are read from these at once, without waiting for keys.
        """
        page: list[FoundRun] = []
        known, rows_a_run, by_time = _Known(), None, True
        if guess := self._lengths.guess(selection):
            rows_a_run, by_time = guess.rows_a_run, guess.by_time
            if selection.is_plain:
                page, known, rows_a_run, by_time = await self._newest(guess, wanted, limit=limit)
            else:
                window = guess.window.scanned()
                page, known = await self._page(window, wanted, newest_first=True, limit=limit, after=None)
        if len(page) < limit:
            page, known = await self._page(selection, wanted, newest_first=True, limit=limit, after=None)
        by_time = by_time and all(_says_when_it_began(run.key) for run in page)
        oldest = page[-1].key.start_time if len(page) == limit else None
        self._lengths.note(selection, oldest, rows_a_run, by_time=by_time)
        return page, known

    async def _newest(
        self, guess: PageGuess, wanted: set[str], *, limit: int
    ) -> tuple[list[FoundRun], _Known, float, bool]:
        """With how many rows a run had, and whether their traces may be looked up by time again."""
        names = wanted & _OF_FAMILIES if guess.window.of_roots else set()
        rows_max = math.ceil(_SPARE * guess.rows_a_run * limit)
        (page, rows_a_run), rows_in_traces = await asyncio.gather(
            self._runs.newest(guess.window, wanted & READABLE.keys(), limit=limit, rows_max=rows_max),
            self._traces_of_newest(guess, names, rows_max=rows_max) if names else _none(None),
        )
        known = {run.key.place: run.row for run in page}
        if rows_in_traces is None:
            return page, _Known(known), rows_a_run, guess.by_time and not names
        in_traces = rows_in_traces.of({run.key.trace_id for run in page})
        # What came between the two statements is in one of them alone.
        there = {run.key.place for run in in_traces}
        complete = all(run.key.id == run.key.trace_id and run.key.place in there for run in page)
        return page, _Known(known, in_traces if complete else None), rows_a_run, guess.by_time

    async def _traces_of_newest(
        self, guess: PageGuess, names: Collection[str], *, rows_max: int
    ) -> RowsInTraces | None:
        """None where traces of other projects are too many to look among."""
        if not guess.by_time:
            return await self._traces.of_newest(guess.window, names, rows_max=rows_max)
        began = shifted(guess.window.since, -_ID_MADE_WITH), shifted(guess.window.until, _ID_MADE_WITH)
        try:
            return await self._traces.of_time(guess.window, names, began=began)
        except UnavailableError:
            return None

    async def get(
        self, workspace_id: UUID, run_id: UUID, *, fields: Collection[str], session_id: UUID | None = None
    ) -> Row:
        """Raises NotFoundError for a run that is unknown, deleted, or not this workspace's."""
        made_at = _made_at(run_id)
        if made_at and (run := await self._get_near(workspace_id, run_id, made_at, set(fields), session_id)):
            return run
        for since, until in _when(made_at):
            for key in await self._runs.locate(workspace_id, [run_id], since=since, until=until):
                if session_id in {None, key.session_id} and (found := await self.read(workspace_id, [key], fields)):
                    return found[0]
        raise NotFoundError(f"Run {run_id} not found")

    async def _get_near(
        self, workspace_id: UUID, run_id: UUID, at: datetime, wanted: set[str], session_id: UUID | None
    ) -> Row | None:
        """The run, when it began as its id was made. What is beside it is read meanwhile, as if it were a root."""
        guess = RunKey(session_id or _SOME_PROJECT, at, run_id, run_id)
        since, until = at - _ID_MADE_WITH, at + _ID_MADE_WITH
        runs, beside = await asyncio.gather(
            self._runs.near(workspace_id, run_id, since, until, wanted & READABLE.keys()),
            self._beside(workspace_id, [guess], wanted - {"trace_times"}),
        )
        mine = [run for run in runs if session_id in {None, run.key.session_id}]
        if not mine:
            return None
        newest = max(mine, key=lambda run: (run.key.start_time, run.key.session_id))
        if newest.key.trace_id != run_id or "trace_times" in wanted:
            beside = await self._beside(workspace_id, [newest.key], wanted)
        return beside.completed([newest], wanted)[0]

    async def read(
        self, workspace_id: UUID, keys: Sequence[RunKey], fields: Collection[str], known: _Known | None = None
    ) -> list[Row]:
        """The runs of these keys in this order, without those that were deleted meanwhile, or turn out not to be meant."""
        found: list[Row] = []
        for at in range(0, len(keys), _READ_AT_ONCE):
            some = keys[at : at + _READ_AT_ONCE]
            found += await self._read_some(workspace_id, some, set(fields), known or _Known())
        return found

    async def _read_some(
        self, workspace_id: UUID, keys: Sequence[RunKey], wanted: set[str], known: _Known
    ) -> list[Row]:
        unknown = [key for key in keys if key.place not in known.rows]
        rows, beside = await asyncio.gather(
            self._runs.rows(workspace_id, unknown, wanted & READABLE.keys(), known.unsure),
            self._beside(workspace_id, keys, wanted, known.in_traces),
        )
        rows |= known.rows
        return beside.completed([FoundRun(key, rows[key.place]) for key in keys if key.place in rows], wanted)

    async def _beside(
        self,
        workspace_id: UUID,
        keys: Sequence[RunKey],
        wanted: set[str],
        in_traces: Sequence[RunInTrace] | None = None,
    ) -> _Beside:
        names = wanted & _OF_FAMILIES if in_traces is None else ()
        ids = [key.id for key in keys]
        found, feedback, times = await asyncio.gather(
            self._traces.in_traces(workspace_id, keys, names) if names else _none(in_traces or []),
            self._feedback.stats_by_run(workspace_id, ids) if "feedback_stats" in wanted else _none({}),
            self._traces.trace_times(workspace_id, keys) if "trace_times" in wanted else _none({}),
        )
        return _Beside(found, feedback, times)


@dataclass(frozen=True)
class _Known:
    """What was read before all keys of a page were known: runs by their places, and all runs of their traces. `unsure`: the
    selection, when the keys may be of some runs that do not meet its condition.
    """

    rows: Mapping[Place, Row] = field(default_factory=dict)
    in_traces: Sequence[RunInTrace] | None = None
    unsure: Selection | None = None


@dataclass(frozen=True)
class _Beside:
    """What is read beside the runs of a page: other runs of their traces; feedback by run; times by trace."""

    in_traces: Sequence[RunInTrace]
    feedback: Mapping[UUID, Any]
    times: Mapping[UUID, Any]

    def completed(self, runs: Sequence[FoundRun], wanted: Collection[str]) -> list[Row]:
        names = _OF_FAMILIES.intersection(wanted)
        found = families(self.in_traces, [run.key for run in runs]) if names else {}
        for key, row, _ in runs:
            if names:
                add_family(row, found[key], names)
            row["feedback_stats"] = self.feedback.get(key.id, {})
            row["trace_times"] = self.times.get(key.trace_id)
        return [run.row for run in runs]


def _says_when_it_began(root: RunKey) -> bool:
    made_at = _made_at(root.trace_id)
    return made_at is not None and abs(made_at - root.start_time) < _ID_MADE_WITH


def _made_at(run_id: UUID) -> datetime | None:
    """When an id was made, where it says so."""
    millis = run_id.int >> 80
    if run_id.version != _TIME_ORDERED or millis >= _MILLIS_MAX:
        return None
    return _EPOCH + timedelta(milliseconds=millis)


def _when(made_at: datetime | None) -> Iterator[tuple[datetime, datetime]]:
    """Where in time to look for a run."""
    if made_at is not None:
        yield made_at - _ID_MADE_WITHIN, made_at + _ID_MADE_WITHIN
    yield EVER, NEVER


async def _none(nothing: T) -> T:
    return nothing
