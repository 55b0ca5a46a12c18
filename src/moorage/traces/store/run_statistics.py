"""SQL of statistics of trace runs: counts, times, tokens and costs, in all, by group and by thread; and facets."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from string import Template
from typing import Any, NamedTuple

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.filters import text_of_metadata
from moorage.traces.store.run_columns import COLUMNS, flat_runs_for, runs_for
from moorage.traces.store.selections import NEVER, Selection, bound, scope_of, time_text

Row = dict[str, Any]
# The most frequent values of some fields, as (key, value, count).
Facets = list[tuple[str, str, int]]

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


def _quantiles(value: str) -> str:
    return f"quantilesExactInclusive(0.5, 0.99)({value})"


_OF_USAGE = {
    **{name: f"sum({name})" for name in USAGE_FIELDS},
    "tokens_quantiles": _quantiles("total_tokens"),
    "prompt_quantiles": _quantiles("prompt_tokens"),
    "completion_quantiles": _quantiles("completion_tokens"),
    "cost_quantiles": _quantiles("toFloat64(total_cost)"),
    **{name: f"sumMap({name}_map)" for name in USAGE_DETAILS},
}
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
    **_OF_USAGE,
    "group_count": "uniqExactIf(thread_id, isNotNull(thread_id))",
}
_ALL = Template("$begin SELECT $totals FROM $runs")
_STATS = Template("SELECT grp, $totals FROM ($runs) GROUP BY grp ORDER BY count() DESC, grp LIMIT {groups_max:UInt32}")
# Counts values for people who want to narrow a search. Under the key '' it also gives the totals of all runs, since
# both use the same columns. Runs with equal values in all of these columns are aggregated first.
_FACETS = Template("""
SELECT grp, facet.1 AS key, facet.2 AS value, sum(n) AS runs$totals
FROM ($begin SELECT $group AS grp, name, run_type, status, tags_json, count() AS n$states FROM $runs
    GROUP BY grp, name, run_type, status, tags_json)
ARRAY JOIN arrayConcat(
    [('', ''), ('name', ifNull(toString(name), '')), ('run_type', ifNull(toString(run_type), '')), ('status', status)],
    arrayMap(tag -> ('tag', tag), arrayDistinct(JSONExtract(ifNull(tags_json, '[]'), 'Array(String)')))) AS facet
