"""SQL that finds and reads trace runs: the keys of a page, candidates of an index, and whole runs by their keys.

Pages first read keys from narrow columns, then whole runs by their keys: inputs and outputs of all runs of a day are a
thousand times the size of one page. POST and PATCH of a run may be separate rows. Those of the few runs of a page are
merged in Python, since `FINAL` would plan a merge of every column (decision 9).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.store.run_columns import BY_TRACES, READABLE, columns_for, nums_of, runs_for
from moorage.traces.store.selections import EVER, NEVER, TICK, TIME, Position, Selection, bound, time_text

Row = dict[str, Any]
# Project, start time and id of a run: the key of its rows, without the workspace.
Place = tuple[UUID, datetime, UUID]
# Begin and end of a time in which runs began.
Span = tuple[datetime, datetime]
Stored = tuple[Any, ...]

_KEYS = Template("""
SELECT session_id, start_time, id, ifNull(trace_id, id)$fields FROM $runs
WHERE $where ORDER BY start_time $order, id $order LIMIT {limit:UInt32}
""")
# Unmerged rows of a run are separate results, and some rows are of runs that no longer meet the condition. `holds`:
# whether the row meets the condition if it is the whole run; NULL if only the whole run can tell. The setting evaluates
# the index before the read and not in each reader, which finds rare values in half of the time.
_CANDIDATES = Template("""
WITH $holds AS holds
SELECT session_id, start_time, id, ifNull(trace_id, id)$fields
FROM (
    SELECT $columns, _part AS part FROM trace_run_rows WHERE $where AND isNull(deleted_at)
    ORDER BY start_time $order, id $order LIMIT {limit:UInt32})
ORDER BY start_time $order, id $order
SETTINGS use_skip_indexes_on_data_read = 0
""")
_PARTS = Template("SELECT session_id, start_time, id, _part FROM trace_run_rows WHERE $where")
_OLDEST = Template("SELECT minOrNull(start_time) FROM trace_run_rows WHERE $where")
# A run has one row for each write until they are merged, and some lack the trace_id.
_LOCATE = """
SELECT session_id, start_time, id, ifNull(any(trace_id), id) FROM trace_run_keys
WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)}
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time < {until:DateTime64(6, 'UTC')}
GROUP BY session_id, start_time, id ORDER BY start_time DESC, UUIDToNum(session_id) DESC
"""
_ROWS = Template("""
SELECT $columns FROM trace_run_rows
PREWHERE tenant_id = {tenant_id:UUID} AND $where
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time <= {until:DateTime64(6, 'UTC')}
LIMIT {rows_max:UInt32}
""")
_BY_KEYS = (
    "session_id IN {session_ids:Array(UUID)} AND (start_time, id) IN {keys:Array(Tuple(DateTime64(6, 'UTC'), UUID))}"
)
_BY_ID = "id = {id:UUID}"
_KEYS_IN_TRACE = Template(f"""
SELECT session_id, start_time, id, trace_id$fields FROM trace_keys FINAL
PREWHERE $where AND {BY_TRACES} ORDER BY start_time $order, id $order LIMIT {{limit:UInt32}}
""")
# Unmerged rows of the newest runs, mostly one or two for each run.
_NEWEST = Template("""
SELECT $columns FROM trace_run_rows WHERE $where$roots ORDER BY start_time DESC, id DESC LIMIT {rows_max:UInt32}
""")
_ARRIVALS = Template(f"""
SELECT session_id, start_time, id, ifNull(any(trace_id), id), max(ingested_at) AS arrived_at
FROM trace_run_rows WHERE $where$roots AND ingested_at >= {{arrived_since:{TIME}}}
GROUP BY session_id, start_time, id ORDER BY arrived_at, id LIMIT {{limit:UInt32}}
""")
# Some rows of roots lack is_root.
_MAY_BE_ROOTS = " AND ifNull(is_root, true)"
# Rows may lack the trace_id, so these are read too. The keys of the trace then select among them.
_MAY_BE_OF_TRACE = "ifNull(trace_id = {trace_id:UUID}, true)"
_ROWS_MAX = 2**31
# Columns that a statement must read after the wanted ones, to merge rows.
_MERGE_COLUMNS = ("_part", "deleted_at")
# The engine keeps the smallest value of this column, and the last value of every other column.
_LEAST = "first_ingested_at"


class RunKey(NamedTuple):
    """Key of a run's rows without the workspace, and its trace, which is no part of the key."""

    session_id: UUID
    start_time: datetime
    id: UUID
    trace_id: UUID

    @property
    def place(self) -> Place:
        return self[:3]

    @property
    def position(self) -> Position:
        return self.start_time, self.id


