"""SQL that finds and reads trace runs.

A page is read in two steps: keys by narrow columns, then whole runs by their keys, since inputs and outputs of all runs
of a day are a thousand times what one page shows. The second step reads the table beneath the view `trace_runs`: by
full key it may use PREWHERE, and planning the whole view costs more than reading the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.filters import Condition, Scope, time_text

Row = dict[str, Any]

EVER, NEVER = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, tzinfo=UTC)
# A list looks at the newest day first, and at the rest only when that does not fill the page.
_WINDOWS = (timedelta(days=1), timedelta(days=7), timedelta(days=30))
# The runs of a trace begin at most this long after one another: where other runs of a trace are looked for.
TRACE_LASTS = timedelta(days=7)
_TICK = timedelta(microseconds=1)
_AT = "DateTime64(6, 'UTC')"

_KEYS = Template("""
SELECT session_id, start_time, id FROM trace_runs
WHERE $where ORDER BY start_time $order, id $order LIMIT {limit:UInt32}
""")
_OLDEST = Template("SELECT minOrNull(start_time) FROM trace_run_rows WHERE $where")
# One run may have been sent to two projects, or twice with different start times: the newest comes first.
_LOCATE = """
SELECT session_id, start_time, id FROM trace_run_keys
WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)} ORDER BY start_time DESC, session_id
"""
_ROWS = Template("""
SELECT $columns FROM trace_run_rows FINAL
PREWHERE tenant_id = {tenant_id:UUID} AND session_id IN {session_ids:Array(UUID)}
    AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time <= {until:DateTime64(6, 'UTC')}
    AND (start_time, id) IN {keys:Array(Tuple(DateTime64(6, 'UTC'), UUID))}
WHERE isNull(deleted_at)
""")
# All runs of the traces that some runs belong to. They are found by key in two indexes, whenever they began.
_OF_TRACES = """
trace_run_rows FINAL
    PREWHERE tenant_id = {tenant_id:UUID} AND session_id IN {session_ids:Array(UUID)}
        AND (session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_keys
            WHERE tenant_id = {tenant_id:UUID} AND trace_id IN (
                SELECT trace_id FROM trace_run_keys WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)}))
    WHERE isNull(deleted_at)
"""
# What the runs below each run say: their tokens and costs, which are its own when it has none, and who they are.
_BELOW = Template(f"""
SELECT ancestor, $totals FROM (
    SELECT arrayJoin($parent_run_ids) AS ancestor, $columns FROM {_OF_TRACES})
