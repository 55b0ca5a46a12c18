"""SQL of statistics of trace runs: counts, times, tokens and costs, in all, by group and by thread; and facets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from string import Template
from typing import Any, NamedTuple

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.filters import text_of_metadata
from moorage.traces.store.run_columns import COLUMNS, runs_for
from moorage.traces.store.selections import NEVER, Selection, bound, scope_of, time_text

Row = dict[str, Any]
# A frequent value of a field: (key, value, count).
Facet = tuple[str, str, int]

_USAGE = frozenset({*USAGE_FIELDS, *USAGE_DETAILS})
# Tokens and costs by kind, which are stored as JSON. Most runs have none, and then nothing is parsed.
_MAP = "Map(String, Float64)"
_DETAILS = {
    name: f"if(isNull({name}), CAST(map(), '{_MAP}'), CAST(JSONExtractKeysAndValues(assumeNotNull({name}), 'Float64'), '{_MAP}'))"
    for name in USAGE_DETAILS
}
# Runs that begin up to this long after the end of the search still count for their trace.
_TRACE_GROWS = timedelta(days=1)

_RUNS = Template("SELECT $group AS grp, $columns FROM $runs")
# Each root with the tokens and costs of its trace: its own if it has any, else those of the runs below it.
_ROOTS = Template("""
SELECT roots.grp AS grp, $kept, $merged FROM (SELECT $group AS grp, id, $columns FROM $runs) AS roots
LEFT JOIN (
    SELECT assumeNotNull(trace_id) AS trace, $sums FROM (
        SELECT trace_id, $usage FROM $below
        WHERE $below_where AND NOT is_root AND isNotNull(trace_id) AND (isNotNull(total_tokens) OR isNotNull(total_cost)))
    GROUP BY trace_id
) AS below ON below.trace = roots.id
""")


def _quantiles(value: str, median: str, p99: str) -> dict[str, str]:
    """Write two statistics from one aggregate, which the engine computes once."""
    both = f"quantilesExactInclusive(0.5, 0.99)({value})"
    return {median: f"{both}[1]", p99: f"{both}[2]"}


def _whole(sql: Mapping[str, str]) -> dict[str, str]:
    return {name: f"accurateCastOrNull(round({each}), 'Int64')" for name, each in sql.items()}


_UNTIL_FIRST = "dateDiff('microsecond', start_time, first_token_time) / 1e6"
_STATISTICS = {
    "run_count": "count()",
    **_quantiles("latency_s", "latency_p50", "latency_p99"),
    "latency_avg": "avg(latency_s)",
    **_quantiles(_UNTIL_FIRST, "first_token_p50", "first_token_p99"),
    "first_run_start_time": "min(start_time)",
    "last_run_start_time": "max(start_time)",
    "last_run_end_time": "max(end_time)",
    "error_rate": "countIf(status = 'error') / count()",
    "streaming_rate": "countIf(isNotNull(first_token_time)) / count()",
    **{name: f"sum({name})" for name in USAGE_FIELDS},
    **_whole(_quantiles("total_tokens", "median_tokens", "tokens_p99")),
    **_whole(_quantiles("prompt_tokens", "prompt_tokens_p50", "prompt_tokens_p99")),
    **_whole(_quantiles("completion_tokens", "completion_tokens_p50", "completion_tokens_p99")),
    **_quantiles("toFloat64(total_cost)", "cost_p50", "cost_p99"),
    **{name: f"mapApply((kind, n) -> (kind, toInt64(round(n))), sumMap({name}_map))" for name in USAGE_DETAILS[:2]},
    **{name: f"sumMap({name}_map)" for name in USAGE_DETAILS[2:]},
    "group_count": "uniqExactIf(thread_id, notEmpty(ifNull(thread_id, '')))",
}
_STATS = Template("""
SELECT grp, $statistics FROM ($runs) WHERE $among GROUP BY grp
ORDER BY count() DESC, grp LIMIT {groups_max:UInt32}
""")
# Counts values for people who want to narrow a search. Runs with equal values are counted together first.
_FACETS = Template("""
SELECT grp, facet.1 AS key, facet.2 AS value, sum(n) AS runs
FROM (SELECT $group AS grp, name, run_type, status, tags_json, count() AS n FROM $runs
    GROUP BY grp, name, run_type, status, tags_json HAVING $among)
