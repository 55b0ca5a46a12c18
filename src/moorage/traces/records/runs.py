"""Trace runs: what is answered about them, and what may be asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.words import At, JsonObject, RunStatus, RunType, SortOrder, TraceRequest, TraceTier

# --- what is answered ---------------------------------------------------------------------------------------------


class FeedbackStat(TypedDict):
    """Totals of the feedback with one key, on one run or on many."""

    n: int
    avg: float | None
    min: float | None
    max: float | None
    stdev: float | None
    errors: int
    values: dict[str, int]
    comments: list[str]
    sources: list[Any]
    contains_thread_feedback: bool


class TraceRun(TypedDict, total=False):
    """Recorded step, as v1 of the wire shows it. Costs are decimal strings. Only selected fields are there."""

    id: UUID
    name: str
    run_type: RunType
    start_time: datetime
    end_time: datetime | None
    status: RunStatus
    error: str | None
    execution_order: int
    inputs: JsonObject | None
    inputs_preview: str | None
    inputs_s3_urls: JsonObject | None
    outputs: JsonObject | None
    outputs_preview: str | None
    outputs_s3_urls: JsonObject | None
    s3_urls: JsonObject | None
    extra: JsonObject | None
    serialized: JsonObject | None
    events: list[JsonObject] | None
    tags: list[str] | None
    messages: list[JsonObject] | None
    trace_id: UUID
    dotted_order: str
    parent_run_id: UUID | None
    parent_run_ids: list[UUID] | None
    child_run_ids: list[UUID] | None
    direct_child_run_ids: list[UUID] | None
    session_id: UUID
    app_path: str
    thread_id: str | None
    reference_example_id: UUID | None
    reference_dataset_id: UUID | None
    in_dataset: bool | None
    feedback_stats: dict[str, FeedbackStat] | None
    first_token_time: datetime | None
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    prompt_token_details: dict[str, int] | None
    completion_token_details: dict[str, int] | None
    total_cost: str | None
    prompt_cost: str | None
    completion_cost: str | None
    prompt_cost_details: dict[str, str] | None
    completion_cost_details: dict[str, str] | None
    price_model_id: UUID | None
    manifest_id: UUID | None
    manifest_s3_id: UUID | None
    share_token: UUID | None
    trace_tier: TraceTier | None
    trace_upgrade: bool
    trace_first_received_at: datetime | None
    trace_min_start_time: datetime | None
    trace_max_start_time: datetime | None
    ttl_seconds: int | None
    last_queued_at: datetime | None


class RunsPage(TypedDict):
    """A page of runs. `cursors` has `next` and `prev`; a missing page is null."""

    runs: list[TraceRun]
    cursors: dict[str, str | None]
    search_cursors: JsonObject | None
    parsed_query: str | None


class FilterFault(TypedDict):
    field: str
    message: str


class QueryValidation(TypedDict):
    valid: bool
    errors: list[FilterFault]


class RunStats(TypedDict, total=False):
    """Totals of runs. Latencies are seconds, costs are US dollars, rates are between 0 and 1. `start_time` in a series alone."""

    start_time: datetime
    run_count: int | None
    latency_p50: float | None
    latency_p99: float | None
    latency_avg: float | None
    first_token_p50: float | None
    first_token_p99: float | None
    total_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    median_tokens: int | None
    completion_tokens_p50: int | None
    prompt_tokens_p50: int | None
    tokens_p99: int | None
    completion_tokens_p99: int | None
    prompt_tokens_p99: int | None
    last_run_start_time: datetime | None
    feedback_stats: dict[str, FeedbackStat] | None
    run_facets: list[JsonObject] | None
    error_rate: float | None
    streaming_rate: float | None
    total_cost: float | None
    prompt_cost: float | None
    completion_cost: float | None
    cost_p50: float | None
    cost_p99: float | None
    prompt_token_details: dict[str, int] | None
    completion_token_details: dict[str, int] | None
    prompt_cost_details: dict[str, float] | None
    completion_cost_details: dict[str, float] | None


class RunGroupStats(RunStats):
    group_count: int


class ThreadPreview(TypedDict):
    thread_id: str
    previews: dict[Literal["all_messages", "human_ai_pairs", "first_human_last_ai"], str]


# --- what may be asked --------------------------------------------------------------------------------------------

RunSelect = Literal[
    "id",
    "name",
    "run_type",
    "start_time",
    "end_time",
    "status",
    "error",
    "extra",
    "events",
    "inputs",
    "inputs_preview",
    "inputs_s3_urls",
    "inputs_or_signed_url",
    "outputs",
    "outputs_preview",
    "outputs_s3_urls",
    "outputs_or_signed_url",
    "s3_urls",
    "error_or_signed_url",
    "events_or_signed_url",
    "extra_or_signed_url",
    "serialized_or_signed_url",
    "parent_run_id",
    "manifest_id",
    "manifest_s3_id",
    "manifest",
    "session_id",
    "serialized",
    "reference_example_id",
    "reference_dataset_id",
    "total_tokens",
    "prompt_tokens",
    "prompt_token_details",
    "completion_tokens",
    "completion_token_details",
    "total_cost",
    "prompt_cost",
    "prompt_cost_details",
    "completion_cost",
    "completion_cost_details",
    "price_model_id",
    "first_token_time",
    "trace_id",
    "dotted_order",
    "last_queued_at",
    "feedback_stats",
    "child_run_ids",
    "parent_run_ids",
    "tags",
    "in_dataset",
    "app_path",
    "share_token",
    "trace_tier",
    "trace_first_received_at",
    "ttl_seconds",
    "trace_upgrade",
    "thread_id",
    "trace_min_max_start_time",
    "messages",
    "inserted_at",
]

# Costly fields, read only when a request names them.
_NAMED_ONLY: frozenset[RunSelect] = frozenset(
    {
        "inputs_preview",
        "inputs_s3_urls",
        "inputs_or_signed_url",
        "outputs_preview",
        "outputs_s3_urls",
        "outputs_or_signed_url",
        "s3_urls",
        "error_or_signed_url",
        "events_or_signed_url",
        "extra_or_signed_url",
        "serialized_or_signed_url",
        "manifest",
        "child_run_ids",
        "trace_min_max_start_time",
        "messages",
        "inserted_at",
    }
)
DEFAULT_SELECT: tuple[RunSelect, ...] = tuple(field for field in get_args(RunSelect) if field not in _NAMED_ONLY)

_IDS_MAX = 1000
Ids = Annotated[list[UUID], Field(max_length=_IDS_MAX)]


class RunsFilter(TraceRequest):
    """Conditions on runs. `id` overrides everything else; `start_time` and `end_time` bound the start of a run, inclusively."""

    id: Ids | None = None
    trace: UUID | None = None
    parent_run: UUID | None = None
    run_type: RunType | None = None
    session: Ids | None = None
    reference_example: Ids | None = None
    execution_order: Annotated[int, Field(ge=1, le=1)] | None = None
    start_time: At | None = None
    end_time: At | None = None
    error: bool | None = None
    query: str | None = None
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    is_root: bool | None = None
    data_source_type: Literal["current", "historical", "lite", "root_lite", "runs_feedbacks_rmt_wide"] | None = None
    skip_pagination: bool | None = None
    search_filter: str | None = None
    use_experimental_search: bool = False
    # When the feedback that the filters speak of was last changed: from, inclusively, and until, exclusively.
    min_feedback_modified_at: At | None = None
    max_feedback_modified_at: At | None = None


class RunsQuery(RunsFilter):
    cursor: str | None = None
    # The upper bound of 100 is the route's, since its text is one that clients look for.
    limit: Annotated[int, Field(ge=1)] = 100
    select: Sequence[RunSelect] = DEFAULT_SELECT
    order: SortOrder = "desc"
    skip_prev_cursor: bool = False


class RunsTailQuery(RunsFilter):
    """Runs to follow. `end_time` and `id` are as in a query; runs that began more than a day ago are left out."""

    select: Sequence[RunSelect] = DEFAULT_SELECT


RunStatsSelect = Literal[
    "run_count",
    "latency_p50",
    "latency_p99",
    "latency_avg",
    "first_token_p50",
    "first_token_p99",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "median_tokens",
    "completion_tokens_p50",
    "prompt_tokens_p50",
    "tokens_p99",
    "completion_tokens_p99",
    "prompt_tokens_p99",
    "last_run_start_time",
    "feedback_stats",
    "thread_feedback_stats",
    "run_facets",
    "error_rate",
    "streaming_rate",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "cost_p50",
    "cost_p99",
    "session_feedback_stats",
    "all_run_stats",
    "all_token_stats",
    "prompt_token_details",
    "completion_token_details",
    "prompt_cost_details",
    "completion_cost_details",
]


class RunStatsGroupBy(TraceRequest):
    """`path` is the metadata key when the attribute is metadata."""

    attribute: Literal["name", "run_type", "tag", "metadata"]
    path: str | None = None
    max_groups: Annotated[int, Field(ge=1, le=100)] = 5


class RunStatsQuery(RunsFilter):
    group_by: RunStatsGroupBy | None = None
    groups: list[str | None] | None = None
    select: list[RunStatsSelect] | None = None


class RunSeriesQuery(RunsFilter):
    """Totals over time: from `start_time` (the first run's by default) until `end_time` (now), in at most `buckets` equal times."""

    buckets: Annotated[int, Field(ge=2, le=500)] = 60
    select: Sequence[RunStatsSelect] = (
        "run_count",
        "error_rate",
        "latency_p50",
        "latency_p99",
        "total_tokens",
        "total_cost",
    )


class RunSeries(TypedDict):
    """`buckets` has a total of each time, the first time first, each with its `start_time`; all are `seconds` long."""

    seconds: int
    buckets: list[RunStats]


class RunGroupQuery(TraceRequest):
    """Threads of a project: root runs grouped by the conversation that they belong to."""

    session_id: UUID
    group_by: Literal["conversation"]
    filter: str | None = None
    start_time: At | None = None
    end_time: At | None = None
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 10
