"""Statistics of trace runs: of a search, by group, and of threads.

No token or cost is counted twice. A search for runs of any kind adds up the runs' own values; a search for roots alone
adds up those of the whole traces.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import InvalidRequestError, NotFoundError
from moorage.traces.filter_language.text import parse, render
from moorage.traces.filter_language.tree import FIELDS, And, Compare, Expression
from moorage.traces.records.projects import ProjectSearch
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.statistics import (
    GROUPS,
    STATISTICS,
    RunGroupStats,
    RunSeries,
    RunSeriesQuery,
    RunStats,
    RunStatsQuery,
    RunStatsSelect,
)
from moorage.traces.records.words import FeedbackStat, JsonObject
from moorage.traces.searches import selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_reads import RunReads
from moorage.traces.store.run_statistics import ALL, Grouping, RunStatistics, groups_of
from moorage.traces.store.selections import TICK, Selection

_DAY_S = 86_400
_BUCKETS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S)
# Refused in a series, since they are read separately, which is expensive for each bucket.
_IN_NO_SERIES = frozenset({"run_facets", "feedback_stats", "thread_feedback_stats"})
# Statistics that are zero when there are no runs; all others are then unknown.
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
        of_traces, group_by = selects_roots(search), search.group_by
        if group_by is None:
            return (await self._read(selection, wanted, of_traces=of_traces))[""]
        if group_by.attribute == "metadata" and not group_by.path:
            raise InvalidRequestError("group_by.path must name a metadata key when the attribute is metadata")
        grouping = Grouping(group_by.attribute, group_by.path, search.groups, group_by.max_groups)
        return await self._read(selection, wanted, of_traces=of_traces, grouping=grouping)

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
        found = await self._statistics.of_groups(
            replace(selection, until=until + TICK),
            wanted,
            of_traces=selects_roots(search),
            grouping=Grouping("time", str(seconds), groups_max=search.buckets + 1),
        )
        buckets = [
            {"start_time": datetime.fromtimestamp(at, UTC), **_stats(found.get(str(at), {}), wanted)}
            for at in range(begin // seconds * seconds, end + 1, seconds)
        ]
        return {"seconds": seconds, "buckets": buckets}

    async def facets_of_projects(
        self, workspace_id: UUID, ids: Sequence[UUID], search: ProjectSearch
    ) -> dict[UUID, list[JsonObject]]:
        """List facets of each project, over the runs that its statistics are about. Projects without such runs are left
        out.
        """
        runs = RunsFilter(session=list(ids), start_time=search.stats_start_time, filter=search.stats_filter)
        facets = await self._facets(selection_of(workspace_id, runs), Grouping("project"))
        return {UUID(project): found for project, found in facets.items()}

    async def of_threads(
        self, workspace_id: UUID, search: RunsFilter, select: Collection[str] | None = None
    ) -> RunGroupStats:
        """Add up the root runs that a search for threads selects, and count the threads (`group_count`)."""
        wanted = select or (*_wanted(None), "group_count")
        return (await self._read(selection_of(workspace_id, search), wanted, of_traces=True))[""]

    async def of_thread(self, workspace_id: UUID, search: RunsFilter, select: Collection[str]) -> RunGroupStats:
        """Add up the root runs of one thread. Raises NotFoundError when it has none."""
        found = await self.of_threads(workspace_id, search, ["run_count", *select])
        if not found["run_count"]:
            raise NotFoundError("Thread not found")
        return found

    async def _read(
        self, selection: Selection, wanted: Collection[str], *, of_traces: bool, grouping: Grouping = ALL
    ) -> dict[str, RunStats]:
        """Read statistics, facets and feedback by group. The group of all runs is there even if there are no runs."""
        totals = asyncio.create_task(
            self._statistics.of_groups(selection, wanted, of_traces=of_traces, grouping=grouping)
        )
        if grouping != ALL:
            grouping = grouping._replace(groups=list(await totals))
        found, facets, feedback = await asyncio.gather(
            totals,
            self._facets(selection, grouping) if "run_facets" in wanted else _nothing(),
            self._feedback_stats(selection, grouping) if "feedback_stats" in wanted else _nothing(),
        )
        return {
            group: {
                **_stats(each, wanted),
                **({} if facets is None else {"run_facets": facets.get(group, [])}),
                **({} if feedback is None else {"feedback_stats": feedback.get(group, {})}),
            }
            for group, each in (found or {"": {}} if grouping == ALL else found).items()
        }

    async def _facets(self, selection: Selection, grouping: Grouping) -> dict[str, list[JsonObject]]:
        found = await self._statistics.facets(selection, grouping)
        return {group: [_facet(*facet) for facet in facets] for group, facets in found.items()}

    async def _feedback_stats(self, selection: Selection, grouping: Grouping) -> dict[str, dict[str, FeedbackStat]]:
        groups, values = groups_of(selection, grouping)
        return await self._feedback.stats_by_group(selection.workspace_id, groups, values)


def selects_roots(search: RunsFilter) -> bool:
    if search.is_root or search.execution_order == 1:
        return True
    return bool(search.filter) and _requires_root(parse(search.filter or ""))


def _requires_root(expression: Expression) -> bool:
    if isinstance(expression, And):
        return any(map(_requires_root, expression.parts))
    return expression == Compare("eq", FIELDS["is_root"], True)


def _wanted(select: Sequence[RunStatsSelect] | None) -> tuple[RunStatsSelect, ...]:
    names = tuple(GROUPS) if select is None else select
    return tuple(dict.fromkeys(each for name in names for each in GROUPS.get(name, (name,))))


def _stats(found: Mapping[str, Any], wanted: Iterable[str]) -> RunStats:
    def shown(name: str) -> Any:
        value = found[name] if found.get("run_count") and name in found else None
        if value is None and name in _ZERO:
            return 0
        return float(value) if isinstance(value, Decimal) else value

    return {name: shown(name) for name in wanted if name in STATISTICS}


def _bucket_s(whole_s: int, buckets_max: int) -> int:
    """Choose the shortest customary length of a bucket that gives at most `buckets_max` buckets."""
    known = next((each for each in _BUCKETS_S if whole_s < each * (buckets_max - 1)), None)
    return known or math.ceil(whole_s / (buckets_max - 1) / _DAY_S) * _DAY_S


def _facet(key: str, value: str, n: int) -> JsonObject:
    """Write a facet with the filter that narrows a search to it."""
    field = FIELDS["tags" if key == "tag" else key]
    return {"key": key, "value": value, "query": render(Compare("eq", field, value)), "n": n}


async def _nothing() -> None:
    """Placeholder for a read that was not requested."""
