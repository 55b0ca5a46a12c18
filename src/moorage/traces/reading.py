"""Reading trace runs: pages of what a search selects, single runs, and the conditions that other rooms export by.

Whoever asks names the fields that are wanted, and nothing else is read. Besides columns of the table these are
`feedback_stats`, `child_run_ids`, `direct_child_run_ids`, `first_token_below` and `trace_times`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, TypeVar
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError
from moorage.traces.families import CHILDREN, add_family, families
from moorage.traces.filter_language import (
    FIELDS,
    And,
    Compare,
    Exists,
    Expression,
    Field,
    FilterSyntaxError,
    In,
    Not,
    Or,
    PairGroup,
    Search,
    parse,
)
from moorage.traces.records.runs import FilterFault, RunsFilter
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS, SortOrder
from moorage.traces.store.conditions import Condition, Scope
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.filters import (
    compile_filter,
    compile_trace_filter,
    compile_tree_filter,
    refuse_dear,
)
from moorage.traces.store.run_columns import READABLE, SMALL
from moorage.traces.store.run_reads import FoundRun, Place, Row, RunKey, RunReads
from moorage.traces.store.selections import EVER, NEVER, TICK, Position, Selection, scope_of
from moorage.traces.store.trace_reads import RunInTrace, TraceReads, columns_in_trace, run_in_trace

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_ORDERED = 7
_MILLIS_MAX = 10**13  # of the year 2286; ids are what callers make of them
# An id that says when it was made is mostly that of a run which began at that moment, and else of one about that time.
_ID_MADE_WITH = timedelta(seconds=1)
_ID_MADE_WITHIN = timedelta(days=1)
_SOME_PROJECT = UUID(int=0)
# Keys travel as parameters, which the engine takes up to some length.
_READ_AT_ONCE = 1000
# Of pages of roots that are read at once: what they are read from is so many times as long as the last one was.
_PAGES = 2
_LENGTH_MIN, _LENGTH_MAX = timedelta(minutes=1), timedelta(hours=3)
_LENGTHS_MAX = 1000
_OF_FAMILIES = frozenset({*USAGE_FIELDS, *USAGE_DETAILS, *CHILDREN, "first_token_below"})
_UNSCOPED = "At least one of 'session', 'id', 'parent_run', 'trace' or 'reference_example' must be specified"


class InvalidFiltersError(InvalidRequestError):
    """Filters of a search that cannot be read; `faults` says which, where and why."""

    code = "invalid_filter"

    def __init__(self, faults: Sequence[FilterFault]) -> None:
        super().__init__("; ".join(f"{fault['field']}: {fault['message']}" for fault in faults))
        self.faults = faults


@dataclass(frozen=True)
class FoundRuns:
    """A page of runs. A cursor is None where there is no further page."""

    runs: Sequence[Row] = ()
    next: str | None = None
    previous: str | None = None


def filter_condition(text: str, *, runs: str, traces: str, prefix: str) -> Condition:
    """What a filter means as SQL over the view `trace_runs`, for statements of other rooms.

    `runs` and `traces` are conditions on tenant_id, session_id and start_time: of the runs that are filtered, and of
    all runs of their traces. They bind `tenant_id`; the parameters of the condition begin with `prefix`.
    Raises FilterSyntaxError (422).
    """
    return compile_filter(parse(text), Scope(runs, traces), prefix=prefix)


# --- what a search selects ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filters:
    """The filters of a search, read."""

    own: Sequence[Expression] = ()
    trace: Expression | None = None
    tree: Expression | None = None


_ROOTS = Filters([Compare("eq", FIELDS["is_root"], True)])


def faults_of(search: RunsFilter) -> list[FilterFault]:
    """What is wrong with the filters of a search; empty when all of them can be read."""
    faults: list[FilterFault] = []
    for name in ("filter", "trace_filter", "tree_filter", "search_filter"):
        try:
            _parsed(getattr(search, name))
        except FilterSyntaxError as error:
            faults.append({"field": name, "message": str(error)})
    return faults


def selection_of(workspace_id: UUID, search: RunsFilter, *, indexed: bool = False) -> Selection:
    """`indexed`: candidates are looked up first, as pages do. Raises InvalidFiltersError, InvalidRequestError for filters
    that are too complex together, and BadRequestError when nothing says where to look.
    """
    if search.id:
        return _compiled(workspace_id, RunsFilter(), Filters([In(FIELDS["id"], tuple(search.id))]), indexed=False)
    if not any((search.session, search.trace, search.parent_run, search.reference_example)):
        raise BadRequestError(_UNSCOPED)
    if faults := faults_of(search):
        raise InvalidFiltersError(faults)
    own = [*_plain_conditions(search), *_all_parsed(search.filter, search.search_filter)]
    filters = Filters(own, _parsed(search.trace_filter), _parsed(search.tree_filter))
    all_of_them = [tree for tree in (*own, filters.trace, filters.tree) if tree is not None]
    asks_when = search.min_feedback_modified_at or search.max_feedback_modified_at
    if asks_when and not any(map(_speaks_of_feedback, all_of_them)):
        raise BadRequestError("When feedback was modified can only be asked together with a condition on feedback")
    return _compiled(workspace_id, search, filters, indexed=indexed)


def _parsed(text: str | None) -> Expression | None:
    return parse(text) if text and not text.isspace() else None


def _all_parsed(*texts: str | None) -> list[Expression]:
    return [tree for tree in map(_parsed, texts) if tree is not None]


def _plain_conditions(search: RunsFilter) -> Iterator[Expression]:
    """The arguments of a search beside its filters, as the same language says them."""
    equal = {
        "trace_id": search.trace,
        "parent_run_id": search.parent_run,
        "run_type": search.run_type,
        "is_root": True if search.execution_order == 1 else search.is_root,
    }
    yield from (Compare("eq", FIELDS[name], value) for name, value in equal.items() if value is not None)
    if search.reference_example:
        yield In(FIELDS["reference_example_id"], tuple(search.reference_example))
    if search.error is not None:
        failed = Exists(FIELDS["error"], None)
        yield failed if search.error else Not(failed)
    if search.query:
        yield Search(None, search.query)


def _compiled(workspace_id: UUID, search: RunsFilter, filters: Filters, *, indexed: bool) -> Selection:
    sessions = search.session or None
    scope = scope_of(sessions)
    conditions = []
    if filters.own:
        conditions.append(compile_filter(And(tuple(filters.own)), scope, prefix="f", indexed=indexed))
    if filters.trace is not None:
        conditions.append(compile_trace_filter(filters.trace, scope, prefix="r"))
    if filters.tree is not None:
        conditions.append(compile_tree_filter(filters.tree, scope, prefix="t"))
    return Selection(
        workspace_id,
        sessions,
        since=max(search.start_time or EVER, EVER),
        until=min(search.end_time or NEVER, NEVER - TICK) + TICK if search.end_time else NEVER,
        condition=_joined(conditions),
        located=any(map(_locates, filters.own)),
        trace_id=_only_trace(filters),
        of_roots=filters == _ROOTS,
        feedback_since=max(search.min_feedback_modified_at or EVER, EVER),
        feedback_until=min(search.max_feedback_modified_at or NEVER, NEVER),
    )


def _only_trace(filters: Filters) -> UUID | None:
    match filters:
        case Filters([Compare("eq", Field(name="trace_id"), UUID() as trace_id)], None, None):
            return trace_id
    return None


def _joined(conditions: Sequence[Condition]) -> Condition | None:
    if not conditions:
        return None
    parameters: dict[str, Any] = reduce(lambda all_, each: {**all_, **each.parameters}, conditions, {})
    candidates, proved = next(((each.candidates, each.proved) for each in conditions if each.candidates), ("", ""))
    sql = " AND ".join(each.sql for each in conditions)
    refuse_dear(sql)
    return Condition(sql, parameters, candidates, proved)


def _speaks_of_feedback(expression: Expression) -> bool:
    match expression:
        case And(parts) | Or(parts):
            return any(map(_speaks_of_feedback, parts))
        case Not(part):
            return _speaks_of_feedback(part)
        case Compare() | In():
            return expression.field.pair is PairGroup.FEEDBACK
    return False


def _locates(expression: Expression) -> bool:
    """Whether it names runs or traces, which are looked up by their keys."""
    match expression:
        case And(parts):
            return any(map(_locates, parts))
        case Compare(operator="eq") | In():
            return expression.field.name in {"id", "trace_id"}
    return False


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
        # How much time the last page of roots took, of projects of a workspace where it was little.
        self._lengths: dict[tuple[UUID, ...], timedelta] = {}

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
        newest_first, known = (order == "desc") is not backwards, _Known()
        with_keys = SMALL.issuperset(fields) and selection.trace_id is None
        if (trace_id := selection.whole_trace) and begin is None and limit < _READ_AT_ONCE:
            page, known = await self._begin_of_trace(
                selection, trace_id, set(fields), newest_first=newest_first, limit=limit + 1
            )
        elif selection.of_roots and newest_first and begin is None and not with_keys:
            page, known = await self._begin_of_roots(selection, set(fields), limit=limit + 1)
        else:
            page = await self._runs.page(
                selection,
                newest_first=newest_first,
                limit=limit + 1,
                after=begin.position if begin else None,
                fields=fields if with_keys else (),
                confirmed=with_keys,
            )
            known = _Known(unsure=None if all(run.sure for run in page) else selection)
        more, page = len(page) > limit, page[:limit]
        if backwards:
            page.reverse()
        keys = [run.key for run in page]
        found = [run.row for run in page] if with_keys else await self.read(workspace_id, keys, fields, known)
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
            self._runs.rows_of_trace(
                selection, trace_id, wanted & READABLE.keys(), newest_first=newest_first, limit=limit
            ),
        )
        is_whole = names and len(page) < limit
        return page, _Known(rows, [run_in_trace(run.key, run.row) for run in page] if is_whole else None)

    async def _begin_of_roots(
        self, selection: Selection, wanted: set[str], *, limit: int
    ) -> tuple[list[FoundRun], _Known]:
        """Where the last page was filled by the newest hours, all is read from these at once, without waiting for keys."""
        place = (selection.workspace_id, *(selection.session_ids or ()))
        newest, known = min(selection.until, datetime.now(UTC)), _Known()
        page: list[FoundRun] = []
        if length := self._lengths.get(place):
            window = replace(selection, since=max(selection.since, newest - _PAGES * length))
            page, known = await self._newest(window, wanted, limit=limit)
        if len(page) < limit:
            page = await self._runs.page(selection, newest_first=True, limit=limit, after=None)
            known = _Known(known.rows)
        length = max(newest - page[-1].key.start_time, _LENGTH_MIN) if len(page) == limit else _LENGTH_MAX
        self._lengths.pop(place, None)
        if length < _LENGTH_MAX:
            self._lengths[place] = length
            if len(self._lengths) > _LENGTHS_MAX:
                del self._lengths[next(iter(self._lengths))]
        return page, known

    async def _newest(self, window: Selection, wanted: set[str], *, limit: int) -> tuple[list[FoundRun], _Known]:
        names = wanted & _OF_FAMILIES
        page, in_traces = await asyncio.gather(
            self._runs.newest(window, wanted & READABLE.keys(), limit=limit),
            self._traces.of_newest(window, names, limit=limit) if names else _none([]),
        )
        # What came between the two statements is in one of them alone.
        there = {run.key.place for run in in_traces}
        complete = all(run.key.id == run.key.trace_id and run.key.place in there for run in page)
        return page, _Known({run.key.place: run.row for run in page}, in_traces if complete else None)

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
