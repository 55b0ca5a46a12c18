"""SQL that finds and reads trace runs.

A page is read in two steps: keys by narrow columns, then whole runs by their keys, since inputs and outputs of all runs
of a day are a thousand times what one page shows. Keys are found newest first: through an index when the condition has
candidates, else in windows that widen until the page is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from string import Template
from typing import Any, NamedTuple, cast
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.store.conditions import Condition
from moorage.traces.store.filled_reads import FilledReads
from moorage.traces.store.row_merging import HOW_MERGED, Stored, merged
from moorage.traces.store.run_columns import BY_TRACES, READABLE, Field, columns_for, nums_of, runs_for
from moorage.traces.store.selections import (
    EVER,
    NEVER,
    TICK,
    TIME,
    Position,
    Selection,
    begun,
    bound,
    downwards,
    stretches,
    upwards,
)

Row = dict[str, Any]

_KEYS = Template("""
SELECT session_id, start_time, id, ifNull(trace_id, id)$fields FROM $runs
WHERE $where ORDER BY start_time $order, id $order LIMIT {limit:UInt32}
""")
# For who reads the newest runs of some time before their keys are known: rows that are not merged, mostly one of a run or
# two. Of rows of roots, some may not say that they are.
_NEWEST = Template("""
SELECT $what FROM trace_run_rows WHERE $where AND $rows
ORDER BY start_time DESC, id DESC LIMIT {rows:UInt32}
""")
_MAY_BE_ROOTS = "ifNull(is_root, true)"
# Rows that are not merged yet come twice here, and others are of runs that no longer meet the condition. `traced` says
# whether the row knows its trace, `whole` whether it has what POST and PATCH tell, and `holds` whether it would be enough if
# it were all of the run. The index is asked before anything is read, not by each reader: what is rare is found in half of
# the time.
_CANDIDATES = Template("""
SELECT session_id, start_time, id, ifNull(trace_id, id)$fields,
    _part, isNotNull(trace_id) AS traced, $whole AS whole, $rest AS holds
FROM (
    SELECT $columns, _part FROM trace_run_rows WHERE $where AND isNull(deleted_at)
    ORDER BY start_time $order, id $order LIMIT {limit:UInt32})
ORDER BY start_time $order, id $order
SETTINGS use_skip_indexes_on_data_read = 0
""")
_WHOLE = "(isNotNull(run_type) AND isNotNull(end_time))"
_ROWS_AMONG = Template("SELECT session_id, start_time, id, _part FROM trace_run_rows WHERE $where")
_OLDEST = Template("SELECT minOrNull(start_time) FROM trace_run_rows WHERE $where")
# Rows of one run are equal, and come as often as it was written until they are merged.
_LOCATE = """
SELECT session_id, start_time, id, trace_id FROM trace_run_keys
WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)}
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time < {until:DateTime64(6, 'UTC')}
"""
_ROWS = Template("""
SELECT $columns FROM trace_run_rows
PREWHERE tenant_id = {tenant_id:UUID} AND $where
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time <= {until:DateTime64(6, 'UTC')}
$limit
""")
# A condition asks for whole runs. It means their fields, and what is read are columns of the table, of the same names.
_RUNS_THAT_MEET = Template("""
WITH $named SELECT $columns FROM trace_run_rows FINAL
PREWHERE tenant_id = {tenant_id:UUID} AND $where
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time <= {until:DateTime64(6, 'UTC')}
WHERE isNull(deleted_at) AND $condition
""")
_BY_KEYS = (
    "session_id IN {session_ids:Array(UUID)} AND (start_time, id) IN {keys:Array(Tuple(DateTime64(6, 'UTC'), UUID))}"
)
_BY_ID = "id = {id:UUID}"
# The runs of a trace are found by key in the index of traces, whenever they began.
_KEYS_IN_TRACE = Template(f"""
SELECT session_id, start_time, id, trace_id$fields FROM trace_keys FINAL
PREWHERE $where AND {BY_TRACES} ORDER BY start_time $order, id $order LIMIT {{limit:UInt32}}
""")
_IN_TRACE = Template(f"""
(session_id, start_time, id) IN (
    SELECT session_id, start_time, id FROM trace_keys FINAL
    PREWHERE $where AND {BY_TRACES} ORDER BY start_time $order, id $order LIMIT {{limit:UInt32}})
