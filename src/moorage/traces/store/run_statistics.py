"""SQL that adds trace runs up: counts, times, tokens and costs, by group, by thread, and how often values occur."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from string import Template
from typing import Any

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.filters import text_of_metadata
from moorage.traces.store.run_reads import Selection, bound, scope_of

Row = dict[str, Any]

_USAGE = (*USAGE_FIELDS, *USAGE_DETAILS)
# Tokens and costs by kind, which are stored as JSON.
_DETAILS = {
    name: f"CAST(JSONExtractKeysAndValues(ifNull({name}, ''), 'Float64'), 'Map(String, Float64)')"
    for name in USAGE_DETAILS
}
_OWN_USAGE = ", ".join([*USAGE_FIELDS, *(f"{sql} AS {name}_map" for name, sql in _DETAILS.items())])
_RUNS = Template(f"""
SELECT id, session_id, $group AS grp, start_time, end_time, latency_s, first_token_time, status, error, name, run_type, tags, is_root,
    thread_id, {_OWN_USAGE}
FROM trace_runs WHERE $where
""")
# Each root with the tokens and costs of its trace: its own when it has some, else those of the runs below it.
_ROOTS = Template(f"""
SELECT roots.* EXCEPT ({", ".join([*USAGE_FIELDS, *(f"{name}_map" for name in USAGE_DETAILS)])}),
    {", ".join(f"coalesce(roots.{name}, below.{name}) AS {name}" for name in USAGE_FIELDS)},
    {", ".join(f"if(empty(roots.{name}_map), below.{name}_map, roots.{name}_map) AS {name}_map" for name in USAGE_DETAILS)}
FROM ($runs) AS roots
LEFT JOIN (
    SELECT assumeNotNull(trace_id) AS trace,
        {", ".join(f"sum({name}) AS {name}" for name in USAGE_FIELDS)},
        {", ".join(f"sumMap({name}_map) AS {name}_map" for name in USAGE_DETAILS)}
    FROM (
        SELECT trace_id, {_OWN_USAGE} FROM trace_runs
        WHERE $traces AND isNotNull(trace_id) AND NOT is_root AND (isNotNull(total_tokens) OR isNotNull(total_cost)))
    GROUP BY trace_id
) AS below ON below.trace = roots.id
""")


def _quantiles(value: str) -> str:
    return f"quantilesExactInclusiveIf(0.5, 0.99)(assumeNotNull({value}), isNotNull({value}))"


_UNTIL_FIRST = "dateDiff('microsecond', start_time, first_token_time) / 1e6"
_TOTALS = {
    "run_count": "count()",
    "latency": _quantiles("latency_s"),
    "latency_avg": "avg(latency_s)",
    "first_token": _quantiles(_UNTIL_FIRST),
    "first_run_start_time": "min(start_time)",
    "last_run_start_time": "max(start_time)",
    "last_run_end_time": "max(end_time)",
    "errors": "countIf(status = 'error')",
    "streamed": "countIf(isNotNull(first_token_time))",
    **{name: f"sum({name})" for name in USAGE_FIELDS},
    "tokens_quantiles": _quantiles("total_tokens"),
    "prompt_quantiles": _quantiles("prompt_tokens"),
    "completion_quantiles": _quantiles("completion_tokens"),
    "cost_quantiles": _quantiles("toFloat64(total_cost)"),
    **{name: f"sumMap({name}_map)" for name in USAGE_DETAILS},
    "group_count": "uniqExactIf(thread_id, isNotNull(thread_id))",
}
_STATS = Template("SELECT grp, $totals FROM ($runs) GROUP BY grp ORDER BY count() DESC, grp LIMIT {groups_max:UInt32}")
# Which values occur how often, for people who narrow a search down.
_FACETS = Template("""
SELECT facet.1 AS key, facet.2 AS value, count() AS n FROM (
    SELECT arrayJoin(arrayConcat(
        [('name', ifNull(name, '')), ('run_type', ifNull(run_type, '')), ('status', status)],
        arrayMap(tag -> ('tag', tag), tags))) AS facet
    FROM trace_runs WHERE $where)