GROUP BY grp, key, value HAVING value != '' OR key = ''
ORDER BY runs DESC, value LIMIT {facets_max:UInt32} BY grp, key
""")
# An aggregate function, its parameters and its arguments.
_AGGREGATE = re.compile(r"(\w+)((?:\([^()]*\))?)\((.*)\)")
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
_THREAD_COUNT = Template("SELECT uniqExact(thread_id) FROM $runs WHERE $where AND notEmpty(ifNull(thread_id, ''))")

# Expressions to group runs by. A run with several tags counts for each of them.
_GROUPS = {
    "project": "toString(session_id)",
    "name": "ifNull(name, '')",
    "run_type": "ifNull(run_type, '')",
    "tag": "arrayJoin(tags)",
    "metadata": text_of_metadata("{group_path:String}"),
    # Start of the run's bucket, in seconds since 1970. The path is the length of a bucket in seconds.
    "time": "toString(intDiv(toUnixTimestamp(start_time), toUInt32({group_path:String})) * toUInt32({group_path:String}))",
}


# Conditions for named groups, and for all groups.
_AMONG_NAMED, _AMONG_ALL = "grp IN {groups:Array(String)}", "grp != ''"


class Grouping(NamedTuple):
    """Grouping of runs, and the requested groups: all, or the named ones. None among the names stands for runs without
    a value for the grouping.
    """

    by: str
    path: str | None = None
    groups: Sequence[str | None] | None = None

    def values(self) -> dict[str, Any]:
        return {"group_path": self.path or "", "groups": [each or "" for each in self.groups or ()]}


class RunStatistics:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def totals(
        self,
        selection: Selection,
        names: Collection[str],
        *,
        of_traces: bool,
        grouping: Grouping | None = None,
        groups_max: int = 1,
    ) -> dict[str, Row]:
        """Compute the named totals by group, largest group first. Runs that belong to no group are left out. Without a
        grouping there is one group '', even if there are no runs.

        `of_traces`: the runs are roots, and tokens and costs are those of their traces.
        """
        if grouping is None:
            return {"": await self._sums(selection, names, of_traces=of_traces)}
        totals = ", ".join(_TOTALS[name] for name in names)
        group, among, named = _grouped(grouping)
        runs, values = _runs(selection, totals, of_traces=of_traces, group=group)
        values |= named | {"groups_max": groups_max}
        sql = _STATS.substitute(totals=totals, runs=f"SELECT * FROM ({runs}) WHERE {among}")
        rows = await self._clickhouse.rows(sql, values)
        return {row[0]: dict(zip(names, map(_plain, row[1:]), strict=True)) for row in rows}

    async def totals_and_facets(
        self, selection: Selection, names: Collection[str], most: int, *, of_traces: bool
    ) -> tuple[Row, Facets]:
        """Return `totals` and `facets` of all runs; if there are no runs, only totals of usage. One statement computes
        both, since merging their columns twice costs more.
        """
        usage, others = _usage_apart(names)
        of_usage, (of_others, facets) = await asyncio.gather(
            self._sums(selection, usage, of_traces=of_traces), self._sums_and_facets(selection, others, most)
        )
        return {**of_others, **of_usage}, facets

    async def _sums(self, selection: Selection, names: Collection[str], *, of_traces: bool) -> Row:
        if not names:
            return {}
        totals = ", ".join(_TOTALS[name] for name in names)
        if of_traces:
            begin, (runs, values) = "", _runs(selection, totals, of_traces=True, group="''")
            runs = f"({runs})"
        else:
            where, values = bound(selection)
            maps = {f"{name}_map": sql for name, sql in _DETAILS.items() if f"{name}_map" in totals}
            begin, runs = flat_runs_for(totals, where=where, **maps)
        [found] = await self._clickhouse.rows(_ALL.substitute(begin=begin, totals=totals, runs=runs), values)
        return dict(zip(names, map(_plain, found), strict=True))

    async def _sums_and_facets(self, selection: Selection, names: Collection[str], most: int) -> tuple[Row, Facets]:
        where, values = bound(selection)
        begin, runs = flat_runs_for(_FACETS.template, *(_TOTALS[name] for name in names), where=where)
        rows = await self._facet_rows("''", begin, runs, values | {"facets_max": most}, names)
        sums = next((row[4:] for row in rows if not row[1]), ())
        return dict(zip(names, map(_plain, sums), strict=False)), _by_group(rows).get("", [])

    async def facets(self, selection: Selection, most: int, grouping: Grouping) -> dict[str, Facets]:
        """Find the most frequent values of name, run type, status and tag, by group as in `totals`."""
        where, values = bound(selection)
        group, among, named = _grouped(grouping)
        runs = f"(SELECT {group} AS of_group, name, run_type, status, tags_json FROM {runs_for(_FACETS.template, group, where=where)})"
        among = among.replace("grp", "of_group")
        values |= named | {"facets_max": most}
        return _by_group(await self._facet_rows("of_group", "", f"{runs} WHERE {among}", values))

    async def _facet_rows(
        self, group: str, begin: str, runs: str, values: Row, totals: Collection[str] = ()
    ) -> list[tuple[Any, ...]]:
        """Read values as (group, key, value, count, *totals), the most frequent values of each key first. The key ''
        stands for all runs of the group.
        """
        made_of = {name: _AGGREGATE.fullmatch(_TOTALS[name]) for name in totals}
        parts = {name: match.groups() for name, match in made_of.items() if match}
        states = "".join(f", {f}State{params}({of}) AS {name}_state" for name, (f, params, of) in parts.items())
        merged = "".join(f", {f}MergeIf{params}({name}_state, key = '')" for name, (f, params, _) in parts.items())
        sql = _FACETS.substitute(group=group, begin=begin, runs=runs, states=states, totals=merged)
        return await self._clickhouse.rows(sql, values)

    async def threads(
        self, selection: Selection, *, limit: int, offset: int = 0, after: tuple[datetime, str] | None = None
    ) -> list[Row]:
        """Read the threads of the selected root runs, most recently active first."""
        runs, values = _runs(selection, _THREADS.template, of_traces=True, group="''")
        values |= {"limit": limit, "offset": offset}
        having = ""
        if after is not None:
            having = (
                "HAVING (last_at, assumeNotNull(thread_id)) < ({after_at:DateTime64(6, 'UTC')}, {after_thread:String})"
            )
            values |= {"after_at": after[0], "after_thread": after[1]}
        return [
            {name: _plain(value) for name, value in row.items()}
            for row in await self._clickhouse.dicts(_THREADS.substitute(runs=runs, having=having), values)
        ]

    async def thread_count(self, selection: Selection) -> int:
        where, values = bound(selection)
        return int(
            await self._clickhouse.value(
                _THREAD_COUNT.substitute(where=where, runs=runs_for("thread_id", where)), values
            )
        )


def ids_of(selection: Selection) -> tuple[str, Mapping[str, Any]]:
    """Write a subselect of the runs' ids. Returns also the values that it binds."""
    where, values = bound(selection)
    return f"SELECT id FROM {runs_for(where)} WHERE {where}", values


def groups_of(selection: Selection, grouping: Grouping) -> tuple[str, Mapping[str, Any]]:
    """Write a subselect of the runs' ids, each with its group as `grp`. Returns also the values that it binds."""
    where, values = bound(selection)
    group, among, named = _grouped(grouping)
    runs = f"SELECT id, {group} AS grp FROM {runs_for(where, group)} WHERE {where}"
    return f"SELECT * FROM ({runs}) WHERE {among}", values | named


def _grouped(grouping: Grouping | None) -> tuple[str, str, dict[str, Any]]:
    """Write the group of a run and the condition on groups. Returns also the values that both bind."""
    if grouping is None:
        return "''", "1", {}
    return _GROUPS[grouping.by], _AMONG_ALL if grouping.groups is None else _AMONG_NAMED, grouping.values()


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


def _usage_apart(names: Collection[str]) -> tuple[list[str], list[str]]:
    """Split names into totals of usage and other totals."""
    return [name for name in names if name in _OF_USAGE], [name for name in names if name not in _OF_USAGE]


def _by_group(rows: Iterable[tuple[Any, ...]]) -> dict[str, Facets]:
    found: dict[str, dict[str, Facets]] = {}
    for grp, key, value, n, *_ in rows:
        if key:
            found.setdefault(grp, {}).setdefault(key, []).append((key, value, n))
    return {grp: list(chain.from_iterable(facets.values())) for grp, facets in found.items()}


def _plain(value: Any) -> Any:
    """Convert the engine's nan, its result for no rows, to None."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