""")
# A row may not say its trace, and then its key has to.
_MAY_BE_OF_TRACE = "ifNull(trace_id = {trace_id:UUID}, true)"
# To confirm a candidate costs what reading it costs: first some more than the page has, then so many that it is clear
# whether the index narrows enough.
_CANDIDATES_LATER = (300, 2000)


Place = tuple[UUID, datetime, UUID]
_PLACE = ("session_id", "start_time", "id")


class RunKey(NamedTuple):
    """Where a run lies, and which trace it is of. A trace is looked up by that; it is no part of the key."""

    session_id: UUID
    start_time: datetime
    id: UUID
    trace_id: UUID

    @property
    def place(self) -> Place:
        return self[:3]


class FoundRun(NamedTuple):
    """Its key, and the fields that were asked for beside those of the key. `sure`: it is known to be what was looked for."""

    key: RunKey
    row: Row
    sure: bool = True


class _Candidate(NamedTuple):
    """A row that an index gave: the run if it is all that there is of it, the part where it lies, whether it knows its trace,
    whether it has what POST and PATCH tell, and whether the run would meet the condition if there is no more of it.
    """

    run: FoundRun
    part: str
    traced: bool
    whole: bool
    holds: bool


class _Wanted(NamedTuple):
    """How a page is read."""

    newest_first: bool
    fields: list[str]
    confirmed: bool = True


def _found(row: tuple[Any, ...], wanted: _Wanted) -> FoundRun:
    names = (*_PLACE, *wanted.fields)
    return FoundRun(RunKey(*row[:4]), dict(zip(names, row[:3] + row[4:], strict=True)))


def _among(selection: Selection, keys: Sequence[RunKey]) -> tuple[str, dict[str, Any]]:
    """As `bound`, of these runs alone."""
    times = [key.start_time for key in keys]
    where, values = bound(replace(selection, since=min(times), until=max(times) + TICK))
    where += " AND (session_id, start_time, id) IN {among:Array(Tuple(UUID, DateTime64(6, 'UTC'), UUID))}"
    return where, values | {"among": list({key.place for key in keys})}


class RunReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._rows = FilledReads(clickhouse)

    async def page(
        self,
        selection: Selection,
        *,
        newest_first: bool,
        limit: int,
        after: Position | None,
        fields: Collection[str] = (),
        confirmed: bool = True,
    ) -> list[FoundRun]:
        """Up to `limit` runs in the order asked for, with the named fields of SMALL, which cost less here than by key. Of a
        trace alone the fields are those of its index, and some runs may be such as were deleted.

        `confirmed`: without it, runs of which only an index says that they meet the condition may come when they do not
        fill the page; whoever then reads them by key (`rows`) asks for the condition there, which costs nothing.
        """
        wanted = _Wanted(newest_first, [name for name in fields if name not in _PLACE], confirmed)
        selection = begun(selection, after, newest_first=newest_first)
        if selection.trace_id is not None:
            return await self._of_trace(selection, selection.trace_id, wanted, limit=limit, after=after)
        found: list[FoundRun] = []
        if selection.is_indexed and not selection.located:
            found, after = await self._through_index(selection, wanted, limit=limit, after=after)
            if len(found) >= limit or after is None:
                return found[:limit]
            selection = begun(selection, after, newest_first=newest_first)
        for window in await self._windows(selection, newest_first=newest_first):
            found += await self._find(window, wanted, limit=limit - len(found), after=after)
            if len(found) >= limit:
                break
        return found

    async def _through_index(
        self, selection: Selection, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> tuple[list[FoundRun], Position | None]:
        """As `_by_candidates`. Words are looked for in the newest week first, since each part of the table that lies in the
        time has all of its words looked through.
        """
        found: list[FoundRun] = []
        assert selection.condition is not None
        parts = stretches(selection) if selection.condition.proved and wanted.newest_first else [selection]
        for stretch in parts:
            # The page is full or not by what is known of the newer ones.
            known = wanted._replace(confirmed=wanted.confirmed or stretch is not parts[-1])
            more, after = await self._by_candidates(stretch, known, limit=limit - len(found), after=after)
            found += more
            if len(found) >= limit or after is not None:
                break
        return found, after

    async def _of_trace(
        self, selection: Selection, trace_id: UUID, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> list[FoundRun]:
        where, values = bound(replace(selection, condition=None))
        values |= {"trace_nums": nums_of([trace_id])}
        rows = await self._ordered(_KEYS_IN_TRACE, where, values, wanted, limit=limit, after=after)
        return [_found(row, wanted) for row in rows]

    async def _by_candidates(
        self, selection: Selection, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> tuple[list[FoundRun], Position | None]:
        """What a few rounds of candidates give, and from where on to look further; None when these were all."""
        found: list[FoundRun] = []
        for most in (limit + limit // 4, *_CANDIDATES_LATER):
            where, values = bound(replace(selection, condition=None))
            assert selection.condition is not None
            where += f" AND {selection.condition.candidates}"
            values |= selection.condition.parameters
            candidates = await self._candidates(where, values, selection.condition, wanted, limit=most, after=after)
            fits = len(found) + len(candidates) < min(limit, most)
            if fits and not wanted.confirmed and all(each.traced for each in candidates):
                keys = dict.fromkeys(each.run.key for each in candidates)
                return [*found, *(FoundRun(key, {}, sure=False) for key in keys)], None
            found += await self._confirmed(selection, wanted, candidates)
            if len(candidates) < most:
                return found, None
            after = Position(candidates[-1].run.key.start_time, candidates[-1].run.key.id)
            if len(found) >= limit:
                break
        return found, after

    async def _candidates(
        self, where: str, values: Row, condition: Condition, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> list[_Candidate]:
        """With what is wanted of them where a candidate may be enough; else they are only looked up by their keys."""
        rest = condition.of_candidates()
        whole = _WHOLE
        if rest is None:
            whole = rest = "false"
            wanted = wanted._replace(fields=[])
        columns = columns_for(rest, whole, "trace_id", *wanted.fields)
        rows = await self._ordered(
            _CANDIDATES, where, values, wanted, limit=limit, after=after, whole=whole, rest=rest, columns=columns
        )
        return [_Candidate(_found(row[:-4], wanted), *row[-4:]) for row in rows]

    async def _confirmed(
        self, selection: Selection, wanted: _Wanted, candidates: Sequence[_Candidate]
    ) -> list[FoundRun]:
        """Those of the candidates whose whole run meets the condition, in the same order."""
        keys = {each.run.key.place: each.run.key for each in candidates}
        # Of half a run there is mostly another row: it is not asked for first.
        halves = {each.run.key.place for each in candidates if not each.whole}
        alone, met = await asyncio.gather(
            self._alone(selection, [each for each in candidates if each.run.key.place not in halves]),
            self._meeting(selection, wanted, [keys[place] for place in halves]),
        )
        others = [key for place, key in keys.items() if place not in alone and place not in halves]
        met += await self._meeting(selection, wanted, others)
        found = {run.key.place: run for run in met} | {place: each.run for place, each in alone.items() if each.holds}
        return [found[place] for place in keys if place in found]

    async def _meeting(self, selection: Selection, wanted: _Wanted, keys: Sequence[RunKey]) -> list[FoundRun]:
        """Those of the runs that meet the condition."""
        if not keys:
            return []
        where, values = _among(selection, keys)
        rows = await self._page_of_whole(where, values, wanted, limit=len(keys), after=None)
        return [_found(row, wanted) for row in rows]

    async def _alone(self, selection: Selection, candidates: Sequence[_Candidate]) -> dict[Place, _Candidate]:
        """Those of the candidates that are all that there is of their run. Each lies in the part where it was found: a
        merge may have made one row of two meanwhile, of which the candidate tells nothing.
        """
        if not candidates:
            return {}
        where, values = _among(replace(selection, condition=None), [each.run.key for each in candidates])
        parts: dict[Place, list[str]] = {}
        for *place, part in await self._clickhouse.rows(_ROWS_AMONG.substitute(where=where), values):
            parts.setdefault(cast("Place", tuple(place)), []).append(part)
        return {each.run.key.place: each for each in candidates if parts.get(each.run.key.place) == [each.part]}

    async def locate(
        self, workspace_id: UUID, ids: Collection[UUID], *, since: datetime = EVER, until: datetime = NEVER
    ) -> list[RunKey]:
        """Newest first: a run may have been sent to two projects, or twice with different start times. Only places in the
        time are found, which is much faster when the time is short: ids alone are all over the table.
        """
        values = {"tenant_id": workspace_id, "ids": list(ids), "since": since, "until": until}
        rows = await self._clickhouse.rows(_LOCATE, values)
        keys: dict[Place, RunKey] = {}
        for session_id, start_time, run_id, trace_id in rows:
            if trace_id or (session_id, start_time, run_id) not in keys:
                keys[session_id, start_time, run_id] = RunKey(session_id, start_time, run_id, trace_id or run_id)
        return sorted(keys.values(), key=lambda key: (key.start_time, key.session_id), reverse=True)

    async def rows(
        self, workspace_id: UUID, keys: Sequence[RunKey], fields: Collection[str], selection: Selection | None = None
    ) -> dict[Place, Row]:
        """The named fields of the runs by their places, as far as they are there, and meet the condition of the selection."""
        if not keys:
            return {}
        times = [key.start_time for key in keys]
        values = {
            "tenant_id": workspace_id,
            "session_ids": list({key.session_id for key in keys}),
            "since": min(times),
            "until": max(times),
            "keys": [(key.start_time, key.id) for key in keys],
        }
        if selection is not None:
            values |= _among(selection, keys)[1]
        condition = selection.condition.sql if selection and selection.condition else ""
        return {run.key.place: run.row for run in await self._whole(_BY_KEYS, values, fields, condition=condition)}

    async def rows_of_trace(
        self, selection: Selection, trace_id: UUID, fields: Collection[str], *, newest_first: bool, limit: int
    ) -> dict[Place, Row]:
        """The named fields of the runs that a page of this trace begins with, for who does not wait for their keys."""
        where, values = bound(replace(selection, condition=None))
        values |= {"trace_nums": nums_of([trace_id]), "limit": limit}
        where = _IN_TRACE.substitute(where=where, order=_order(newest_first=newest_first))
        return {run.key.place: run.row for run in await self._whole(where, values, fields)}

    async def rows_of_trace_near(
        self,
        workspace_id: UUID,
        trace_id: UUID,
        since: datetime,
        until: datetime,
        fields: Collection[str],
        rows_max: int,
    ) -> dict[Place, Row]:
        """The same of the runs that began within this time, which has to be short, with others that do not say their trace;
        nothing where they have too many rows. It costs two thirds of what it costs to look up their keys with them.
        """
        values = {"tenant_id": workspace_id, "trace_id": trace_id, "since": since, "until": until}
        runs = await self._whole(_MAY_BE_OF_TRACE, values, fields, rows_max=rows_max)
        return {run.key.place: run.row for run in runs}

    async def newest(
        self, window: Selection, fields: Collection[str], *, limit: int, rows_max: int
    ) -> tuple[list[FoundRun], float]:
        """Up to `limit` runs of this time with the named fields, the newest first, of a selection that `is_plain`: in one
        statement, which costs more than `page` where they are few. Of how many rows a run was made, too: `rows_max` are
        read, which may be too few.
        """
        wanted = _readable(fields)
        columns = list(dict.fromkeys([*_columns_of(wanted), "is_root"]))
        statement, values = newest_rows(window, rows_max=rows_max)
        rows = await self._rows.rows(statement, values, columns, HOW_MERGED)
        found = [(run, _run_of(run, columns, wanted)) for run in _merged(rows, columns)]
        rows_a_run = len(rows) / max(len(found), 1)
        # There may be more of the last one.
        cut = _run_of(rows[-1][: len(columns)], columns, wanted).key if len(rows) == rows_max else None
        is_root = columns.index("is_root")
        meant = [
            each
            for run, each in found
            if (run[is_root] or not window.of_roots) and not (cut and each.key.place[1:] == cut.place[1:])
        ]
        return meant[:limit], rows_a_run

    async def near(
        self, workspace_id: UUID, run_id: UUID, since: datetime, until: datetime, fields: Collection[str]
    ) -> list[FoundRun]:
        """The run, if it began within this time, which has to be short: by each project that it was sent to. It costs
        one statement where `locate` and `rows` take two.
        """
        return await self._whole(
            _BY_ID, {"tenant_id": workspace_id, "id": run_id, "since": since, "until": until}, fields
        )

    async def _whole(
        self, where: str, values: Row, fields: Collection[str], *, condition: str = "", rows_max: int | None = None
    ) -> list[FoundRun]:
        """`rows_max`: nothing where there are as many rows, since those that are left out might be of any run."""
        wanted = _readable(fields)
        columns = _columns_of(wanted)
        if condition:
            meeting = partial(
                _RUNS_THAT_MEET.substitute, named=columns_for(condition), where=where, condition=condition
            )
            runs = await self._rows.rows(lambda what: meeting(columns=what), values, columns)
            return [_run_of(stored, columns, wanted) for stored in runs]
        limit, most = ("", {}) if rows_max is None else ("LIMIT {rows:UInt32}", {"rows": rows_max})
        plainly = partial(_ROWS.substitute, where=where, limit=limit)
        rows = await self._rows.rows(lambda what: plainly(columns=what), values | most, columns, HOW_MERGED)
        if len(rows) == rows_max:
            return []
        return [_run_of(run, columns, wanted) for run in _merged(rows, columns)]

    async def _find(
        self, selection: Selection, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> list[FoundRun]:
        where, values = bound(selection)
        rows = await self._page_of_whole(where, values, wanted, limit=limit, after=after)
        return [_found(row, wanted) for row in rows]

    async def _page_of_whole(
        self, where: str, values: Row, wanted: _Wanted, *, limit: int, after: Position | None
    ) -> list[tuple[Any, ...]]:
        runs = runs_for("trace_id", where, *wanted.fields)
        return await self._ordered(_KEYS, where, values, wanted, limit=limit, after=after, runs=runs)

    async def _ordered(
        self,
        sql: Template,
        where: str,
        values: Row,
        wanted: _Wanted,
        *,
        limit: int,
        after: Position | None,
        **parts: str,
    ) -> list[tuple[Any, ...]]:
        if after is not None:
            sign = "<" if wanted.newest_first else ">"
            where += f" AND (start_time, id) {sign} ({{after_at:{TIME}}}, {{after_id:UUID}})"
            values = values | {"after_at": after.start_time, "after_id": after.id}
        text = sql.substitute(
            parts,
            where=where,
            order=_order(newest_first=wanted.newest_first),
            fields="".join(f", {name}" for name in wanted.fields),
        )
        return await self._clickhouse.rows(text, values | {"limit": limit})

    async def _windows(self, selection: Selection, *, newest_first: bool) -> list[Selection]:
        if selection.located:
            return [selection]
        if newest_first:
            return list(downwards(selection))
        oldest = await self._oldest(selection) if selection.since == EVER else None
        return list(upwards(replace(selection, since=oldest) if oldest else selection))

    async def _oldest(self, selection: Selection) -> datetime | None:
        where, values = bound(replace(selection, condition=None))
        found: datetime | None = await self._clickhouse.value(_OLDEST.substitute(where=where), values)
        return found


def newest_rows(window: Selection, *, rows_max: int) -> tuple[Callable[[str], str], dict[str, Any]]:
    """A statement for what is asked of the rows of the newest runs of this time, and what it binds."""
    where, values = bound(replace(window, condition=None))
    rows = _MAY_BE_ROOTS if window.of_roots else "true"
    return (lambda what: _NEWEST.substitute(what=what, where=where, rows=rows)), values | {"rows": rows_max}


def _readable(fields: Collection[str]) -> dict[str, Field]:
    return {name: READABLE[name] for name in (*_PLACE, "trace_id", *fields)}


def _columns_of(wanted: Mapping[str, Field]) -> list[str]:
    return list(dict.fromkeys(column for field in wanted.values() for column in field.columns))


def _merged(rows: Iterable[Stored], columns: Sequence[str]) -> list[Stored]:
    return merged(rows, columns, [columns.index(name) for name in _PLACE])


def _run_of(stored: Stored, columns: Sequence[str], wanted: Mapping[str, Field]) -> FoundRun:
    by_column = dict(zip(columns, stored, strict=True))
    row = {name: field.value(by_column) for name, field in wanted.items()}
    return FoundRun(RunKey(row["session_id"], row["start_time"], row["id"], row["trace_id"] or row["id"]), row)


def _order(*, newest_first: bool) -> str:
    return "DESC" if newest_first else "ASC"