ARRAY JOIN arrayConcat(
    [('name', ifNull(toString(name), '')), ('run_type', ifNull(toString(run_type), '')), ('status', status)],
    arrayMap(tag -> ('tag', tag), arrayDistinct(JSONExtract(ifNull(tags_json, '[]'), 'Array(String)')))) AS facet
GROUP BY grp, key, value HAVING value != ''
ORDER BY runs DESC, value LIMIT 10 BY grp, key
""")
_THREADS = Template(f"""
SELECT thread_id, any(session_id) AS session_id, count() AS count,
    min(start_time) AS min_start_time, max(start_time) AS max_start_time,
    argMin(id, (start_time, id)) AS first_trace_id, argMax(id, (start_time, id)) AS last_trace_id,
    groupArray(1000)(id) AS ids,
    {_STATISTICS["latency_p50"]} AS latency_p50, {_STATISTICS["latency_p99"]} AS latency_p99,
    countIf(status = 'error') AS num_errored_turns,
    nullIf(argMaxIf(leftUTF8(assumeNotNull(error), 500), start_time, isNotNull(error)), '') AS last_error,
    ifNull(sum(total_tokens), 0) AS total_tokens, toFloat64(sum(total_cost)) AS total_cost,
    mapUpdate({_STATISTICS["prompt_token_details"]}, {_STATISTICS["completion_token_details"]}) AS total_token_details,
    mapUpdate({_STATISTICS["prompt_cost_details"]}, {_STATISTICS["completion_cost_details"]}) AS total_cost_details
FROM ($runs) WHERE notEmpty(ifNull(thread_id, '')) GROUP BY thread_id $having
ORDER BY max_start_time DESC, thread_id DESC LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
""")

# Expressions to group runs by. A run with several tags counts for each of them.
_GROUPS = {
    "all": "''",
    "project": "toString(session_id)",
    "name": "ifNull(name, '')",
    "run_type": "ifNull(run_type, '')",
    "tag": "arrayJoin(tags)",
    "metadata": text_of_metadata("{group_path:String}"),
    # Start of the run's bucket, in seconds since 1970. The path is the length of a bucket in seconds.
    "time": "toString(intDiv(toUnixTimestamp(start_time), toUInt32({group_path:String})) * toUInt32({group_path:String}))",
}


class Grouping(NamedTuple):
    """Grouping of runs, by default into one group '', and the requested groups: the largest ones, or the named ones.
    None among the names stands for runs without a value for the grouping.
    """

    by: str = "all"
    path: str | None = None
    groups: Sequence[str | None] | None = None
    groups_max: int = 1

    @property
    def among(self) -> str:
        """SQL that selects the requested groups."""
        if self.groups is not None:
            return "grp IN {groups:Array(String)}"
        return "1" if self.by == "all" else "grp != ''"

    def values(self) -> dict[str, Any]:
        groups = [each or "" for each in self.groups or ()]
        return {"group_path": self.path or "", "groups": groups, "groups_max": self.groups_max}


ALL = Grouping()


class RunStatistics:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def of_groups(
        self, selection: Selection, names: Iterable[str], *, of_traces: bool, grouping: Grouping = ALL
    ) -> dict[str, Row]:
        """Compute the number of runs and the named statistics by group, largest group first; other names are ignored.
        Runs that belong to no group are left out.

        `of_traces`: the runs are roots, and tokens and costs are those of their traces.
        """
        names = dict.fromkeys(["run_count", *(name for name in names if name in _STATISTICS)])
        statistics = ", ".join(_STATISTICS[name] for name in names)
        runs, values = _runs(selection, statistics, of_traces=of_traces, group=_GROUPS[grouping.by])
        values |= grouping.values()
        sql = _STATS.substitute(statistics=statistics, runs=runs, among=grouping.among)
        if grouping.by == "project":
            # Projects are added up over all time: exact quantiles would keep every value in memory.
            sql = sql.replace("quantilesExactInclusive", "quantiles")
        rows = await self._clickhouse.rows(sql, values)
        return {row[0]: dict(zip(names, map(_plain, row[1:]), strict=True)) for row in rows}

    async def facets(self, selection: Selection, grouping: Grouping) -> dict[str, list[Facet]]:
        """Find the most frequent values of name, run type, status and tag, by group as in `of_groups`."""
        where, values = bound(selection)
        group = _GROUPS[grouping.by]
        runs = runs_for(_FACETS.template, group, where=where)
        sql = _FACETS.substitute(group=group, runs=runs, among=grouping.among)
        found: dict[str, dict[str, list[Facet]]] = {}
        for grp, *facet in await self._clickhouse.rows(sql, values | grouping.values()):
            found.setdefault(grp, {}).setdefault(facet[0], []).append((*facet,))
        return {grp: list(chain.from_iterable(facets.values())) for grp, facets in found.items()}

    async def threads(
        self, selection: Selection, *, limit: int, offset: int = 0, after: tuple[datetime, str] | None = None
    ) -> list[Row]:
        """Read the threads of the selected root runs, most recently active first."""
        runs, values = _runs(selection, _THREADS.template, of_traces=True, group="''")
        values |= {"limit": limit, "offset": offset}
        having = ""
        if after is not None:
            place = "(max_start_time, assumeNotNull(thread_id))"
            having = f"HAVING {place} < ({{after_at:DateTime64(6, 'UTC')}}, {{after_thread:String}})"
            values |= {"after_at": after[0], "after_thread": after[1]}
        sql = _THREADS.substitute(runs=runs, having=having)
        return [
            {name: _plain(value) for name, value in row.items()} for row in await self._clickhouse.dicts(sql, values)
        ]


def groups_of(selection: Selection, grouping: Grouping) -> tuple[str, Mapping[str, Any]]:
    """Write a subselect of the runs' ids, each with its group as `grp`. Returns also the values that it binds."""
    runs, values = _runs(selection, "", of_traces=False, group=_GROUPS[grouping.by])
    return f"SELECT * FROM ({runs}) WHERE {grouping.among}", values | grouping.values()


