"""SQL over the index of traces: the parents of runs, their tokens and costs, when a trace began and ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.run_rows import NO_USAGE
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_columns import BY_TRACES, nums_of
from moorage.traces.store.run_reads import RunKey, newest_rows
from moorage.traces.store.selections import TRACE_LASTS, Selection, shifted

# All runs of some traces, found by key in the index of traces, whatever their start time.
_OF_TRACES = f"""
trace_run_rows FINAL
    PREWHERE tenant_id = {{tenant_id:UUID}} AND session_id IN {{session_ids:Array(UUID)}}
        AND (session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_keys WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES})
    WHERE isNull(deleted_at)
"""
_TRACE_TIMES = f"SELECT trace_id, min(start_time), max(start_time) FROM {_OF_TRACES} GROUP BY trace_id"
# Ids are read as bytes: making a UUID object for each would cost more than the rest of the row.
_MEMBERS = Template("""
SELECT UUIDToNum(session_id), start_time, UUIDToNum(id), UUIDToNum(trace_id), $columns FROM trace_keys FINAL
PREWHERE tenant_id = {tenant_id:UUID}
    AND start_time >= {traces_since:DateTime64(6, 'UTC')} AND start_time < {traces_until:DateTime64(6, 'UTC')}
    AND $traces
WHERE $condition
""")
# Columns that each field is computed from.
_COLUMNS = {
    **dict.fromkeys((*USAGE_FIELDS, *USAGE_DETAILS), ("patched_usage", "usage")),
    "first_token_below": ("patched_first_token_time", "first_token_time"),
}
_PARENTS = "parent_run_ids"
# All runs of a trace are below its root. For other runs, only their subtrees are read from a large trace.
_IN_SUBTREES = """(has({ids:Array(UUID)}, id) OR has({roots:Array(UUID)}, trace_id)
    OR hasAny(splitByChar(',', ifNull(parent_run_ids, '')), arrayMap(id -> toString(id), {ids:Array(UUID)})))"""
_ABSENT = {name: sign.decode() if isinstance(sign, bytes) else str(sign) for name, sign in NO_USAGE.items()}


class TraceMember(NamedTuple):
    """A run in its trace. `usage`: its own tokens and costs as texts by field, details as JSON; None if it has none."""

    key: RunKey
    parent_run_ids: list[UUID]
    first_token_time: datetime | None
    usage: dict[str, str | None] | None


class TraceReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def members(self, workspace_id: UUID, keys: Sequence[RunKey], names: Collection[str]) -> list[TraceMember]:
        """Read these runs and their descendants, with the columns for the named fields. Runs without any value are left
        out, unless children are requested.
        """
        roots = [key.id for key in keys if key.id == key.trace_id]
        only_roots = len(roots) == len(keys)
        columns = member_columns(names, roots=only_roots)
        conditions = [f"({_has_values(columns)})"] if _COLUMNS.keys() >= set(names) else []
        conditions += [] if only_roots else [_IN_SUBTREES]
        times = [key.start_time for key in keys]
        values: dict[str, Any] = {
            "tenant_id": workspace_id,
            "trace_nums": nums_of({key.trace_id for key in keys}),
            "traces_since": shifted(min(times), -TRACE_LASTS),
            "traces_until": shifted(max(times), TRACE_LASTS),
            "ids": [key.id for key in keys],
            "roots": roots,
        }
        return await self._members(BY_TRACES, " AND ".join(conditions) or "true", columns, values)

    async def members_of_newest(self, window: Selection, names: Collection[str], *, rows_max: int) -> list[TraceMember]:
        """Read the newest roots, as `RunReads.newest` finds them, and their descendants, without knowing their keys."""
        columns = member_columns(names, roots=True)
        newest, values = newest_rows(window, "UUIDToNum(ifNull(trace_id, id))", rows_max=rows_max)
        condition = f"({_has_values(columns)} OR id = trace_id)" if _COLUMNS.keys() >= set(names) else "true"
        return await self._members(f"UUIDToNum(trace_id) IN ({newest})", condition, columns, values)

    async def _members(
        self, traces: str, condition: str, columns: Sequence[str], values: Mapping[str, Any]
    ) -> list[TraceMember]:
        sql = _MEMBERS.substitute(columns=", ".join(columns), traces=traces, condition=condition)
        id_of = cache(_id_of)  # rows share projects and traces
        return [
            trace_member(RunKey(id_of(session), at, _id_of(run), id_of(trace)), dict(zip(columns, stored, strict=True)))
            for session, at, run, trace, *stored in await self._clickhouse.rows(sql, values)
        ]

    async def trace_times(self, workspace_id: UUID, keys: Sequence[RunKey]) -> dict[UUID, tuple[datetime, datetime]]:
        """Read when the first and the last run of each trace began."""
        values = {
            "tenant_id": workspace_id,
            "session_ids": list({key.session_id for key in keys}),
            "trace_nums": nums_of({key.trace_id for key in keys}),
        }
        rows = await self._clickhouse.rows(_TRACE_TIMES, values)
        return {trace_id: (first, last) for trace_id, first, last in rows}


def _id_of(num: bytes) -> UUID:
    return UUID(bytes=num)


def _has_values(columns: Collection[str]) -> str:
    return " OR ".join(f"isNotNull({column})" for column in columns if column != _PARENTS)


def member_columns(names: Collection[str], *, roots: bool) -> list[str]:
    """List the columns to read for these fields. `roots`: all wanted runs are roots, which mostly need no parents."""
    columns = dict.fromkeys(column for name, stored in _COLUMNS.items() if name in names for column in stored)
    return [*columns] if roots and _COLUMNS.keys() >= set(names) else [_PARENTS, *columns]


def trace_member(key: RunKey, stored: Mapping[str, Any]) -> TraceMember:
    """Make a member from a row with the columns of `member_columns`."""
    parents = stored.get(_PARENTS)
    return TraceMember(
        key,
        [UUID(parent) for parent in parents.split(",")] if parents else [],
        stored.get("patched_first_token_time") or stored.get("first_token_time"),
        _usage(stored.get("patched_usage") or stored.get("usage")),
    )


def _usage(text: str | None) -> dict[str, str | None] | None:
    """Read tokens and costs by field from one JSON text."""
    if text is None:
        return None
    return {name: None if value == _ABSENT[name] else value for name, value in orjson.loads(text).items()}
