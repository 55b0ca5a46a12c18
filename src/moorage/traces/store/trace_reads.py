"""SQL that reads what runs say in their traces: who is above them, their tokens and costs, when a trace began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.run_rows import NO_USAGE
from moorage.traces.store.run_columns import BY_TRACES
from moorage.traces.store.run_reads import TRACE_LASTS, RunKey, shifted

# All runs of some traces. They are found by key in the index of traces, whenever they began.
_OF_TRACES = f"""
trace_run_rows FINAL
    PREWHERE tenant_id = {{tenant_id:UUID}} AND session_id IN {{session_ids:Array(UUID)}}
        AND (session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_keys WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES})
    WHERE isNull(deleted_at)
"""
_IN_TRACES = Template(f"""
SELECT session_id, start_time, id, trace_id, parent_run_ids, patched_first_token_time, first_token_time, patched_usage, usage
FROM trace_keys FINAL
PREWHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES}
    AND start_time >= {{since:DateTime64(6, 'UTC')}} AND start_time < {{until:DateTime64(6, 'UTC')}}
WHERE $condition
""")
_ADDS_SOMETHING = """(isNotNull(patched_usage) OR isNotNull(usage)
    OR isNotNull(patched_first_token_time) OR isNotNull(first_token_time))"""
# A root has all of its trace below it. Of a page of other runs, the rest of a large trace is of no concern.
_IN_FAMILIES = """(has({ids:Array(UUID)}, id) OR has({roots:Array(UUID)}, trace_id)
    OR hasAny(splitByChar(',', ifNull(parent_run_ids, '')), arrayMap(id -> toString(id), {ids:Array(UUID)})))"""
_ABSENT = {name: sign.decode() if isinstance(sign, bytes) else str(sign) for name, sign in NO_USAGE.items()}
_TRACE_TIMES = f"SELECT trace_id, min(start_time), max(start_time) FROM {_OF_TRACES} GROUP BY trace_id"


class RunInTrace(NamedTuple):
    """What a run says and adds to those above it: usage by its fields, as texts, of details as JSON; None where it has
    none.
    """

    key: RunKey
    parent_run_ids: list[UUID]
    first_token_time: datetime | None
    usage: dict[str, str | None] | None


class TraceReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def in_traces(
        self, workspace_id: UUID, keys: Sequence[RunKey], *, only_usage: bool = False
    ) -> list[RunInTrace]:
        """These runs and those below them. `only_usage`: those alone that have usage or a first token."""
        roots = [key.id for key in keys if key.id == key.trace_id]
        conditions = [_ADDS_SOMETHING] if only_usage else []
        conditions += [_IN_FAMILIES] if len(roots) < len(keys) else []
        sql = _IN_TRACES.substitute(condition=" AND ".join(conditions) or "true")
        times = [key.start_time for key in keys]
        values = {
            "tenant_id": workspace_id,
            "trace_ids": list({key.trace_id for key in keys}),
            "since": shifted(min(times), -TRACE_LASTS),
            "until": shifted(max(times), TRACE_LASTS),
        }
        if _IN_FAMILIES in conditions:
            values |= {"ids": [key.id for key in keys], "roots": roots}
        rows = await self._clickhouse.rows(sql, values)
        return [
            RunInTrace(
                RunKey(*key),
                [UUID(parent) for parent in parents.split(",")] if parents else [],
                patched_first or first,
                _usage(patched_usage or usage),
            )
            for *key, parents, patched_first, first, patched_usage, usage in rows
        ]

    async def trace_times(self, workspace_id: UUID, keys: Sequence[RunKey]) -> dict[UUID, tuple[datetime, datetime]]:
        """By trace: when its first run began, and its last."""
        rows = await self._clickhouse.rows(_TRACE_TIMES, _of_traces(workspace_id, keys))
        return {trace_id: (first, last) for trace_id, first, last in rows}


def _usage(said: str | None) -> dict[str, str | None] | None:
    """By its fields."""
    if said is None:
        return None
    return {name: None if text == _ABSENT[name] else text for name, text in orjson.loads(said).items()}


def _of_traces(workspace_id: UUID, keys: Sequence[RunKey]) -> dict[str, Any]:
    return {
        "tenant_id": workspace_id,
        "session_ids": list({key.session_id for key in keys}),
        "trace_ids": list({key.trace_id for key in keys}),
    }