class FoundRun(NamedTuple):
    """The key of a run, and the requested fields."""

    key: RunKey
    row: Row


class PageRequest(NamedTuple):
    """Limit, order and start of a page, and the fields to read with the keys. For a single trace these are columns of
    the index of traces.
    """

    limit: int
    newest_first: bool = True
    after: Position | None = None
    fields: tuple[str, ...] = ()


class RunReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    # --- keys of a page -----------------------------------------------------------------------------------------------

    async def page(self, selection: Selection, request: PageRequest) -> list[FoundRun]:
        """Find whole runs of the selection, in all of its time at once. Its fields are those of SHORT: over a short
        time, they cost less here than in a read by key.
        """
        return await self._page_of_whole(*bound(selection), request)

    async def page_of_trace(self, selection: Selection, trace_id: UUID, request: PageRequest) -> list[FoundRun]:
        """Find runs of a trace in the index of traces, with its columns as fields. Some runs may be deleted."""
        where, values = bound(replace(selection, condition=None))
        return await self._ordered(_KEYS_IN_TRACE, where, values | {"trace_nums": nums_of([trace_id])}, request)

    async def candidates(self, selection: Selection, request: PageRequest) -> list[FoundRun]:
        """Find rows through the index of the selection's condition. Their fields: `part`, the part of the table that
        contains the row, and `holds`, whether the run meets the condition if this is its only row (None: only the whole
        run can tell).
        """
        assert selection.condition is not None
        where, values = bound(replace(selection, condition=None))
        return await self._ordered(
            _CANDIDATES,
            f"{where} AND {selection.condition.candidates}",
            {**values, **selection.condition.parameters},
            request._replace(fields=("part", "holds")),
            holds=selection.condition.alone or "NULL",
            columns=columns_for(selection.condition.alone, "trace_id"),
        )

    async def parts(self, selection: Selection, keys: Sequence[RunKey]) -> dict[Place, list[str]]:
        """List the parts of the table that hold the rows of these runs, one entry for each row."""
        where, values = _among(replace(selection, condition=None), keys)
        parts: dict[Place, list[str]] = {}
        for session_id, start_time, run_id, part in await self._clickhouse.rows(_PARTS.substitute(where=where), values):
            parts.setdefault((session_id, start_time, run_id), []).append(part)
        return parts

    async def matching(self, selection: Selection, keys: Sequence[RunKey]) -> list[FoundRun]:
        """Find the runs of these keys that meet the condition of the selection."""
        if not keys:
            return []
        where, values = _among(selection, keys)
        return await self._page_of_whole(where, values, PageRequest(len(keys)))

    async def oldest(self, selection: Selection) -> datetime | None:
        """Find when the first run of the selection's projects began; None if they have no runs."""
        where, values = bound(replace(selection, condition=None))
        found: datetime | None = await self._clickhouse.value(_OLDEST.substitute(where=where), values)
        return found

    async def arrivals(self, selection: Selection, at: datetime, limit: int) -> list[FoundRun]:
        """Find the first runs of which rows arrived since then, in the projects and the time of the selection. Their
        field `arrived_at` is the time of the last row. The condition is not applied, since it needs whole runs.
        """
        where, values = bound(replace(selection, condition=None))
        sql = _ARRIVALS.substitute(where=where, roots=_MAY_BE_ROOTS if selection.of_roots else "")
        rows = await self._clickhouse.rows(sql, values | {"arrived_since": time_text(at), "limit": limit})
        return _found(rows, ["arrived_at"])

    async def locate(self, workspace_id: UUID, ids: Collection[UUID], within: Span = (EVER, NEVER)) -> list[RunKey]:
        """Find runs by their ids, newest first: one may have been sent to two projects, or twice with different start
        times. A short time is much faster, since ids are spread over the whole table.
        """
        values = {"tenant_id": workspace_id, "ids": list(ids), "since": within[0], "until": within[1]}
        return [RunKey(*row) for row in await self._clickhouse.rows(_LOCATE, values)]

    # --- whole runs ---------------------------------------------------------------------------------------------------

    async def rows(self, workspace_id: UUID, keys: Sequence[RunKey], fields: Collection[str]) -> dict[Place, Row]:
        """Read the named fields of these runs, by their places; runs that were deleted are left out."""
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
        return {run.key.place: run.row for run in await self._whole(_BY_KEYS, values, fields)}

    async def rows_of_trace(
        self, workspace_id: UUID, trace_id: UUID, within: Span, fields: Collection[str], rows_max: int
    ) -> dict[Place, Row]:
        """Read the runs of a trace that began within this time, which must be short; nothing if they have too many
        rows. Runs whose rows lack a trace_id may be included.
        """
        values = {"tenant_id": workspace_id, "trace_id": trace_id, "since": within[0], "until": within[1]}
        runs = await self._whole(_MAY_BE_OF_TRACE, values, fields, rows_max=rows_max)
        return {run.key.place: run.row for run in runs}

    async def near(self, workspace_id: UUID, run_id: UUID, within: Span, fields: Collection[str]) -> list[FoundRun]:
        """Read the run from every project that it was sent to, if it began within this time, which must be short. Takes
        one statement instead of `locate` and `rows`.
        """
        values = {"tenant_id": workspace_id, "id": run_id, "since": within[0], "until": within[1]}
        return await self._whole(_BY_ID, values, fields)

    async def newest(
        self, window: Selection, fields: Collection[str], *, limit: int, rows_max: int
    ) -> tuple[list[FoundRun], float]:
        """Read the newest runs of this time in one statement, for a selection that `is_plain`. Returns also the average
        number of rows per run. Reads up to `rows_max` rows, which may give fewer runs than the limit.
        """
        wanted = {*fields, "is_root"}
        sql, values = newest_rows(window, _selected(wanted), rows_max=rows_max)
        rows = await self._clickhouse.rows(sql, values)
        runs = _whole(rows, wanted)
        rows_a_run = len(rows) / max(len(runs), 1)
        if len(rows) == rows_max:  # further rows of the last run may be missing
            last = rows[-1][_columns_of(wanted).index("id")]
            runs = [run for run in runs if run.key.id != last]
        meant = [run.row for run in runs if run.row["is_root"] or not window.of_roots]
        names = (*RunKey._fields, *fields)
        return _found([itemgetter(*names)(row) for row in meant[:limit]], fields), rows_a_run

    async def _whole(
        self, where: str, values: Row, fields: Collection[str], *, rows_max: int = _ROWS_MAX
    ) -> list[FoundRun]:
        """Read rows and merge them; nothing if there are `rows_max` rows, since rows of any run may be missing."""
        sql = _ROWS.substitute(columns=_selected(fields), where=where)
        rows = await self._clickhouse.rows(sql, values | {"rows_max": rows_max})
        return _whole(rows, fields) if len(rows) < rows_max else []

    async def _page_of_whole(self, where: str, values: Row, request: PageRequest) -> list[FoundRun]:
        runs = runs_for("trace_id", where, *request.fields)
        return await self._ordered(_KEYS, where, values, request, runs=runs)

    async def _ordered(
        self, sql: Template, where: str, values: Row, request: PageRequest, **parts: str
    ) -> list[FoundRun]:
        if request.after is not None:
            sign = "<" if request.newest_first else ">"
            where += f" AND (start_time, id) {sign} ({{after_at:{TIME}}}, {{after_id:UUID}})"
            values = values | {"after_at": request.after[0], "after_id": request.after[1]}
        fields = "".join(f", {name}" for name in request.fields)
        text = sql.substitute(parts, where=where, order="DESC" if request.newest_first else "ASC", fields=fields)
        return _found(await self._clickhouse.rows(text, values | {"limit": request.limit}), request.fields)


