"""SQL over the runs of several projects at once: statistics, sizes and metadata."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.tree import Expression
from moorage.traces.records.projects import ProjectStats
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.selections import RunScope, time_text

_SCOPE = "tenant_id = {tenant_id:UUID} AND session_id IN {session_ids:Array(UUID)} AND start_time >= {since:DateTime64(6, 'UTC')}"
# Counts, rates and times are those of traces and come from their root runs. Tokens and costs are each run's own, so
# they are added up over all runs.
_STATS = f"""
SELECT session_id,
    countIf(is_root) AS run_count,
    quantilesIf(0.5, 0.99)(assumeNotNull(latency_s), is_root AND isNotNull(latency_s)) AS latency,
    quantilesIf(0.5, 0.99)(dateDiff('microsecond', start_time, assumeNotNull(first_token_time)) / 1e6,
        is_root AND isNotNull(first_token_time)) AS first_token,
    sum(total_tokens), sum(prompt_tokens), sum(completion_tokens), sum(total_cost), sum(prompt_cost), sum(completion_cost),
    max(start_time),
    countIf(is_root AND status = 'error') AS errors,
    countIf(is_root AND isNotNull(first_token_time)) AS streamed
FROM trace_runs WHERE {_SCOPE} AND {{condition}} GROUP BY session_id
"""
_LAST_STARTS = """
SELECT session_id, max(start_time) FROM trace_run_rows
WHERE tenant_id = {tenant_id:UUID} AND session_id IN {session_ids:Array(UUID)} GROUP BY session_id
"""
# `.size` reads the lengths of texts without the texts. The rest of a row is small.
_TEXTS = ("inputs", "outputs", "events", "serialized", "extra_without_metadata", "metadata_json", "error")
_ROW_BYTES = 200
_LENGTHS = " + ".join(f"ifNull({prefix}{name}.size, 0)" for name in _TEXTS for prefix in ("", "patched_"))
_SIZES = f"""
SELECT session_id, uniq(id), sum({_ROW_BYTES} + {_LENGTHS}) FROM trace_run_rows
WHERE tenant_id = {{tenant_id:UUID}} AND session_id IN {{session_ids:Array(UUID)}} GROUP BY session_id
"""
_TOTAL_SIZE = """
SELECT sum(rows), sum(data_uncompressed_bytes), sum(bytes_on_disk) FROM system.parts
WHERE active AND database = currentDatabase() AND table = 'trace_run_rows'
"""
# Reads only the newest runs: to people who look for values to filter by, older runs add little.
_METADATA = """
SELECT pair.1 AS key, if(startsWith(pair.2, '"'), JSONExtractString(pair.2), pair.2) AS value, count() AS runs
FROM (
    SELECT metadata_json FROM trace_runs
    WHERE tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID} AND start_time >= {since:DateTime64(6, 'UTC')}
        AND isNotNull(metadata_json) AND {condition}
    ORDER BY start_time DESC LIMIT 10000
) ARRAY JOIN JSONExtractKeysAndValuesRaw(assumeNotNull(metadata_json)) AS pair
WHERE substring(pair.2, 1, 1) NOT IN ('{', '[') AND {keys_condition}
GROUP BY key, value ORDER BY key, runs DESC, value LIMIT {k:UInt32} BY key LIMIT 10000
"""


class Size(NamedTuple):
    """Number of runs, and their approximate size on disk: their share of the whole table's size, by length of texts."""

    runs: int
    bytes: int


class ProjectStatsStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def stats(
        self, workspace_id: UUID, session_ids: Collection[UUID], since: datetime, expression: Expression | None
    ) -> dict[UUID, ProjectStats]:
        """Add up runs that began since then and meet the expression. Projects without any are left out."""
        values: dict[str, Any] = {
            "tenant_id": workspace_id,
            "session_ids": list(session_ids),
            "since": time_text(since),
        }
        condition = "1"
        if expression is not None:
            compiled = compile_filter(expression, RunScope(_SCOPE, _SCOPE))
            condition = compiled.sql
            values |= compiled.parameters
        rows = await self._clickhouse.rows(_STATS.replace("{condition}", condition), values)
        return {row[0]: _stats(row) for row in rows}

    async def last_starts(self, workspace_id: UUID, session_ids: Collection[UUID]) -> dict[UUID, datetime]:
        values = {"tenant_id": workspace_id, "session_ids": list(session_ids)}
        return {row[0]: row[1] for row in await self._clickhouse.rows(_LAST_STARTS, values)}

    async def sizes(self, workspace_id: UUID, session_ids: Collection[UUID]) -> dict[UUID, Size]:
        """Estimate the sizes of projects; projects without runs are left out."""
        values = {"tenant_id": workspace_id, "session_ids": list(session_ids)}
        found = await self._clickhouse.rows(_SIZES, values)
        ((rows, uncompressed, on_disk),) = await self._clickhouse.rows(_TOTAL_SIZE)
        ratio = min(on_disk / max(uncompressed, rows * _ROW_BYTES, 1), 1.0)
        return {session_id: Size(runs, round(length * ratio)) for session_id, runs, length in found}

    async def metadata(
        self,
        workspace_id: UUID,
        session_id: UUID,
        *,
        keys: Sequence[str] | None,
        since: datetime,
        k: int,
        roots_only: bool,
    ) -> dict[str, list[str]]:
        """Find the `k` most frequent values of each key, most frequent first; objects and lists do not count."""
        values: dict[str, Any] = {
            "tenant_id": workspace_id,
            "session_id": session_id,
            "since": time_text(since),
            "k": k,
        }
        named = "1"
        if keys is not None:
            named = "pair.1 IN {keys:Array(String)}"
            values["keys"] = list(keys)
        sql = _METADATA.replace("{condition}", "is_root" if roots_only else "1").replace("{keys_condition}", named)
        found: dict[str, list[str]] = {}
        for key, value, _ in await self._clickhouse.rows(sql, values):
            found.setdefault(key, []).append(value)
        return found


def _stats(row: Sequence[Any]) -> ProjectStats:
    (
        _,
        count,
        latency,
        first_token,
        tokens,
        prompt,
        completion,
        cost,
        prompt_cost,
        completion_cost,
        last,
        errors,
        streamed,
    ) = row
    return {
        "run_count": count,
        "latency_p50": _number(latency[0]),
        "latency_p99": _number(latency[1]),
        "first_token_p50": _number(first_token[0]),
        "first_token_p99": _number(first_token[1]),
        "total_tokens": tokens or 0,
        "prompt_tokens": prompt or 0,
        "completion_tokens": completion or 0,
        "total_cost": _cost(cost),
        "prompt_cost": _cost(prompt_cost),
        "completion_cost": _cost(completion_cost),
        "last_run_start_time": last,
        "error_rate": errors / count if count else None,
        "streaming_rate": streamed / count if count else None,
    }


def _number(value: float) -> float | None:
    """Convert the engine's nan, its result for no rows, to None."""
    return None if math.isnan(value) else value


def _cost(value: Decimal | None) -> str | None:
    if value is None:
        return None
    return format(value.normalize(), "f")
