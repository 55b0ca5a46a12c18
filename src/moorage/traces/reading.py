"""Reading trace runs: by page, and by key.

Callers name the fields that they want; only those are read. Fields that are not columns of the table: `feedback_stats`,
`child_run_ids`, `direct_child_run_ids`, `first_token_below` and `trace_times`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import NotFoundError, UnavailableError
from moorage.traces.paging import PageCursor, Paging, read_cursor
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.words import SortOrder, time_of
from moorage.traces.searches import selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_columns import READABLE
from moorage.traces.store.run_reads import FoundRun, PageRequest, Place, Row, RunKey, RunReads
from moorage.traces.store.selections import EVER, NEVER, Selection
from moorage.traces.store.trace_reads import ROLLUP_FIELDS, TraceReads, member_columns, roll_up

T = TypeVar("T")
_TIME_ORDERED = 7
_MILLIS_MAX = 10**13  # of the year 2286; callers may send any id
# The time in a time-ordered id is mostly the start of its run, and otherwise on the same day.
_ID_MADE_WITH = timedelta(seconds=1)
_ID_MADE_WITHIN = timedelta(days=1)
# Most traces end within this time.
_TRACE_MOSTLY_LASTS = timedelta(minutes=1)
# POST and PATCH are separate rows until they are merged, and some runs have more rows.
_ROWS_A_RUN_MAX = 3
# Factor by which more rows are read than the last page had.
_SPARE_ROWS = 1.25
_SOME_PROJECT = UUID(int=0)
# Keys are sent as parameters, and the engine limits their length.
_READ_AT_ONCE = 1000


@dataclass(frozen=True)
class FoundRuns:
    """A page of runs. A cursor is None where there is no further page."""

    runs: Sequence[Row] = ()
    next: str | None = None
    previous: str | None = None


@dataclass(frozen=True)
class _Page:
    """Runs of a page, the rows that were already read, and the members of their traces if these are known."""

    found: Sequence[FoundRun] = ()
    rows: Mapping[Place, Row] = field(default_factory=dict)
    members: Sequence[FoundRun] | None = None


class Reading:
    def __init__(self, clickhouse: ClickHouse, feedback: FeedbackStore) -> None:
        self._paging = Paging(clickhouse)
        self._runs = RunReads(clickhouse)
        self._traces = TraceReads(clickhouse)
        self._feedback = feedback

    # --- by page ------------------------------------------------------------------------------------------------------

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
        """Read a page of the runs that the search selects, by start time.

        Unknown projects, and projects of other workspaces, count as empty. Raises InvalidFiltersError (422), and
        BadRequestError (400) for a search that names nothing to search in and for an invalid cursor.
        """
        selection, begin = selection_of(workspace_id, search, indexed=True), read_cursor(cursor, order)
        request = PageRequest(limit + 1, (order == "desc") is not begin.backwards, begin.after)
        page = await self._page(selection, request, set(fields))
        more, keys = len(page.found) > limit, [run.key for run in page.found[:limit]]
        if begin.backwards:
            keys.reverse()
        if not keys:
            return FoundRuns()
        has_previous, has_next = (more, True) if begin.backwards else (begin.after is not None, more)
        return FoundRuns(
            await self.read(workspace_id, keys, fields, page),
            next=PageCursor(keys[-1].position, order).text() if has_next else None,
            previous=PageCursor(keys[0].position, order, backwards=True).text() if has_previous else None,
        )

    async def _page(self, selection: Selection, request: PageRequest, wanted: set[str]) -> _Page:
        if request.after is None and selection.whole_trace and request.limit <= _READ_AT_ONCE:
            return await self._first_page_of_trace(selection, selection.whole_trace, request, wanted)
        if request.after is None and request.newest_first and not selection.located:
            return await self._newest_page(selection, request.limit, wanted)
        return _Page(await self._paging.page(selection, request))

    async def _newest_page(self, selection: Selection, limit: int, wanted: set[str]) -> _Page:
        if selection.is_plain and (recent := self._paging.recent(selection)):
            page, rows_a_run = await self._recent_page(*recent, limit, wanted)
            if len(page.found) == limit:
                self._paging.note(selection, page.found, limit, rows_a_run)
                return page
        readable = wanted & READABLE.keys()
        found = await self._paging.newest(selection, limit, readable)
        return _Page(found, {run.key.place: run.row for run in found if readable <= run.row.keys()})

    async def _recent_page(
        self, window: Selection, rows_a_run: float, limit: int, wanted: set[str]
    ) -> tuple[_Page, float]:
        """Read all runs, or all roots, of a short time, and their descendants, without finding keys first."""
        names = wanted & ROLLUP_FIELDS if window.of_roots else set()
        rows_max = math.ceil(_SPARE_ROWS * rows_a_run * limit)
        (found, rows_a_run), members = await asyncio.gather(
            self._runs.newest(window, wanted & READABLE.keys(), limit=limit, rows_max=rows_max),
            self._traces.members_of_newest(window, names, rows_max=rows_max) if names else _none([]),
        )
        # A run that arrived between the two statements is only in the result of one.
        known = {member.key.place for member in members}
        is_whole = all(run.key.id == run.key.trace_id and run.key.place in known for run in found)
        rows = {run.key.place: run.row for run in found}
        return _Page(found, rows, members if is_whole and names else None), rows_a_run

    async def _first_page_of_trace(
        self, selection: Selection, trace_id: UUID, request: PageRequest, wanted: set[str]
    ) -> _Page:
        """Read the rows while looking up keys and usage. If the whole trace fits into the page, its roll-ups need no
        other read.
        """
        names = wanted & ROLLUP_FIELDS
        columns = tuple(member_columns(names, roots=False)) if names else ()
        found, rows = await asyncio.gather(
            self._paging.page(selection, request._replace(fields=columns)),
            self._rows_of_trace(selection.workspace_id, trace_id, request.limit, wanted & READABLE.keys()),
        )
        return _Page(found, rows, found if names and len(found) < request.limit else None)

    async def _rows_of_trace(
        self, workspace_id: UUID, trace_id: UUID, limit: int, fields: Collection[str]
    ) -> dict[Place, Row]:
        """Read the runs that began soon after the trace's id was made. Other runs are read later, by key."""
        if (made_at := _made_at(trace_id)) is None:
            return {}
        within = made_at - _ID_MADE_WITH, made_at + _TRACE_MOSTLY_LASTS
        try:
            return await self._runs.rows_of_trace(workspace_id, trace_id, within, fields, _ROWS_A_RUN_MAX * limit)
        except UnavailableError:  # with large texts these rows may exceed the memory; the rows of one page do not
            return {}

    # --- by key -------------------------------------------------------------------------------------------------------

    async def get(
        self, workspace_id: UUID, run_id: UUID, *, fields: Collection[str], session_id: UUID | None = None
    ) -> Row:
        """Read one run. Raises NotFoundError for a run that is unknown, deleted, or another workspace's."""
        made_at = _made_at(run_id)
        if made_at and (run := await self._get_near(workspace_id, run_id, made_at, set(fields), session_id)):
            return run
        windows = [(made_at - _ID_MADE_WITHIN, made_at + _ID_MADE_WITHIN)] if made_at else []
        for window in [*windows, (EVER, NEVER)]:
            for key in await self._runs.locate(workspace_id, [run_id], window):
                if session_id in {None, key.session_id} and (found := await self.read(workspace_id, [key], fields)):
                    return found[0]
        raise NotFoundError(f"Run {run_id} not found")

    async def _get_near(
        self, workspace_id: UUID, run_id: UUID, at: datetime, wanted: set[str], session_id: UUID | None
    ) -> Row | None:
        """Read the run if it began when its id was made. Concurrently reads its trace, as if the run were a root."""
        guess = RunKey(session_id or _SOME_PROJECT, at, run_id, run_id)
        within = at - _ID_MADE_WITH, at + _ID_MADE_WITH
        runs, related = await asyncio.gather(
            self._runs.near(workspace_id, run_id, within, wanted & READABLE.keys()),
            self._read_related(workspace_id, [guess], wanted - {"trace_times"}),
        )
        in_project = [run for run in runs if session_id in {None, run.key.session_id}]
        if not in_project:
            return None
        newest = max(in_project, key=lambda run: (run.key.start_time, run.key.session_id))
        if newest.key.trace_id != run_id or "trace_times" in wanted:
            related = await self._read_related(workspace_id, [newest.key], wanted)
        return _completed([newest], related, wanted)[0]

    async def read(
        self, workspace_id: UUID, keys: Sequence[RunKey], fields: Collection[str], page: _Page | None = None
    ) -> list[Row]:
        """Read the runs of these keys in this order; runs that were deleted meanwhile are left out."""
        wanted, page = set(fields), page or _Page()
        found: list[Row] = []
        for at in range(0, len(keys), _READ_AT_ONCE):
            some = keys[at : at + _READ_AT_ONCE]
            rows, related = await asyncio.gather(
                self._runs.rows(
                    workspace_id, [key for key in some if key.place not in page.rows], wanted & READABLE.keys()
                ),
                self._read_related(workspace_id, some, wanted, page.members),
            )
            rows |= page.rows
            found += _completed([FoundRun(key, rows[key.place]) for key in some if key.place in rows], related, wanted)
        return found

    async def _read_related(
        self, workspace_id: UUID, keys: Sequence[RunKey], wanted: set[str], members: Sequence[FoundRun] | None = None
    ) -> _Related:
        names = wanted & ROLLUP_FIELDS if members is None else ()
        ids = [key.id for key in keys]
        found, feedback, times = await asyncio.gather(
            self._traces.members(workspace_id, keys, names) if names else _none(members or []),
            self._feedback.stats_by_run(workspace_id, ids) if "feedback_stats" in wanted else _none({}),
            self._traces.trace_times(workspace_id, keys) if "trace_times" in wanted else _none({}),
        )
        return found, feedback, times


# Members of the runs' traces; feedback by run; times by trace.
_Related = tuple[Sequence[FoundRun], Mapping[UUID, Any], Mapping[UUID, Any]]


def _completed(runs: Sequence[FoundRun], related: _Related, wanted: set[str]) -> list[Row]:
    members, feedback, times = related
    roll_up(runs, members, wanted & ROLLUP_FIELDS)
    for key, row in runs:
        row["feedback_stats"] = feedback.get(key.id, {})
        row["trace_times"] = times.get(key.trace_id)
    return [run.row for run in runs]


def _made_at(run_id: UUID) -> datetime | None:
    """Return when an id was made; None when it holds no time."""
    millis = run_id.int >> 80
    if run_id.version != _TIME_ORDERED or millis >= _MILLIS_MAX:
        return None
    return time_of(millis * 1000)


async def _none(nothing: T) -> T:
    return nothing
