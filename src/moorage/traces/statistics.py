"""Statistics of trace runs: of a search, by group, and of threads.

No token or cost is counted twice. A search for runs of any kind adds up the runs' own values; a search for roots alone
adds up those of the whole traces.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language.text import parse, render
from moorage.traces.filter_language.tree import FIELDS, And, Compare, Expression
from moorage.traces.records.runs import (
    FeedbackStat,
    RunGroupStats,
    RunSeries,
    RunSeriesQuery,
    RunsFilter,
    RunStats,
    RunStatsGroupBy,
    RunStatsQuery,
    RunStatsSelect,
)
from moorage.traces.records.words import JsonObject
from moorage.traces.searches import selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_reads import RunReads
from moorage.traces.store.run_statistics import Facets, Grouping, Row, RunStatistics, groups_of, ids_of
from moorage.traces.store.selections import TICK, Selection

_FACETS_MAX = 10
_DAY_S = 86_400
_BUCKETS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S)
# Read separately from the totals, and expensive for each bucket.
_IN_NO_SERIES = frozenset({"run_facets", "feedback_stats", "thread_feedback_stats"})
_COUNTS: tuple[RunStatsSelect, ...] = (
    "run_count",
    "latency_p50",
    "latency_p99",
    "first_token_p50",
    "first_token_p99",
    "last_run_start_time",
    "run_facets",
    "error_rate",
    "streaming_rate",
    "feedback_stats",
)
_TOKENS: tuple[RunStatsSelect, ...] = (
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "median_tokens",
    "completion_tokens_p50",
    "prompt_tokens_p50",
    "tokens_p99",
    "completion_tokens_p99",
    "prompt_tokens_p99",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "cost_p50",
    "cost_p99",
    "prompt_token_details",
    "completion_token_details",
    "prompt_cost_details",
    "completion_cost_details",
)


class Made(NamedTuple):
    """A statistic: the totals that it is computed from, and the function that computes it."""

    totals: tuple[str, ...]
    make: Callable[[Mapping[str, Any]], Any]


def _same(value: Any) -> Any:
    return value


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _tokens(count: int | None) -> int:
    return count or 0


def _dollars(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def _whole_details(details: Mapping[str, float]) -> dict[str, int]:
    return {kind: round(count) for kind, count in details.items()}


def _total(name: str, shape: Callable[[Any], Any] = _same) -> Made:
    return Made((name,), lambda totals: shape(totals[name]))


def _quantile(name: str, place: int, shape: Callable[[Any], Any] = _same) -> Made:
    return Made((name,), lambda totals: shape(totals[name][place]))


def _rate(name: str) -> Made:
    return Made((name, "run_count"), lambda totals: totals[name] / totals["run_count"])


_MADE: dict[str, Made] = {
    "run_count": _total("run_count"),
    "latency_p50": _quantile("latency", 0),
    "latency_p99": _quantile("latency", 1),
    "latency_avg": _total("latency_avg"),
    "first_token_p50": _quantile("first_token", 0),
    "first_token_p99": _quantile("first_token", 1),
    "last_run_start_time": _total("last_run_start_time"),
    "error_rate": _rate("errors"),
    "streaming_rate": _rate("streamed"),
    "median_tokens": _quantile("tokens_quantiles", 0, _whole),
    "tokens_p99": _quantile("tokens_quantiles", 1, _whole),
    "prompt_tokens_p50": _quantile("prompt_quantiles", 0, _whole),
    "prompt_tokens_p99": _quantile("prompt_quantiles", 1, _whole),
    "completion_tokens_p50": _quantile("completion_quantiles", 0, _whole),
    "completion_tokens_p99": _quantile("completion_quantiles", 1, _whole),
    "cost_p50": _quantile("cost_quantiles", 0),
    "cost_p99": _quantile("cost_quantiles", 1),
    "total_tokens": _total("total_tokens", _tokens),
    "prompt_tokens": _total("prompt_tokens", _tokens),
    "completion_tokens": _total("completion_tokens", _tokens),
    "total_cost": _total("total_cost", _dollars),
    "prompt_cost": _total("prompt_cost", _dollars),
    "completion_cost": _total("completion_cost", _dollars),
    "prompt_token_details": _total("prompt_token_details", _whole_details),
    "completion_token_details": _total("completion_token_details", _whole_details),
    "prompt_cost_details": _total("prompt_cost_details"),
    "completion_cost_details": _total("completion_cost_details"),
    "group_count": _total("group_count"),
}
# Statistics that are zero or empty when there are no runs; all others are then unknown.
_ZERO = frozenset({"run_count", "group_count", "total_tokens", "prompt_tokens", "completion_tokens"})


class Statistics:
    def __init__(self, clickhouse: ClickHouse, feedback: FeedbackStore) -> None:
        self._statistics = RunStatistics(clickhouse)
        self._runs = RunReads(clickhouse)
        self._feedback = feedback

    async def of_runs(self, workspace_id: UUID, search: RunStatsQuery) -> RunStats | dict[str, RunStats]:
        """Add up the runs that the search selects; with `group_by`, the largest groups by their names.

        Raises InvalidFiltersError (422), and BadRequestError (400) when the search names nothing to search in.
        """
        selection, wanted = selection_of(workspace_id, search), _wanted(search.select)
        if search.group_by is None:
            return await self._all(selection, wanted, of_traces=selects_roots(search))
        if search.group_by.attribute == "metadata" and not search.group_by.path:
            raise InvalidRequestError("group_by.path must name a metadata key when the attribute is metadata")
        return await self._by_group(selection, search, search.group_by, wanted)

    async def over_time(self, workspace_id: UUID, search: RunSeriesQuery) -> RunSeries:
        """Add up the selected runs in buckets of their start time. Buckets without runs are included.

        Raises InvalidFiltersError and InvalidRequestError (422), and BadRequestError (400) when the search names
        nothing to search in.
        """
        if _IN_NO_SERIES.intersection(search.select):
            raise InvalidRequestError(
                f"A series has no {' and no '.join(sorted(_IN_NO_SERIES))}; ask for them without one"
            )
        selection, wanted = selection_of(workspace_id, search), _wanted(search.select)
        until = search.end_time or datetime.now(UTC)
        since = search.start_time or await self._runs.oldest(selection) or until
        begin, end = math.floor(since.timestamp()), math.floor(until.timestamp())
        seconds = _bucket_s(end - begin, search.buckets)
        totals = await self._statistics.totals(
            replace(selection, until=until + TICK),
            _totals_of(wanted),
            of_traces=selects_roots(search),
            grouping=Grouping("time", str(seconds)),
            groups_max=search.buckets + 1,
        )
        starts = range(begin // seconds * seconds, end + 1, seconds)
        return {"seconds": seconds, "buckets": [_bucket(at, totals.get(str(at), {}), wanted) for at in starts]}

    async def _by_group(
        self, selection: Selection, search: RunStatsQuery, group_by: RunStatsGroupBy, wanted: Collection[str]
    ) -> dict[str, RunStats]:
        asked = Grouping(group_by.attribute, group_by.path, search.groups)
        totals = await self._statistics.totals(
            selection,
            _totals_of(wanted),
            of_traces=selects_roots(search),
            grouping=asked,
            groups_max=group_by.max_groups,
        )
        found = {group: _stats(each, wanted) for group, each in totals.items()}
        shown = asked._replace(groups=list(found))
        facets, feedback = await asyncio.gather(
            self._facets(selection, shown) if "run_facets" in wanted and found else _nothing(),
            self._feedback_by_group(selection, shown) if "feedback_stats" in wanted and found else _nothing(),
        )
        for group, stats in found.items():
            if facets is not None:
                stats["run_facets"] = facets.get(group, [])
            if feedback is not None:
                stats["feedback_stats"] = feedback.get(group, {})
        return found

    async def facets_of_projects(
        self, workspace_id: UUID, ids: Sequence[UUID], since: datetime, stats_filter: str | None
    ) -> dict[UUID, list[JsonObject]]:
        """List facets of each project, over its runs that began since then and meet the filter. Projects without such
        runs are left out.
        """
        search = RunsFilter(session=list(ids), start_time=since, filter=stats_filter)
        facets = await self._facets(selection_of(workspace_id, search), Grouping("project"))
        return {UUID(project): found for project, found in facets.items()}

    async def of_threads(
        self, workspace_id: UUID, search: RunsFilter, select: Collection[str] | None = None
    ) -> RunGroupStats:
        """Add up the root runs that a search for threads selects, and count the threads (`group_count`)."""
        wanted = select or (*_wanted(None), "group_count")
        found: RunGroupStats = await self._all(selection_of(workspace_id, search), wanted, of_traces=True)  # type: ignore[assignment]
        return found

    async def _all(self, selection: Selection, wanted: Collection[str], *, of_traces: bool) -> RunStats:
        (totals, facets), feedback = await asyncio.gather(
            self._totals(selection, wanted, of_traces=of_traces),
            self._feedback_stats(selection) if "feedback_stats" in wanted else _nothing(),
        )
        found = _stats(totals, wanted)
        if "run_facets" in wanted:
            found["run_facets"] = [_facet(*facet) for facet in facets]
        if "feedback_stats" in wanted:
            found["feedback_stats"] = feedback
        return found

    async def _totals(self, selection: Selection, wanted: Collection[str], *, of_traces: bool) -> tuple[Row, Facets]:
        names = _totals_of(wanted)
        if "run_facets" in wanted:
            return await self._statistics.totals_and_facets(selection, names, _FACETS_MAX, of_traces=of_traces)
        return (await self._statistics.totals(selection, names, of_traces=of_traces))[""], []

    async def _facets(self, selection: Selection, grouping: Grouping) -> dict[str, list[JsonObject]]:
        found = await self._statistics.facets(selection, _FACETS_MAX, grouping)
        return {group: [_facet(*facet) for facet in facets] for group, facets in found.items()}

    async def _feedback_by_group(self, selection: Selection, grouping: Grouping) -> dict[str, dict[str, FeedbackStat]]:
        groups, values = groups_of(selection, grouping)
        return await self._feedback.stats_by_group(selection.workspace_id, groups, values)

    async def _feedback_stats(self, selection: Selection) -> dict[str, FeedbackStat]:
        runs, values = ids_of(selection)
        return (await self._feedback.stats_of_runs(selection.workspace_id, runs, values)).get("", {})


def selects_roots(search: RunsFilter) -> bool:
    if search.is_root or search.execution_order == 1:
        return True
    return bool(search.filter) and _requires_root(parse(search.filter or ""))


def _requires_root(expression: Expression) -> bool:
    if isinstance(expression, And):
        return any(map(_requires_root, expression.parts))
    return expression == Compare("eq", FIELDS["is_root"], True)


def _wanted(select: Sequence[RunStatsSelect] | None) -> tuple[RunStatsSelect, ...]:
    if select is None:
        return (*_COUNTS, *_TOKENS)
    groups = {"all_run_stats": _COUNTS, "all_token_stats": _TOKENS}
    return tuple(dict.fromkeys(name for named in select for name in groups.get(named, (named,))))


def _totals_of(wanted: Iterable[str]) -> list[str]:
    made = [_MADE[name] for name in wanted if name in _MADE]
    # The number of runs is always counted: groups are ordered by it.
    return list(dict.fromkeys(["run_count", *(total for each in made for total in each.totals)]))


def _stats(totals: Mapping[str, Any], wanted: Iterable[str]) -> RunStats:
    def made(name: str) -> Any:
        if not totals.get("run_count"):
            return 0 if name in _ZERO else None
        return _MADE[name].make(totals)

    return {name: made(name) for name in wanted if name in _MADE}  # type: ignore[return-value]


def _bucket_s(whole_s: int, buckets_max: int) -> int:
    """Choose the shortest customary length of a bucket that gives at most `buckets_max` buckets."""
    known = next((each for each in _BUCKETS_S if whole_s < each * (buckets_max - 1)), None)
    return known or math.ceil(whole_s / (buckets_max - 1) / _DAY_S) * _DAY_S


def _bucket(at: int, totals: Mapping[str, Any], wanted: Iterable[str]) -> RunStats:
    return {"start_time": datetime.fromtimestamp(at, UTC), **_stats(totals, wanted)}


def _facet(key: str, value: str, n: int) -> JsonObject:
    """Write a facet with the filter that narrows a search to it."""
    field = FIELDS["tags" if key == "tag" else key]
    return {"key": key, "value": value, "query": render(Compare("eq", field, value)), "n": n}


async def _nothing() -> None:
    """Placeholder for a read that was not requested."""