GROUP BY facet HAVING value != '' ORDER BY key, n DESC, value LIMIT {facets_max:UInt32} BY key
""")
_THREADS = Template(f"""
SELECT thread_id, any(session_id) AS session_id, count() AS turns, min(start_time) AS first_at, max(start_time) AS last_at,
    argMin(id, (start_time, id)) AS first_id, argMax(id, (start_time, id)) AS last_id,
    groupArray(1000)(id) AS ids,
    {_quantiles("latency_s")} AS latency, countIf(status = 'error') AS errors,
    argMaxIf(leftUTF8(assumeNotNull(error), 500), start_time, isNotNull(error)) AS last_error,
    sum(total_tokens) AS tokens, sum(total_cost) AS cost,
    sumMap(prompt_token_details_map) AS prompt_token_details, sumMap(completion_token_details_map) AS completion_token_details,
    sumMap(prompt_cost_details_map) AS prompt_cost_details, sumMap(completion_cost_details_map) AS completion_cost_details
FROM ($runs) WHERE notEmpty(ifNull(thread_id, '')) GROUP BY thread_id $having
ORDER BY last_at DESC, thread_id DESC LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
""")
_THREAD_COUNT = Template("SELECT uniqExact(thread_id) FROM trace_runs WHERE $where AND notEmpty(ifNull(thread_id, ''))")

# What runs are grouped by. Runs have several tags, and are counted with each.
_GROUPS = {
    "name": "ifNull(name, '')",
    "run_type": "ifNull(run_type, '')",
    "tag": "arrayJoin(tags)",
    "metadata": text_of_metadata("{group_path:String}"),
}


class RunStatistics:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def totals(
        self,
        selection: Selection,
        names: Collection[str],
        *,
        of_traces: bool,
        group_by: str | None = None,
        group_path: str | None = None,
        groups: Sequence[str | None] | None = None,
        groups_max: int = 1,
    ) -> dict[str, Row]:
        """The named totals by group, the largest first; without a group all in one, under ''. Runs that belong to none
        of the groups, or have no value to be grouped by, are left out; None among `groups` stands for the latter.

        `of_traces`: the runs are roots, and tokens and costs are those of their traces.
        """
        sql, values = _runs(selection, of_traces=of_traces, group=_GROUPS[group_by] if group_by else "''")
        if group_by is not None:
            among = "grp != ''" if groups is None else "grp IN {groups:Array(String)}"
            sql = f"SELECT * FROM ({sql}) WHERE {among}"
            values["groups"] = [group or "" for group in groups or ()]
        totals = ", ".join(_TOTALS[name] for name in names)
        values |= {"groups_max": groups_max, "group_path": group_path or ""}
        rows = await self._clickhouse.rows(_STATS.substitute(totals=totals, runs=sql), values)
        return {row[0]: dict(zip(names, map(_plain, row[1:]), strict=True)) for row in rows}

    async def facets(self, selection: Selection, most: int) -> list[tuple[str, str, int]]:
        """The most frequent values of name, run type, status and tag: (key, value, how often)."""
        where, values = bound(selection)
        rows = await self._clickhouse.rows(_FACETS.substitute(where=where), values | {"facets_max": most})
        return [(key, value, n) for key, value, n in rows]

    async def threads(
        self, selection: Selection, *, limit: int, offset: int = 0, after: tuple[datetime, str] | None = None
    ) -> list[Row]:
        """Threads of the root runs of the selection, the one that was active last first."""
        sql, values = _runs(selection, of_traces=True)
        values |= {"limit": limit, "offset": offset}
        having = ""
        if after is not None:
            having = (
                "HAVING (last_at, assumeNotNull(thread_id)) < ({after_at:DateTime64(6, 'UTC')}, {after_thread:String})"
            )
            values |= {"after_at": after[0], "after_thread": after[1]}
        return [
            {name: _plain(value) for name, value in row.items()}
            for row in await self._clickhouse.dicts(_THREADS.substitute(runs=sql, having=having), values)
        ]

    async def thread_count(self, selection: Selection) -> int:
        where, values = bound(selection)
        return int(await self._clickhouse.value(_THREAD_COUNT.substitute(where=where), values))


def ids_of(selection: Selection) -> tuple[str, Mapping[str, Any]]:
    """A subselect of the ids of the runs, and what it binds."""
    where, values = bound(selection)
    return f"SELECT id FROM trace_runs WHERE {where}", values


def _runs(selection: Selection, *, of_traces: bool, group: str = "''") -> tuple[str, dict[str, Any]]:
    where, values = bound(selection)
    runs = _RUNS.substitute(where=where, group=group)
    if of_traces:
        runs = _ROOTS.substitute(runs=runs, traces=scope_of(selection.session_ids).traces)
    return runs, values


def _plain(value: Any) -> Any:
    """The engine says nan where there was nothing to look at."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
