"""Statistics of runs and of threads: each with its type and its names in both versions of the wire; and requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.run_fields import CostDetails, TokenDetails
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.runs_v2 import ThreadsFilter
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS, FeedbackStat, JsonObject, TraceRequest, schema


class Statistic(NamedTuple):
    """A statistic: its type, the name that selects it together with others, and its names in version 2, of many threads
    and of one.
    """

    type: Any
    group: str | None
    threads: str | None = None
    thread: str | None = None


_RUN, _USAGE = "all_run_stats", "all_token_stats"
_FEEDBACK, _TOKENS, _COSTS = dict[str, FeedbackStat], dict[str, int], dict[str, float]
STATISTICS = {
    "run_count": Statistic(int, _RUN, "trace_count", "turns"),
    "latency_p50": Statistic(float, _RUN, "latency_p50", "latency_p50"),
    "latency_p99": Statistic(float, _RUN, "latency_p99", "latency_p99"),
    "latency_avg": Statistic(float, None),
    "first_token_p50": Statistic(float, _RUN, "first_token_p50"),
    "first_token_p99": Statistic(float, _RUN, "first_token_p99"),
    "first_run_start_time": Statistic(datetime, None, None, "first_start_time"),
    "last_run_start_time": Statistic(datetime, _RUN, None, "last_start_time"),
    "last_run_end_time": Statistic(datetime, None, None, "last_end_time"),
    "run_facets": Statistic(list[JsonObject], _RUN),
    "error_rate": Statistic(float, _RUN, "error_rate"),
    "streaming_rate": Statistic(float, _RUN, "streaming_rate"),
    "feedback_stats": Statistic(_FEEDBACK, _RUN, "thread_feedback_stats", "feedback_stats"),
    **{name: Statistic(int if name.endswith("tokens") else float, _USAGE, name, name) for name in USAGE_FIELDS},
    **{name: Statistic(_TOKENS if "token" in name else _COSTS, _USAGE, name, name) for name in USAGE_DETAILS},
    "median_tokens": Statistic(int, _USAGE, "median_tokens"),
    "completion_tokens_p50": Statistic(int, _USAGE),
    "prompt_tokens_p50": Statistic(int, _USAGE),
    "tokens_p99": Statistic(int, _USAGE),
    "completion_tokens_p99": Statistic(int, _USAGE),
    "prompt_tokens_p99": Statistic(int, _USAGE),
    "cost_p50": Statistic(float, _USAGE),
    "cost_p99": Statistic(float, _USAGE),
    "group_count": Statistic(int, None, "thread_count"),
}
GROUPS = {group: tuple(n for n, each in STATISTICS.items() if each.group == group) for group in (_RUN, _USAGE)}


def _shown_v2(name: str) -> str:
    """Return the name of a statistic in answers of version 2, which has its unit."""
    return f"{name}_seconds" if name.startswith(("latency_", "first_token_")) else name


# For each name in `select` of version 2: the name in its answer, and the name of the statistic.
OF_THREADS = {
    each.threads.upper(): (_shown_v2(each.threads), name) for name, each in STATISTICS.items() if each.threads
}
OF_THREAD = {each.thread.upper(): (_shown_v2(each.thread), name) for name, each in STATISTICS.items() if each.thread}


if TYPE_CHECKING:
    RunStatsSelect: TypeAlias = str
    ThreadStatsSelect: TypeAlias = str
    ThreadsStatsSelect: TypeAlias = str
    RunStats: TypeAlias = JsonObject
    RunGroupStats: TypeAlias = JsonObject
    ThreadStatsV2: TypeAlias = JsonObject
    ThreadsStats: TypeAlias = JsonObject
else:
    _SELECTED = {name: each.type | None for name, each in STATISTICS.items() if each.group or name == "latency_avg"}
    RunStatsSelect = Literal[*_SELECTED, "thread_feedback_stats", "session_feedback_stats", *GROUPS]
    ThreadStatsSelect = Literal[*OF_THREAD]
    ThreadsStatsSelect = Literal[*OF_THREADS]

    _MEANING = "Totals of runs. Latencies are seconds, costs are US dollars, rates are between 0 and 1."
    _RAW = {_TOKENS: TokenDetails, _COSTS: CostDetails}

    RunStats = schema("RunStats", f"{_MEANING} `start_time` in a series alone.", {"start_time": datetime} | _SELECTED)
    RunGroupStats = schema("RunGroupStats", _MEANING, {"group_count": int} | _SELECTED)
    _of_threads = {shown: STATISTICS[name].type for shown, name in OF_THREADS.values()}
    _of_thread = {shown: STATISTICS[name].type for shown, name in OF_THREAD.values()}
    ThreadsStats = schema("ThreadsStats", _MEANING, _of_threads)
    ThreadStatsV2 = schema("ThreadStatsV2", _MEANING, {name: _RAW.get(kind, kind) for name, kind in _of_thread.items()})


class RunStatsGroupBy(TraceRequest):
    """`path` is the metadata key when the attribute is metadata."""

    attribute: Literal["name", "run_type", "tag", "metadata"]
    path: str | None = None
    max_groups: Annotated[int, Field(ge=1, le=100)] = 5


class RunStatsQuery(RunsFilter):
    group_by: RunStatsGroupBy | None = None
    groups: list[str | None] | None = None
    select: list[RunStatsSelect] | None = None


_IN_SERIES = ("run_count", "error_rate", "latency_p50", "latency_p99", "total_tokens", "total_cost")


class RunSeriesQuery(RunsFilter):
    """Totals over time: from `start_time` (the first run's by default) until `end_time` (now), in at most `buckets` equal times."""

    buckets: Annotated[int, Field(ge=2, le=500)] = 60
    select: Sequence[RunStatsSelect] = _IN_SERIES


class RunSeries(TypedDict):
    """`buckets` has a total of each time, the first time first, each with its `start_time`; all are `seconds` long."""

    seconds: int
    buckets: list[RunStats]


class ThreadsStatsQuery(ThreadsFilter):
    select: Annotated[list[ThreadsStatsSelect], Field(min_length=1)]
