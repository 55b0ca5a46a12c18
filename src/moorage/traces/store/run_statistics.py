"""SQL that adds trace runs up: counts, times, tokens and costs, by group, by thread, and how often values occur."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from string import Template
from typing import Any, NamedTuple

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.conditions import time_text
from moorage.traces.store.filters import text_of_metadata
from moorage.traces.store.run_columns import COLUMNS, runs_for
from moorage.traces.store.selections import NEVER, Selection, bound, scope_of

Row = dict[str, Any]

_USAGE = frozenset({*USAGE_FIELDS, *USAGE_DETAILS})
# Tokens and costs by kind, which are stored as JSON. Most runs have none, and are not parsed.
_MAP = "Map(String, Float64)"
_DETAILS = {
    name: f"if(isNull({name}), CAST(map(), '{_MAP}'), CAST(JSONExtractKeysAndValues(assumeNotNull({name}), 'Float64'), '{_MAP}'))"
    for name in USAGE_DETAILS
}
# Of a trace, the runs that begin within this time after what is asked for count with it.
_TRACE_GROWS = timedelta(days=1)

_RUNS = Template("SELECT $group AS grp, $columns FROM $runs")
# Each root with the tokens and costs of its trace: its own when it has some, else those of the runs below it.
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


# A row that says anything of usage says one of these.
_SAYS_USAGE = (
    "isNotNull(patched_total_tokens) OR isNotNull(trace_run_rows.total_tokens)"
    " OR isNotNull(patched_total_cost) OR isNotNull(trace_run_rows.total_cost)"
)
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
_ALL = Template("SELECT $totals FROM ($runs)")
_STATS = Template("SELECT grp, $totals FROM ($runs) GROUP BY grp ORDER BY count() DESC, grp LIMIT {groups_max:UInt32}")
# Which values occur how often, for people who narrow a search down. Tags are counted by their lists, and taken apart after.
_FACETS = Template("""
SELECT grp,
    multiIf(grouping(name) = 0, 'name', grouping(run_type) = 0, 'run_type', grouping(status) = 0, 'status', 'tag') AS key,
    coalesce(name, run_type, nullIf(status, ''), tags_json) AS value,
    count() AS n
FROM (SELECT $group AS grp, name, run_type, status, tags_json FROM $runs) WHERE $among
GROUP BY GROUPING SETS ((grp, name), (grp, run_type), (grp, status), (grp, tags_json))
ORDER BY n DESC, value LIMIT 1000 BY grp, key
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
_THREAD_COUNT = Template("SELECT uniqExact(thread_id) FROM $runs WHERE $where AND notEmpty(ifNull(thread_id, ''))")

# What runs are grouped by. Runs have several tags, and are counted with each.
_GROUPS = {
    "project": "toString(session_id)",
    "name": "ifNull(name, '')",
    "run_type": "ifNull(run_type, '')",
    "tag": "arrayJoin(tags)",
    "metadata": text_of_metadata("{group_path:String}"),
}


# Of some groups, or of all; without a group runs are all in one, under ''.
_AMONG_NAMED, _AMONG_ALL = "grp IN {groups:Array(String)}", "grp != ''"