WHERE ancestor IN {{ids:Array(UUID)}} GROUP BY ancestor
""")
_TOTALS = {
    **{name: f"sum({name})" for name in USAGE_FIELDS},
    **{name: f"groupArrayIf(assumeNotNull({name}), isNotNull({name}))" for name in USAGE_DETAILS},
    "first_token_below": "min(first_token_time)",
    "child_run_ids": "arraySort(groupArray((dotted_order, id)))",
    "direct_child_run_ids": "arraySort(groupArrayIf((dotted_order, id), parent_run_id = ancestor))",
}
_TRACE_TIMES = f"SELECT trace_id, min(start_time), max(start_time) FROM {_OF_TRACES} GROUP BY trace_id"

# What the view `trace_runs` says of a column, for statements that read the table beneath it. A PATCH goes before a POST.
_TWINS = (
    "name",
    "run_type",
    "end_time",
    "first_token_time",
    "error",
    "inputs",
    "outputs",
    "extra_without_metadata",
    "metadata_json",
    "events",
    "serialized",
    "reference_example_id",
    "thread_id",
    *USAGE_FIELDS,
    *USAGE_DETAILS,
)
_PREVIEWED_CHARS = 20_000
_EXPRESSIONS = {
    **{name: f"coalesce(patched_{name}, {name})" for name in _TWINS},
    "inputs_head": f"leftUTF8(coalesce(patched_inputs, inputs), {_PREVIEWED_CHARS})",
    "outputs_head": f"leftUTF8(coalesce(patched_outputs, outputs), {_PREVIEWED_CHARS})",
    "tags": "JSONExtract(coalesce(patched_tags, tags, '[]'), 'Array(String)')",
    "parent_run_ids": (
        "arrayMap(segment -> toUUIDOrZero(substring(segment, 23)),"
        " arrayPopBack(splitByChar('.', ifNull(dotted_order, ''))))"
    ),
    "attachments": (
        "multiIf(isNull(patched_attachments), attachments, isNull(attachments), patched_attachments,"
        " jsonMergePatch(attachments, patched_attachments))"
    ),
}
COLUMNS = frozenset(_EXPRESSIONS) | {
    "trace_id",
    "parent_run_id",
    "dotted_order",
    "is_root",
    "trace_tier",
    "ingested_at",
}


class RunKey(NamedTuple):
    session_id: UUID
    start_time: datetime
    id: UUID


class Position(NamedTuple):
    """The run after which a page begins."""

    start_time: datetime
    id: UUID


@dataclass(frozen=True)
class Selection:
    """Runs of a workspace that begin from `since` until before `until` and meet the condition.

    `located`: the condition names runs or traces, so that the time need not narrow what is read.
    """

    workspace_id: UUID
    session_ids: Sequence[UUID] | None
    since: datetime = EVER
    until: datetime = NEVER
    condition: Condition | None = None
    located: bool = False


def scope_of(session_ids: Sequence[UUID] | None) -> Scope:
    """The scope that filters of a selection are compiled for."""
    places = ["tenant_id = {tenant_id:UUID}"]
    if session_ids is not None:
        places.append("session_id IN {session_ids:Array(UUID)}")
    where = " AND ".join(places)
    return Scope(
        runs=f"{where} AND start_time >= {{since:{_AT}}} AND start_time < {{until:{_AT}}}",
        traces=f"{where} AND start_time >= {{traces_since:{_AT}}} AND start_time < {{traces_until:{_AT}}}",
    )


def bound(selection: Selection) -> tuple[str, dict[str, Any]]:
    """The WHERE clause of a selection, and what it binds."""
    clauses = [scope_of(selection.session_ids).runs]
    values: dict[str, Any] = {
        "tenant_id": selection.workspace_id,
        "since": time_text(selection.since),
        "until": time_text(selection.until),
        "traces_since": time_text(_shifted(selection.since, -TRACE_LASTS)),
        "traces_until": time_text(_shifted(selection.until, TRACE_LASTS)),
    }
    if selection.session_ids is not None:
        values["session_ids"] = list(selection.session_ids)
    if selection.condition is not None:
        clauses.append(selection.condition.sql)
        values |= selection.condition.parameters
    return " AND ".join(clauses), values


def _shifted(at: datetime, by: timedelta) -> datetime:
    return at if at in {EVER, NEVER} else min(max(at, EVER + TRACE_LASTS), NEVER - TRACE_LASTS) + by


class RunReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def page(
        self, selection: Selection, *, newest_first: bool, limit: int, after: Position | None
    ) -> list[RunKey]:
        """Up to `limit` keys in the order asked for."""
        selection = _begun(selection, after, newest_first=newest_first)
        found: list[RunKey] = []
        for window in await self._windows(selection, newest_first=newest_first):
            found += await self._keys(window, newest_first=newest_first, limit=limit - len(found), after=after)
            if len(found) >= limit:
                break
        return found

    async def locate(self, workspace_id: UUID, ids: Collection[UUID]) -> list[RunKey]:
        rows = await self._clickhouse.rows(_LOCATE, {"tenant_id": workspace_id, "ids": list(ids)})
        return [RunKey(*row) for row in rows]

    async def rows(self, workspace_id: UUID, keys: Sequence[RunKey], columns: Collection[str]) -> dict[RunKey, Row]:
        """The named columns of the runs, as far as they are there."""
        if not keys:
            return {}
        names = ["session_id", "start_time", "id", *columns]
        times = [key.start_time for key in keys]
        values = {
            "tenant_id": workspace_id,
            "session_ids": list({key.session_id for key in keys}),
            "since": min(times),
            "until": max(times),
            "keys": [(key.start_time, key.id) for key in keys],
        }
        sql = _ROWS.substitute(columns=", ".join(_EXPRESSIONS.get(name, name) for name in names))
        rows = [dict(zip(names, row, strict=True)) for row in await self._clickhouse.rows(sql, values)]
        return {RunKey(row["session_id"], row["start_time"], row["id"]): row for row in rows}

    async def below(self, workspace_id: UUID, keys: Sequence[RunKey], names: Collection[str]) -> dict[UUID, Row]:
        """By run, what those below it add up to: `names` of tokens, costs (None where none has any), details (a list
        of JSON texts), of `child_run_ids` and `direct_child_run_ids` (in the order in which they began), and of
        `first_token_below` (the earliest).
        """
        columns = [f"{_EXPRESSIONS[name]} AS {name}" for name in names if name in _EXPRESSIONS]
        if "first_token_below" in names:
            columns.append(f"{_EXPRESSIONS['first_token_time']} AS first_token_time")
        if any(name.endswith("child_run_ids") for name in names):
            columns += ["id", "parent_run_id", "ifNull(dotted_order, '') AS dotted_order"]
        sql = _BELOW.substitute(
            totals=", ".join(_TOTALS[name] for name in names),
            columns=", ".join(columns),
            parent_run_ids=_EXPRESSIONS["parent_run_ids"],
        )
        rows = await self._clickhouse.rows(sql, _of_traces(workspace_id, keys))
        found = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
        for row in found.values():
            row.update((name, [run_id for _, run_id in row[name]]) for name in names if name.endswith("child_run_ids"))
        return found

    async def trace_times(self, workspace_id: UUID, keys: Sequence[RunKey]) -> dict[UUID, tuple[datetime, datetime]]:
        """By trace: when its first run began, and its last."""
        rows = await self._clickhouse.rows(_TRACE_TIMES, _of_traces(workspace_id, keys))
        return {trace_id: (first, last) for trace_id, first, last in rows}

    async def _keys(
        self, selection: Selection, *, newest_first: bool, limit: int, after: Position | None
    ) -> list[RunKey]:
        where, values = bound(selection)
        if after is not None:
            sign = "<" if newest_first else ">"
            where += f" AND (start_time, id) {sign} ({{after_at:{_AT}}}, {{after_id:UUID}})"
            values |= {"after_at": after.start_time, "after_id": after.id}
        sql = _KEYS.substitute(where=where, order="DESC" if newest_first else "ASC")
        return [RunKey(*row) for row in await self._clickhouse.rows(sql, values | {"limit": limit})]

    async def _windows(self, selection: Selection, *, newest_first: bool) -> list[Selection]:
        if selection.located:
            return [selection]
        if newest_first:
            return list(_downwards(selection))
        oldest = await self._oldest(selection) if selection.since == EVER else None
        return list(_upwards(replace(selection, since=oldest) if oldest else selection))

    async def _oldest(self, selection: Selection) -> datetime | None:
        where, values = bound(replace(selection, condition=None))
        found: datetime | None = await self._clickhouse.value(_OLDEST.substitute(where=where), values)
        return found


def _of_traces(workspace_id: UUID, keys: Sequence[RunKey]) -> dict[str, Any]:
    return {
        "tenant_id": workspace_id,
        "session_ids": list({key.session_id for key in keys}),
        "ids": [key.id for key in keys],
    }


def _begun(selection: Selection, after: Position | None, *, newest_first: bool) -> Selection:
    """The selection without what lies before the page, which the key of the table can skip."""
    if after is None:
        return selection
    if newest_first:
        return replace(selection, until=min(selection.until, after.start_time + _TICK))
    return replace(selection, since=max(selection.since, after.start_time))


def _downwards(selection: Selection) -> Iterator[Selection]:
    """From its end, or from now, in ever longer steps. What lies in the future belongs to the first."""
    upper, now = selection.until, min(selection.until, datetime.now(UTC))
    for length in _WINDOWS:
        lower = _shifted(now, -length)
        if lower <= selection.since:
            break
        yield replace(selection, since=lower, until=upper)
        upper = lower
    yield replace(selection, until=upper)


def _upwards(selection: Selection) -> Iterator[Selection]:
    lower, start = selection.since, selection.since
    for length in _WINDOWS:
        upper = _shifted(start, length)
        if upper >= selection.until:
            break
        yield replace(selection, since=lower, until=upper)
        lower = upper
    yield replace(selection, since=lower)
