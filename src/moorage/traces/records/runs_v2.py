"""Requests and answers of v2 of the wire about runs, traces and threads. Names of fields to select are upper case."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.runs import FeedbackStat, Ids
from moorage.traces.records.words import At, JsonObject, TraceRequest

RunTypeV2 = Literal["TOOL", "CHAIN", "LLM", "RETRIEVER", "EMBEDDING", "PROMPT", "PARSER"]
RunStatusV2 = Literal["SUCCESS", "ERROR", "PENDING"]
RunSelectV2 = Literal[
    "ID",
    "NAME",
    "RUN_TYPE",
    "STATUS",
    "START_TIME",
    "END_TIME",
    "LATENCY_SECONDS",
    "FIRST_TOKEN_TIME",
    "ERROR",
    "ERROR_PREVIEW",
    "EXTRA",
    "METADATA",
    "EVENTS",
    "INPUTS",
    "INPUTS_PREVIEW",
    "OUTPUTS",
    "OUTPUTS_PREVIEW",
    "MANIFEST",
    "PARENT_RUN_IDS",
    "PROJECT_ID",
    "TRACE_ID",
    "THREAD_ID",
    "DOTTED_ORDER",
    "IS_ROOT",
    "REFERENCE_EXAMPLE_ID",
    "REFERENCE_DATASET_ID",
    "TOTAL_TOKENS",
    "PROMPT_TOKENS",
    "COMPLETION_TOKENS",
    "TOTAL_COST",
    "PROMPT_COST",
    "COMPLETION_COST",
    "PROMPT_TOKEN_DETAILS",
    "COMPLETION_TOKEN_DETAILS",
    "PROMPT_COST_DETAILS",
    "COMPLETION_COST_DETAILS",
    "PRICE_MODEL_ID",
    "TAGS",
    "APP_PATH",
    "ATTACHMENTS",
    "THREAD_EVALUATION_TIME",
    "IS_IN_DATASET",
    "LAST_QUEUED_AT",
    "SHARE_URL",
    "FEEDBACK_STATS",
    "LS_USER_ID",
]
ThreadTraceSelect = Literal[
    "THREAD_ID",
    "TRACE_ID",
    "OP",
    "PROMPT_TOKENS",
    "COMPLETION_TOKENS",
    "TOTAL_TOKENS",
    "START_TIME",
    "END_TIME",
    "LATENCY",
    "FIRST_TOKEN_TIME",
    "INPUTS_PREVIEW",
    "OUTPUTS_PREVIEW",
    "INPUTS",
    "OUTPUTS",
    "ERROR",
    "PROMPT_COST",
    "COMPLETION_COST",
    "TOTAL_COST",
    "PROMPT_TOKEN_DETAILS",
    "COMPLETION_TOKEN_DETAILS",
    "PROMPT_COST_DETAILS",
    "COMPLETION_COST_DETAILS",
    "NAME",
    "ERROR_PREVIEW",
    "TURN_NUMBER",
]
ThreadStatsSelect = Literal[
    "TURNS",
    "FIRST_START_TIME",
    "LAST_START_TIME",
    "LAST_END_TIME",
    "LATENCY_P50",
    "LATENCY_P99",
    "PROMPT_TOKENS",
    "PROMPT_COST",
    "COMPLETION_TOKENS",
    "COMPLETION_COST",
    "TOTAL_TOKENS",
    "TOTAL_COST",
    "PROMPT_TOKEN_DETAILS",
    "COMPLETION_TOKEN_DETAILS",
    "PROMPT_COST_DETAILS",
    "COMPLETION_COST_DETAILS",
    "FEEDBACK_STATS",
]

ThreadsStatsSelect = Literal[
    "THREAD_COUNT",
    "TRACE_COUNT",
    "TOTAL_TOKENS",
    "TOTAL_COST",
    "ERROR_RATE",
    "STREAMING_RATE",
    "LATENCY_P50",
    "LATENCY_P99",
    "MEDIAN_TOKENS",
    "FIRST_TOKEN_P50",
    "FIRST_TOKEN_P99",
    "PROMPT_TOKENS",
    "COMPLETION_TOKENS",
    "PROMPT_COST",
    "COMPLETION_COST",
    "PROMPT_TOKEN_DETAILS",
    "COMPLETION_TOKEN_DETAILS",
    "PROMPT_COST_DETAILS",
    "COMPLETION_COST_DETAILS",
    "THREAD_FEEDBACK_STATS",
]


# --- what may be asked --------------------------------------------------------------------------------------------


class _Window(TraceRequest):
    """Time window of a run's start, by default the last day, and of the last change of feedback."""

    min_start_time: At | None = None
    max_start_time: At | None = None
    min_feedback_modified_at: At | None = None
    max_feedback_modified_at: At | None = None
    cursor: str | None = None
    ai_query: str | None = None
    ai_search: str | None = None


class RunsQueryV2(_Window):
    """Exactly one of `project_ids` and `reference_dataset_id`."""

    project_ids: Ids | None = None
    reference_dataset_id: UUID | None = None
    reference_examples: Ids | None = None
    ids: Ids | None = None
    trace_id: UUID | None = None
    run_type: RunTypeV2 | None = None
    is_root: bool | None = None
    has_error: bool | None = None
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    # Runs always show what those below them add up to.
    include_subtree_usage: bool = False
    selects: list[RunSelectV2] | None = None
    sort_order: Literal["ASC", "DESC"] = "DESC"
    page_size: Annotated[int, Field(ge=1, le=1000)] = 100