class Grouping(NamedTuple):
    """How runs are told apart, and which groups are meant: all that there are, or those that are named, where None stands
    for runs that have no value to be grouped by.
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
        """The named totals by group, the largest first; without a grouping all in one, under '', also of no runs. Runs that
        belong to none of the groups are left out.

        `of_traces`: the runs are roots, and tokens and costs are those of their traces.
        """
        if grouping is None:
            return {"": await self._of_all(selection, names, of_traces=of_traces)}
        totals = ", ".join(_TOTALS[name] for name in names)
        group, among, named = _grouped(grouping)
        runs, values = _runs(selection, totals, of_traces=of_traces, group=group)
        values |= named | {"groups_max": groups_max}
        sql = _STATS.substitute(totals=totals, runs=f"SELECT * FROM ({runs}) WHERE {among}")
        rows = await self._clickhouse.rows(sql, values)
        return {row[0]: dict(zip(names, map(_plain, row[1:]), strict=True)) for row in rows}

    async def _of_all(self, selection: Selection, names: Collection[str], *, of_traces: bool) -> Row:
        usage = [name for name in names if name in _OF_USAGE]
        if not usage or of_traces or selection.condition is not None:
            return await self._sums(selection, names, of_traces=of_traces)
        # Most rows say nothing of usage, and to merge its twenty columns costs more than all the rest.
        others = [name for name in names if name not in _OF_USAGE]
        found = await asyncio.gather(self._sums(selection, others), self._sums(selection, usage, rows=_SAYS_USAGE))
        return {**found[0], **found[1]}

    async def _sums(
        self, selection: Selection, names: Collection[str], *, of_traces: bool = False, rows: str = "true"
    ) -> Row:
        totals = ", ".join(_TOTALS[name] for name in names)
        runs, values = _runs(selection, totals, of_traces=of_traces, group="''", rows=rows)
        [found] = await self._clickhouse.rows(_ALL.substitute(totals=totals, runs=runs), values)
        return dict(zip(names, map(_plain, found), strict=True))

    async def facets(
        self, selection: Selection, most: int, grouping: Grouping | None = None
    ) -> dict[str, list[tuple[str, str, int]]]:
        """The most frequent values of name, run type, status and tag, as (key, value, how often), by group as `totals`."""
        where, values = bound(selection)
        group, among, named = _grouped(grouping)
        runs = runs_for(_FACETS.template, group, where=where)
        sql = _FACETS.substitute(runs=runs, group=group, among=among)
        found: dict[str, dict[str, Counter[str]]] = {}
        for grp, key, value, n in await self._clickhouse.rows(sql, values | named):
            counter = found.setdefault(grp, {}).setdefault(key, Counter())
            counter.update(dict.fromkeys(orjson.loads(value or "[]") if key == "tag" else [value or ""], n))
        return {
            grp: [(key, value, n) for key, counter in counts.items() for value, n in counter.most_common(most) if value]
            for grp, counts in found.items()
        }

    async def threads(
        self, selection: Selection, *, limit: int, offset: int = 0, after: tuple[datetime, str] | None = None
    ) -> list[Row]:
        """Threads of the root runs of the selection, the one that was active last first."""
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
    """A subselect of the ids of the runs, and what it binds."""
    where, values = bound(selection)
    return f"SELECT id FROM {runs_for(where)} WHERE {where}", values


def groups_of(selection: Selection, grouping: Grouping) -> tuple[str, Mapping[str, Any]]:
    """A subselect of the ids of the runs, each with its group as `grp`, and what it binds."""
    where, values = bound(selection)
    group, among, named = _grouped(grouping)
    runs = f"SELECT id, {group} AS grp FROM {runs_for(where, group)} WHERE {where}"
    return f"SELECT * FROM ({runs}) WHERE {among}", values | named


def _grouped(grouping: Grouping | None) -> tuple[str, str, dict[str, Any]]:
    """The group of a run, the condition on groups, and what both bind."""
    if grouping is None:
        return "''", "1", {}
    return _GROUPS[grouping.by], _AMONG_ALL if grouping.groups is None else _AMONG_NAMED, grouping.values()


def _runs(
    selection: Selection, totals: str, *, of_traces: bool, group: str, rows: str = "true"
) -> tuple[str, dict[str, Any]]:
    """A subselect of the runs with what the SQL of the totals names, and what it binds."""
    words = set(re.findall(r"[a-z_]+", totals))
    plain = [name for name in COLUMNS if name in words and name not in _USAGE]
    usage = {name: name for name in USAGE_FIELDS if name in words}
    usage |= {f"{name}_map": _DETAILS[name] for name in USAGE_DETAILS if f"{name}_map" in words}
    columns = [*plain, *(f"{sql} AS {name}" for name, sql in usage.items())] or ["id"]
    where, values = bound(selection)
    parts = {
        "group": group,
        "columns": ", ".join(columns),
        "runs": runs_for(group, *columns, where=where, rows=rows),
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
    """The engine says nan where there was nothing to look at."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