def newest_rows(window: Selection, columns: str, *, rows_max: int) -> tuple[str, dict[str, Any]]:
    """Write a statement for these columns of the newest runs' rows in this time. Returns also the values it binds."""
    where, values = bound(replace(window, condition=None))
    roots = _MAY_BE_ROOTS if window.of_roots else ""
    return _NEWEST.substitute(columns=columns, where=where, roots=roots), values | {"rows_max": rows_max}


def _among(selection: Selection, keys: Sequence[RunKey]) -> tuple[str, dict[str, Any]]:
    """Write the WHERE clause of the selection for these runs alone. Returns also the values that it binds."""
    times = [key.start_time for key in keys]
    where, values = bound(replace(selection, since=min(times), until=max(times) + TICK))
    where += " AND (session_id, start_time, id) IN {among:Array(Tuple(UUID, DateTime64(6, 'UTC'), UUID))}"
    return where, values | {"among": list({key.place for key in keys})}


def _found(rows: Iterable[Stored], fields: Collection[str]) -> list[FoundRun]:
    names = (*RunKey._fields, *fields)
    return [FoundRun(RunKey(*row[:4]), dict(zip(names, row, strict=True))) for row in rows]


# --- merging ------------------------------------------------------------------------------------------------------


def _columns_of(fields: Collection[str]) -> list[str]:
    wanted = (*RunKey._fields, *fields)
    return list(dict.fromkeys(column for name in wanted for column in READABLE[name]))


