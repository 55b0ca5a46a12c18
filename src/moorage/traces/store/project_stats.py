"""SQL over the runs of several projects at once: statistics, sizes and metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.tree import FIELDS, And, Compare, Expression
from moorage.traces.records.projects import MetadataSearch, ProjectStats
from moorage.traces.records.run_fields import cost_text
from moorage.traces.records.words import USAGE_FIELDS
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.run_statistics import Grouping, RunStatistics
from moorage.traces.store.selections import EVER, Selection, scope_of, time_text

# Counts, rates and times are those of traces and come from their root runs. Tokens and costs are each run's own, so
# they are added up over all runs.
_OF_ROOTS = (
    *("run_count", "latency_p50", "latency_p99", "first_token_p50", "first_token_p99"),
    *("error_rate", "streaming_rate"),
)
_OF_RUNS = ("last_run_start_time", *USAGE_FIELDS)
_IS_ROOT = Compare("eq", FIELDS["is_root"], True)
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
        AND isNotNull(metadata_json) AND (is_root OR NOT {roots_only:Bool})
    ORDER BY start_time DESC LIMIT 10000
) ARRAY JOIN JSONExtractKeysAndValuesRaw(assumeNotNull(metadata_json)) AS pair
WHERE substring(pair.2, 1, 1) NOT IN ('{', '[') AND (pair.1 IN {keys:Array(String)} OR {any_key:Bool})
GROUP BY key, value ORDER BY key, runs DESC, value LIMIT {k:UInt32} BY key LIMIT 10000
"""


class Size(NamedTuple):
    """Number of runs, and their approximate size on disk: their share of the whole table's size, by length of texts."""

    runs: int
    bytes: int


class ProjectStatsStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._statistics = RunStatistics(clickhouse)

    async def stats(
        self, workspace_id: UUID, session_ids: Collection[UUID], since: datetime | None, expression: Expression | None
    ) -> dict[UUID, ProjectStats]:
        """Add up runs that began since then and meet the expression. Projects without any are left out."""
        given = () if expression is None else (expression,)
        runs = Selection(workspace_id, list(session_ids), since or EVER)
        scope = scope_of(runs.session_ids)
        of_roots, of_runs = await asyncio.gather(
            *(
                self._statistics.of_groups(
                    replace(runs, condition=compile_filter(And(parts), scope) if parts else None),
                    names,
                    of_traces=False,
                    grouping=Grouping("project", groups_max=len(session_ids)),
                )
                for parts, names in (((*given, _IS_ROOT), _OF_ROOTS), (given, _OF_RUNS))
            )
        )
        return {
            UUID(project): _stats({**each, **of_roots.get(project, {"run_count": 0})})
            for project, each in of_runs.items()
        }

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

    async def metadata(self, workspace_id: UUID, session_id: UUID, search: MetadataSearch) -> dict[str, list[str]]:
        """Find the `k` most frequent values of each key, most frequent first; objects and lists do not count."""
        values = {
            "tenant_id": workspace_id,
            "session_id": session_id,
            "since": time_text(search.start_time or EVER),
            "roots_only": search.root_runs_only,
            "keys": search.metadata_keys or [],
            "any_key": search.metadata_keys is None,
            "k": search.k,
        }
        found: dict[str, list[str]] = {}
        for key, value, _ in await self._clickhouse.rows(_METADATA, values):
            found.setdefault(key, []).append(value)
        return found


def _stats(found: Mapping[str, Any]) -> ProjectStats:
    stats = {name: cost_text(value) if isinstance(value, Decimal) else value for name, value in found.items()}
    tokens = {name: found[name] or 0 for name in USAGE_FIELDS if name.endswith("tokens")}
    return {**stats, **tokens}  # type: ignore[typeddict-item]