class TracesQuery(_Window):
    """Traces, each shown by its root run."""

    project_id: UUID
    trace_ids: Ids | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    selects: list[RunSelectV2] | None = None
    page_size: Annotated[int, Field(ge=1, le=100)] = 20


class _Threads(_Window):
    """Threads of which some root run is selected."""

    project_id: UUID
    filter: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None
    thread_filter: str | None = None


class ThreadsQuery(_Threads):
    page_size: Annotated[int, Field(ge=1, le=100)] = 20


class ThreadsStatsQuery(_Threads):
    select: Annotated[list[ThreadsStatsSelect], Field(min_length=1)]


# --- what is answered ---------------------------------------------------------------------------------------------


class TokenDetails(TypedDict):
    raw: dict[str, int]


class CostDetails(TypedDict):
    raw: dict[str, float]


class EventV2(TypedDict, total=False):
    name: str
    time: datetime
    kwargs: Any


class RunV2(TypedDict, total=False):
    """A run; only what was selected and is known is there, and `end_time` as null while the run goes on."""

    id: UUID
    name: str
    run_type: RunTypeV2
    status: RunStatusV2
    start_time: datetime
    end_time: datetime | None
    latency_seconds: float
    first_token_time: datetime
    error: str
    error_preview: str
    extra: JsonObject
    metadata: JsonObject
    events: list[EventV2]
    inputs: JsonObject
    inputs_preview: str
    outputs: JsonObject
    outputs_preview: str
    manifest: JsonObject
    parent_run_ids: list[UUID]
    project_id: UUID
    trace_id: UUID
    thread_id: str
    dotted_order: str
    is_root: bool
    reference_example_id: UUID
    reference_dataset_id: UUID
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    total_cost: float
    prompt_cost: float
    completion_cost: float
    prompt_token_details: TokenDetails
    completion_token_details: TokenDetails
    prompt_cost_details: CostDetails
    completion_cost_details: CostDetails
    price_model_id: UUID
    tags: list[str]
    app_path: str
    attachments: dict[str, str]
    thread_evaluation_time: datetime
    is_in_dataset: bool
    share_url: str
    feedback_stats: dict[str, FeedbackStat]


class RunsPageV2(TypedDict):
    items: list[RunV2]
    next_cursor: str | None
    has_more: bool


class TraceRunsV2(TypedDict):
    items: list[RunV2]


class TraceAggregates(TypedDict, total=False):
    total_tokens: int
    total_cost: float
    first_token_time: datetime


class TraceV2(TypedDict, total=False):
    root_run: RunV2
    trace_aggregates: TraceAggregates


class TracesPage(TypedDict):
    items: list[TraceV2]
    next_cursor: str | None
    has_more: bool


class ThreadItem(TypedDict, total=False):
    thread_id: str
    count: int
    start_time: datetime
    min_start_time: datetime
    max_start_time: datetime
    trace_id: UUID
    first_trace_id: UUID
    last_trace_id: UUID
    first_inputs: str
    last_outputs: str
    last_error: str
    num_errored_turns: int
    latency_p50: float
    latency_p99: float
    total_tokens: int
    total_cost: float
    total_token_details: dict[str, int]
    total_cost_details: dict[str, float]
    feedback_stats: dict[str, FeedbackStat]


class ThreadsPage(TypedDict):
    items: list[ThreadItem]
    next_cursor: str | None
    has_more: bool


class ThreadTrace(TypedDict, total=False):
    thread_id: str
    trace_id: UUID
    name: str
    op: int
    turn_number: int
    start_time: datetime
    end_time: datetime | None
    latency: float
    first_token_time: datetime
    inputs: JsonObject
    inputs_preview: str
    outputs: JsonObject
    outputs_preview: str
    error: str
    error_preview: str
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    total_cost: float
    prompt_cost: float
    completion_cost: float
    prompt_token_details: TokenDetails
    completion_token_details: TokenDetails
    prompt_cost_details: CostDetails
    completion_cost_details: CostDetails


class ThreadTracesPage(TypedDict):
    items: list[ThreadTrace]
    next_cursor: str | None
    has_more: bool


class ThreadStatsV2(TypedDict, total=False):
    turns: int
    first_start_time: datetime
    last_start_time: datetime
    last_end_time: datetime
    latency_p50_seconds: float
    latency_p99_seconds: float
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    total_cost: float
    prompt_cost: float
    completion_cost: float
    prompt_token_details: TokenDetails
    completion_token_details: TokenDetails
    prompt_cost_details: CostDetails
    completion_cost_details: CostDetails
    feedback_stats: dict[str, FeedbackStat]


class ThreadsStats(TypedDict, total=False):
    thread_count: int
    trace_count: int
    total_tokens: int
    prompt_tokens: int
    completion_tokens: int
    median_tokens: int
    total_cost: float
    prompt_cost: float
    completion_cost: float
    error_rate: float
    streaming_rate: float
    latency_p50_seconds: float
    latency_p99_seconds: float
    first_token_p50_seconds: float
    first_token_p99_seconds: float
    prompt_token_details: dict[str, int]
    completion_token_details: dict[str, int]
    prompt_cost_details: dict[str, float]
    completion_cost_details: dict[str, float]
    thread_feedback_stats: dict[str, FeedbackStat]


class RunUrl(TypedDict):
    url: str


class Problem(TypedDict):
    """An error, as RFC 7807 describes it. `remedy` says what the caller can do."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    remedy: str
