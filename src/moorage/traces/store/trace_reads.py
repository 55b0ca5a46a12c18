"""SQL that reads what runs say in their traces: who is above them, their tokens and costs, when a trace began and ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.traces.records.run_rows import NO_USAGE
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_columns import BY_TRACES, nums_of
from moorage.traces.store.run_reads import RunKey, newest_rows
from moorage.traces.store.selections import TRACE_LASTS, Selection, bound, scope_of, shifted

# All runs of some traces. They are found by key in the index of traces, whenever they began.
_OF_TRACES = f"""
trace_run_rows FINAL
    PREWHERE tenant_id = {{tenant_id:UUID}} AND session_id IN {{session_ids:Array(UUID)}}
        AND (session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_keys WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES})
    WHERE isNull(deleted_at)
"""
# Ids come as bytes, since an object for each of a row costs more than all the rest of it.
_IN_TRACES = Template("""
SELECT UUIDToNum(session_id), start_time, UUIDToNum(id), UUIDToNum(trace_id), $columns FROM trace_keys FINAL
PREWHERE $traces WHERE $condition
""")
_NEAR = """tenant_id = {tenant_id:UUID}
    AND start_time >= {traces_since:DateTime64(6, 'UTC')} AND start_time < {traces_until:DateTime64(6, 'UTC')}"""
# Ids that say when they were made lie in the order of that time.
_BY_TIME = "UUIDToNum(trace_id) >= {first_num:FixedString(16)} AND UUIDToNum(trace_id) <= {last_num:FixedString(16)}"
# A project with few runs may lie in a workspace with many. The engine refuses before it reads anything.
_BY_TIME_MOST: Settings = {"max_rows_to_read": 20_000}
# What a run adds to those above it, as it is stored.
_ADDED = {
    **dict.fromkeys((*USAGE_FIELDS, *USAGE_DETAILS), ("patched_usage", "usage")),
    "first_token_below": ("patched_first_token_time", "first_token_time"),
}
_PARENTS = "parent_run_ids"
# A root has all of its trace below it. Of a page of other runs, the rest of a large trace is of no concern.
_IN_FAMILIES = """(has({ids:Array(UUID)}, id) OR has({roots:Array(UUID)}, trace_id)
    OR hasAny(splitByChar(',', ifNull(parent_run_ids, '')), arrayMap(id -> toString(id), {ids:Array(UUID)})))"""
_ABSENT = {name: sign.decode() if isinstance(sign, bytes) else str(sign) for name, sign in NO_USAGE.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRACE_TIMES = f"SELECT trace_id, min(start_time), max(start_time) FROM {_OF_TRACES} GROUP BY trace_id"


class RunInTrace(NamedTuple):
    """What a run says and adds to those above it, as far as it was asked for: usage by its fields, as texts, of details as
    JSON; None where it has none.
    """

    key: RunKey
    parent_run_ids: list[UUID]
    first_token_time: datetime | None
    usage: dict[str, str | None] | None


class RowsInTraces(NamedTuple):
    """Rows of the index of traces: their keys, with the bytes of ids, and these columns."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]

    def of(self, trace_ids: Collection[UUID]) -> list[RunInTrace]:
        nums = {trace_id.bytes for trace_id in trace_ids}
        id_of = cache(_id_of)  # a run says its project and its trace, as others do
        return [
            run_in_trace(
                RunKey(id_of(session), start_time, id_of(run), id_of(trace)),
                dict(zip(self.columns, stored, strict=True)),
            )
            for session, start_time, run, trace, *stored in self.rows
            if trace in nums
        ]


class TraceReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def in_traces(self, workspace_id: UUID, keys: Sequence[RunKey], names: Collection[str]) -> list[RunInTrace]:
        """These runs and those below them, with what they say of what is named. Unless who is below is asked for, those
        alone that say something: each names all that are above it.
        """
        roots = [key.id for key in keys if key.id == key.trace_id]
        columns = columns_in_trace(names, roots=len(roots) == len(keys))
        conditions = [f"({_adds(columns)})"] if _ADDED.keys() >= set(names) else []
        conditions += [_IN_FAMILIES] if len(roots) < len(keys) else []
        times = [key.start_time for key in keys]
        values = {
            "tenant_id": workspace_id,
            "trace_nums": nums_of({key.trace_id for key in keys}),
            "traces_since": shifted(min(times), -TRACE_LASTS),
            "traces_until": shifted(max(times), TRACE_LASTS),
        }
        if _IN_FAMILIES in conditions:
            values |= {"ids": [key.id for key in keys], "roots": roots}
        rows = await self._in_traces(f"{_NEAR} AND {BY_TRACES}", " AND ".join(conditions) or "true", columns, values)
        return rows.of({key.trace_id for key in keys})

    async def of_newest(self, window: Selection, names: Collection[str], *, rows_max: int) -> RowsInTraces:
        """The same of the roots that `RunReads.newest` finds, with all roots that were there, for who does not wait for
        their keys.
        """
        newest, values = newest_rows(window, rows_max=rows_max)
        traces = newest("UUIDToNum(ifNull(trace_id, id))")
        return await self._of_roots(f"{_NEAR} AND UUIDToNum(trace_id) IN ({traces})", names, values)

    async def of_time(
        self, window: Selection, names: Collection[str], *, began: tuple[datetime, datetime]
    ) -> RowsInTraces:
        """The same of all traces of these projects whose ids say that they began in this time: it costs two thirds of what
        it costs to look up the roots. Raises UnavailableError where that would be to look at too many.
        """
        scope, values = scope_of(window.session_ids).traces, bound(replace(window, condition=None))[1]
        values |= {"first_num": _num_of_time(began[0]), "last_num": _num_of_time(began[1], last=True)}
        return await self._of_roots(f"{scope} AND {_BY_TIME}", names, values, _BY_TIME_MOST)

    async def _of_roots(
        self, traces: str, names: Collection[str], values: Mapping[str, Any], settings: Settings | None = None
    ) -> RowsInTraces:
        columns = columns_in_trace(names, roots=True)
        condition = f"({_adds(columns)} OR id = trace_id)" if _ADDED.keys() >= set(names) else "true"
        return await self._in_traces(traces, condition, columns, values, settings)

    async def _in_traces(
        self,
        traces: str,
        condition: str,
        columns: Sequence[str],
        values: Mapping[str, Any],
        settings: Settings | None = None,
    ) -> RowsInTraces:
        sql = _IN_TRACES.substitute(columns=", ".join(columns), traces=traces, condition=condition)
        return RowsInTraces(columns, await self._clickhouse.rows(sql, values, settings))

    async def trace_times(self, workspace_id: UUID, keys: Sequence[RunKey]) -> dict[UUID, tuple[datetime, datetime]]:
        """By trace: when its first run began, and its last."""
        rows = await self._clickhouse.rows(_TRACE_TIMES, _of_traces(workspace_id, keys))
        return {trace_id: (first, last) for trace_id, first, last in rows}


def _id_of(num: bytes) -> UUID:
    return UUID(bytes=num)


def _num_of_time(at: datetime, *, last: bool = False) -> bytes:
    """The first or the last that an id made at this millisecond can be."""
    millis = (at - _EPOCH) // timedelta(milliseconds=1)
    return max(millis, 0).to_bytes(6) + (b"\xff" if last else b"\0") * 10


def columns_in_trace(names: Collection[str], *, roots: bool) -> list[str]:
    """What says this of runs in their traces. Below `roots` are all runs of their traces, whomever they name."""
    columns = dict.fromkeys(column for name, stored in _ADDED.items() if name in names for column in stored)
    return [*columns] if roots and _ADDED.keys() >= set(names) else [_PARENTS, *columns]


def _adds(columns: Collection[str]) -> str:
    return " OR ".join(f"isNotNull({column})" for column in columns if column != _PARENTS)


def run_in_trace(key: RunKey, stored: Mapping[str, Any]) -> RunInTrace:
    """From what is stored in those columns."""
    parents = stored.get(_PARENTS)
    return RunInTrace(
        key,
        [UUID(parent) for parent in parents.split(",")] if parents else [],
        stored.get("patched_first_token_time") or stored.get("first_token_time"),
        _usage(stored.get("patched_usage") or stored.get("usage")),
    )


def _usage(said: str | None) -> dict[str, str | None] | None:
    """By its fields."""
    if said is None:
        return None
    return {name: None if text == _ABSENT[name] else text for name, text in orjson.loads(said).items()}


def _of_traces(workspace_id: UUID, keys: Sequence[RunKey]) -> dict[str, Any]:
    return {
        "tenant_id": workspace_id,
        "session_ids": list({key.session_id for key in keys}),
        "trace_nums": nums_of({key.trace_id for key in keys}),
    }