def _runs(selection: Selection, totals: str, *, of_traces: bool, group: str) -> tuple[str, dict[str, Any]]:
    """Write a subselect of the runs with the columns that the totals need. Returns also the values that it binds."""
    words = set(re.findall(r"[a-z_]+", totals))
    plain = [name for name in COLUMNS if name in words and name not in _USAGE]
    usage = {name: name for name in USAGE_FIELDS if name in words}
    usage |= {f"{name}_map": _DETAILS[name] for name in USAGE_DETAILS if f"{name}_map" in words}
    columns = [*plain, *(f"{sql} AS {name}" for name, sql in usage.items())] or ["id"]
    where, values = bound(selection)
    parts = {
        "group": group,
        "columns": ", ".join(columns),
        "runs": runs_for(group, *columns, where=where),
    }
    if not of_traces or not usage:
        return _RUNS.substitute(parts), values
    below_until = selection.until if selection.until == NEVER else selection.until + _TRACE_GROWS
    values["below_until"] = time_text(below_until)
    below_where = scope_of(selection.session_ids).runs.replace("{until:", "{below_until:")
    sql = _ROOTS.substitute(
        parts,
        kept=", ".join(f"roots.{name} AS {name}" for name in plain) or "roots.id AS id",
        merged=", ".join(map(_merged, usage)),
        sums=", ".join(f"{'sumMap' if name.endswith('_map') else 'sum'}({name}) AS {name}" for name in usage),
        usage=", ".join(f"{sql} AS {name}" for name, sql in usage.items()),
        below=runs_for(below_where, "trace_id is_root total_tokens total_cost", *usage.values()),
        below_where=below_where,
    )
    return sql, values


def _merged(name: str) -> str:
    if name.endswith("_map"):
        return f"if(empty(roots.{name}), below.{name}, roots.{name}) AS {name}"
    return f"coalesce(roots.{name}, below.{name}) AS {name}"


def _plain(value: Any) -> Any:
    """Convert the engine's nan, its result for no rows, to None."""
    return None if isinstance(value, float) and math.isnan(value) else value
