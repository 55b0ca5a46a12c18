"""SQL that finds and reads trace runs: the keys of a page, candidates of an index, and whole runs by their keys.

Pages first read keys from narrow columns, then whole runs by their keys: inputs and outputs of all runs of a day are a
thousand times the size of one page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.store.row_merging import MERGE_COLUMNS, merge_rows
from moorage.traces.store.run_columns import BY_TRACES, READABLE, FieldSql, columns_for, nums_of, runs_for
from moorage.traces.store.selections import EVER, NEVER, TICK, TIME, Position, Selection, bound

Row = dict[str, Any]
# Project, start time and id of a run: the key of its rows, without the workspace.
Place = tuple[UUID, datetime, UUID]

_KEYS = Template("""
SELECT session_id, start_time, id, ifNull(trace_id, id)$fields FROM $runs
WHERE $where ORDER BY start_time $order, id $order LIMIT {limit:UInt32}
""")
# Unmerged rows of a run are separate results, and some rows are of runs that no longer meet the condition. `holds`:
# whether the row meets the condition if it is the whole run; NULL if only the whole run can tell. The setting evaluates
# the index before the read and not in each reader, which finds rare values in half of the time.
_CANDIDATES = Template("""
SELECT session_id, start_time, id, ifNull(trace_id, id), _part, $holds AS holds
FROM (
    SELECT $columns, _part FROM trace_run_rows WHERE $where AND isNull(deleted_at)
    ORDER BY start_time $order, id $order LIMIT {limit:UInt32})
ORDER BY start_time $order, id $order
SETTINGS use_skip_indexes_on_data_read = 0
""")
_PARTS = Template("SELECT session_id, start_time, id, _part FROM trace_run_rows WHERE $where")
_OLDEST = Template("SELECT minOrNull(start_time) FROM trace_run_rows WHERE $where")
# All rows of a run are equal. Until they are merged there is one for each write.
_LOCATE = """
SELECT session_id, start_time, id, trace_id FROM trace_run_keys
WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)}
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time < {until:DateTime64(6, 'UTC')}
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
# Unmerged rows of the newest runs, mostly one or two for each run. Some rows of roots lack is_root.
_NEWEST = Template("""
SELECT $columns FROM trace_run_rows WHERE $where$roots ORDER BY start_time DESC, id DESC LIMIT {rows_max:UInt32}
""")
# Rows may lack the trace_id, so these are read too. The keys of the trace then select among them.
_MAY_BE_OF_TRACE = "ifNull(trace_id = {trace_id:UUID}, true)"
_ROWS_MAX = 2**31


class RunKey(NamedTuple):
    """Key of a run's rows without the workspace, and its trace, which is no part of the key."""

    session_id: UUID
    start_time: datetime
    id: UUID
    trace_id: UUID

    @property
    def place(self) -> Place:
        return self[:3]


class FoundRun(NamedTuple):
    """The key of a run, and the requested fields."""

    key: RunKey
    row: Row


