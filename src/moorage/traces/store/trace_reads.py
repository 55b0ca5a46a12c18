"""The runs below a run in its trace: SQL over the index of traces, and the tokens, costs and children that a run shows.

A run that was found in this index is a member of its trace. Its row has the columns of `member_columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from string import Template
from typing import Any
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_columns import ABSENT, BY_TRACES, nums_of
from moorage.traces.store.run_reads import FoundRun, Row, RunKey, newest_rows
from moorage.traces.store.selections import TRACE_LASTS, Selection, shifted

CHILDREN = frozenset({"child_run_ids", "direct_child_run_ids"})
# Fields of a run that are computed from its trace.
ROLLUP_FIELDS = frozenset({*USAGE_FIELDS, *USAGE_DETAILS, *CHILDREN, "first_token_below"})
_NUMBERS: dict[str, type[int | Decimal]] = {name: int if name.endswith("tokens") else Decimal for name in USAGE_FIELDS}

# All runs of some traces, found by key in the index of traces, whatever their start time.
_TRACE_TIMES = f"""
SELECT trace_id, min(start_time), max(start_time) FROM trace_run_rows FINAL
    PREWHERE tenant_id = {{tenant_id:UUID}} AND session_id IN {{session_ids:Array(UUID)}}
        AND (session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_keys WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES})
    WHERE isNull(deleted_at) GROUP BY trace_id
"""
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


class TraceReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def members(self, workspace_id: UUID, keys: Sequence[RunKey], names: Collection[str]) -> list[FoundRun]:
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

    async def members_of_newest(self, window: Selection, names: Collection[str], *, rows_max: int) -> list[FoundRun]:
        """Read the newest roots, as `RunReads.newest` finds them, and their descendants, without knowing their keys."""
        columns = member_columns(names, roots=True)
        newest, values = newest_rows(window, "UUIDToNum(ifNull(trace_id, id))", rows_max=rows_max)
        condition = f"({_has_values(columns)} OR id = trace_id)" if _COLUMNS.keys() >= set(names) else "true"
        return await self._members(f"UUIDToNum(trace_id) IN ({newest})", condition, columns, values)

    async def _members(
        self, traces: str, condition: str, columns: Sequence[str], values: Mapping[str, Any]
    ) -> list[FoundRun]:
        sql = _MEMBERS.substitute(columns=", ".join(columns), traces=traces, condition=condition)
        id_of = cache(_id_of)  # rows share projects and traces
        return [
            FoundRun(RunKey(id_of(session), at, _id_of(run), id_of(trace)), dict(zip(columns, stored, strict=True)))
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


# --- roll-up ------------------------------------------------------------------------------------------------------


def roll_up(runs: Sequence[FoundRun], members: Sequence[FoundRun], names: Collection[str]) -> None:
    """Set the named fields of the runs, from the members of their traces. A run that names no parents is still below
    the root of its trace.
    """
    below: dict[tuple[UUID, UUID], list[FoundRun]] = {(key.session_id, key.id): [] for key, _ in runs}
    for member in members:
        key, parents = member.key, member.row.get(_PARENTS)
        for ancestor in {key.trace_id, *(map(UUID, parents.split(",")) if parents else ())} - {key.id}:
            if (place := (key.session_id, ancestor)) in below:
                below[place].append(member)
    usages = {key.place: _usage(row) for key, row in members}
    for key, row in runs:
        lower = below[key.session_id, key.id]
        own, others = usages.get(key.place, {}), [usages[each.key.place] for each in lower]
        for name in names:
            if name in _NUMBERS:
                row[name] = _sum(name, [own] if name in own else others)
            elif name in USAGE_DETAILS:
                row[name] = _sum_by_kind(name, [own] if name in own else others)
            else:
                row[name] = _below(name, key, lower)


def _usage(member: Row) -> dict[str, str]:
    """Return the run's own tokens and costs as texts by field, details as JSON."""
    text = member.get("patched_usage") or member.get("usage")
    return {name: value for name, value in orjson.loads(text or "{}").items() if value not in (None, "", ABSENT[name])}


def _sum(name: str, usages: Iterable[Mapping[str, str]]) -> Any:
    """Add up one field; None when no run has a value."""
    numbers = [_NUMBERS[name](usage[name]) for usage in usages if name in usage]
    return sum(numbers) if numbers else None


def _sum_by_kind(name: str, usages: Iterable[Mapping[str, str]]) -> dict[str, Decimal] | None:
    """Add up tokens or costs by kind."""
    total: dict[str, Decimal] = {}
    for usage in usages:
        for kind, amount in orjson.loads(usage.get(name, "{}")).items():
            total[kind] = total.get(kind, Decimal(0)) + Decimal(str(amount))
    return total or None


def _below(name: str, key: RunKey, members: Sequence[FoundRun]) -> Any:
    """Return the first token's time, or the children by start time."""
    if name == "first_token_below":
        times = (each.row["patched_first_token_time"] or each.row["first_token_time"] for each in members)
        return min(filter(None, times), default=None)
    parent = str(key.id) if name == "direct_child_run_ids" else ""
    children = [each.key for each in members if (each.row[_PARENTS] or "").endswith(parent)]
    return [child.id for child in sorted(children, key=lambda child: (child.start_time, child.id))]