def _selected(fields: Collection[str]) -> str:
    columns = (*_columns_of(fields), *_MERGE_COLUMNS)
    return ", ".join(f"trace_run_rows.{column}" if column.isidentifier() else column for column in columns)


def _whole(rows: Iterable[Stored], fields: Collection[str]) -> list[FoundRun]:
    """Merge rows into whole runs, in the order of their first rows; runs that were deleted are left out. `rows` are all
    rows of their runs, with the columns of `_selected`.
    """
    columns = _columns_of(fields)
    place = itemgetter(*(columns.index(name) for name in RunKey._fields[:3]))
    by_place: dict[Stored, list[Stored]] = {}
    for row in rows:
        by_place.setdefault(place(row), []).append(row)
    merged = [_merged(same, columns) for same in by_place.values() if all(row[-1] is None for row in same)]
    return [_run_of(dict(zip(columns, row, strict=False)), fields) for row in merged]


def _merged(rows: list[Stored], columns: Sequence[str]) -> Sequence[Any]:
    if len(rows) == 1:
        return rows[0]
    values, *newer = sorted(rows, key=_written)
    for row in newer:
        values = tuple(old if new is None else new for old, new in zip(values, row, strict=True))
    if _LEAST not in columns:
        return values
    index = columns.index(_LEAST)
    least = min((row[index] for row in rows if row[index] is not None), default=None)
    return (*values[:index], least, *values[index + 1 :])


def _written(row: Stored) -> int:
    """Number of the insert that wrote the row, from the name of its part: the partition, then the inserts' numbers."""
    return int(row[-2].split("_")[1])


def _run_of(stored: Row, fields: Collection[str]) -> FoundRun:
    row = {}
    for name in (*RunKey._fields, *fields):
        values = [stored[column] for column in READABLE[name]]
        row[name] = values[-1] if values[0] is None else values[0]
    row["trace_id"] = row["trace_id"] or row["id"]
    return FoundRun(RunKey(*(row[name] for name in RunKey._fields)), row)