class Candidate(NamedTuple):
    """A row that an index found: the key of its run, the part of the table that contains it, and whether the run meets
    the condition if this is its only row. None: only the whole run can tell.
    """

    key: RunKey
    part: str
    holds: bool | None


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
        where, values = bound(selection)
        return await self._page_of_whole(where, values, request)

    async def page_of_trace(self, selection: Selection, trace_id: UUID, request: PageRequest) -> list[FoundRun]:
        """Find runs of a trace in the index of traces, with its columns as fields. Some runs may be deleted."""
        where, values = bound(replace(selection, condition=None))
        values |= {"trace_nums": nums_of([trace_id])}
        return [_found(row, request) for row in await self._ordered(_KEYS_IN_TRACE, where, values, request)]

    async def candidates(self, selection: Selection, request: PageRequest) -> list[Candidate]:
        """Find rows through the index of the selection's condition."""
        assert selection.condition is not None
        where, values = bound(replace(selection, condition=None))
        where += f" AND {selection.condition.candidates}"
        holds = selection.condition.of_candidates() or "NULL"
        rows = await self._ordered(
            _CANDIDATES,
            where,
            {**values, **selection.condition.parameters},
            request,
            holds=holds,
            columns=columns_for(holds, "trace_id"),
        )
        return [Candidate(RunKey(*row[:4]), *row[4:]) for row in rows]

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

    async def locate(
        self, workspace_id: UUID, ids: Collection[UUID], *, since: datetime = EVER, until: datetime = NEVER
    ) -> list[RunKey]:
        """Find runs by their ids, newest first: one may have been sent to two projects, or twice with different start
        times. A short time is much faster, since ids are spread over the whole table.
        """
        values = {"tenant_id": workspace_id, "ids": list(ids), "since": since, "until": until}
        keys: dict[Place, RunKey] = {}
        for session_id, start_time, run_id, trace_id in await self._clickhouse.rows(_LOCATE, values):
            if trace_id or (session_id, start_time, run_id) not in keys:
                keys[session_id, start_time, run_id] = RunKey(session_id, start_time, run_id, trace_id or run_id)
        return sorted(keys.values(), key=lambda key: (key.start_time, key.session_id), reverse=True)

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
        self,
        workspace_id: UUID,
        trace_id: UUID,
        since: datetime,
        until: datetime,
        fields: Collection[str],
        rows_max: int,
    ) -> dict[Place, Row]:
        """Read the runs of a trace that began within this time, which must be short; nothing if they have too many
        rows. Runs whose rows lack a trace_id may be included.
        """
        values = {"tenant_id": workspace_id, "trace_id": trace_id, "since": since, "until": until}
        runs = await self._whole(_MAY_BE_OF_TRACE, values, fields, rows_max=rows_max)
        return {run.key.place: run.row for run in runs}

    async def near(
        self, workspace_id: UUID, run_id: UUID, since: datetime, until: datetime, fields: Collection[str]
    ) -> list[FoundRun]:
        """Read the run from every project that it was sent to, if it began within this time, which must be short. Takes
        one statement instead of `locate` and `rows`.
        """
        values = {"tenant_id": workspace_id, "id": run_id, "since": since, "until": until}
        return await self._whole(_BY_ID, values, fields)

    async def newest(
        self, window: Selection, fields: Collection[str], *, limit: int, rows_max: int
    ) -> tuple[list[FoundRun], float]:
        """Read the newest runs of this time in one statement, for a selection that `is_plain`. Returns also the average
        number of rows per run. Reads up to `rows_max` rows, which may give fewer runs than the limit.
        """
        wanted = _wanted(fields)
        columns = list(dict.fromkeys([*_columns_of(wanted), "is_root"]))
        sql, values = newest_rows(window, ", ".join(map(_qualified, (*columns, *MERGE_COLUMNS))), rows_max=rows_max)
        rows = await self._clickhouse.rows(sql, values)
        stored = [dict(zip(columns, run, strict=True)) for run in merge_rows(rows, columns, RunKey._fields[:3])]
        rows_a_run = len(rows) / max(len(stored), 1)
        if len(rows) == rows_max:  # further rows of the last run may be missing
            last = rows[-1][columns.index("id")]
            stored = [run for run in stored if run["id"] != last]
        meant = [run for run in stored if run["is_root"] or not window.of_roots]
        return [_run_of(run, wanted) for run in meant[:limit]], rows_a_run

    async def _whole(
        self, where: str, values: Row, fields: Collection[str], *, rows_max: int = _ROWS_MAX
    ) -> list[FoundRun]:
        """Read rows and merge them; nothing if there are `rows_max` rows, since rows of any run may be missing."""
        wanted = _wanted(fields)
        columns = _columns_of(wanted)
        sql = _ROWS.substitute(columns=", ".join(map(_qualified, (*columns, *MERGE_COLUMNS))), where=where)
        rows = await self._clickhouse.rows(sql, values | {"rows_max": rows_max})
        if len(rows) == rows_max:
            return []
        runs = merge_rows(rows, columns, RunKey._fields[:3])
        return [_run_of(dict(zip(columns, run, strict=True)), wanted) for run in runs]

    async def _page_of_whole(self, where: str, values: Row, request: PageRequest) -> list[FoundRun]:
        runs = runs_for("trace_id", where, *request.fields)
        return [_found(row, request) for row in await self._ordered(_KEYS, where, values, request, runs=runs)]

    async def _ordered(
        self, sql: Template, where: str, values: Row, request: PageRequest, **parts: str
    ) -> list[tuple[Any, ...]]:
        if request.after is not None:
            sign = "<" if request.newest_first else ">"
            where += f" AND (start_time, id) {sign} ({{after_at:{TIME}}}, {{after_id:UUID}})"
            values = values | {"after_at": request.after.start_time, "after_id": request.after.id}
        fields = "".join(f", {name}" for name in request.fields)
        text = sql.substitute(parts, where=where, order=_order(request), fields=fields)
        return await self._clickhouse.rows(text, values | {"limit": request.limit})


def newest_rows(window: Selection, columns: str, *, rows_max: int) -> tuple[str, dict[str, Any]]:
    """Write a statement for these columns of the newest runs' rows in this time. Returns also the values it binds."""
    where, values = bound(replace(window, condition=None))
    roots = " AND ifNull(is_root, true)" if window.of_roots else ""
    return _NEWEST.substitute(columns=columns, where=where, roots=roots), values | {"rows_max": rows_max}


def _wanted(fields: Collection[str]) -> dict[str, FieldSql]:
    return {name: READABLE[name] for name in (*RunKey._fields, *fields)}


def _columns_of(wanted: Mapping[str, FieldSql]) -> list[str]:
    return list(dict.fromkeys(column for field in wanted.values() for column in field.columns))


def _found(row: tuple[Any, ...], request: PageRequest) -> FoundRun:
    return FoundRun(RunKey(*row[:4]), dict(zip((*RunKey._fields, *request.fields), row, strict=True)))


def _among(selection: Selection, keys: Sequence[RunKey]) -> tuple[str, dict[str, Any]]:
    """Write the WHERE clause of the selection for these runs alone. Returns also the values that it binds."""
    times = [key.start_time for key in keys]
    where, values = bound(replace(selection, since=min(times), until=max(times) + TICK))
    where += " AND (session_id, start_time, id) IN {among:Array(Tuple(UUID, DateTime64(6, 'UTC'), UUID))}"
    return where, values | {"among": list({key.place for key in keys})}


def _qualified(column: str) -> str:
    return f"trace_run_rows.{column}" if column.isidentifier() else column


def _run_of(stored: Mapping[str, Any], wanted: Mapping[str, FieldSql]) -> FoundRun:
    row = {name: field.value(stored) for name, field in wanted.items()}
    row["trace_id"] = row["trace_id"] or row["id"]
    return FoundRun(RunKey(*(row[name] for name in RunKey._fields)), row)


def _order(request: PageRequest) -> str:
    return "DESC" if request.newest_first else "ASC"
