"""Requests and answers of v2 of the wire about runs, traces and threads. Names of fields to select are upper case."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.run_fields import RunSelectV2, RunTypeV2, RunV2, TraceAggregates
from moorage.traces.records.runs import Ids
from moorage.traces.records.words import At, FeedbackStat, TraceRequest, schema

# --- requests -----------------------------------------------------------------------------------------------------


class _Query(TraceRequest):
    """Time window of a run's start, by default the last day, and of the last change of feedback; and filters."""

    min_start_time: At | None = None
    max_start_time: At | None = None
    min_feedback_modified_at: At | None = None
    max_feedback_modified_at: At | None = None
    cursor: str | None = None
    ai_query: str | None = None
    ai_search: str | None = None
    trace_filter: str | None = None
    tree_filter: str | None = None


class RunsQueryV2(_Query):
    """Exactly one of `project_ids` and `reference_dataset_id`."""

    # Without effect: runs always include the usage of the runs below them.
    include_subtree_usage: bool = False
    project_ids: Ids | None = None
    reference_dataset_id: UUID | None = None
    reference_examples: Ids | None = None
    ids: Ids | None = None
    trace_id: UUID | None = None
    run_type: RunTypeV2 | None = None
    is_root: bool | None = None
    has_error: bool | None = None
    filter: str | None = None
    selects: list[RunSelectV2] | None = None
    sort_order: Literal["ASC", "DESC"] = "DESC"
    page_size: Annotated[int, Field(ge=1, le=1000)] = 100


class TracesQuery(_Query):
    """Traces, each shown by its root run."""

    project_id: UUID
    trace_ids: Ids | None = None
    selects: list[RunSelectV2] | None = None
    page_size: Annotated[int, Field(ge=1, le=100)] = 20


class ThreadsFilter(_Query):
    """Threads of which some root run is selected."""

    project_id: UUID
    filter: str | None = None
    thread_filter: str | None = None


class ThreadsQuery(ThreadsFilter):
    page_size: Annotated[int, Field(ge=1, le=100)] = 20


# --- answers ------------------------------------------------------------------------------------------------------


def page_v2(name: str, items: Any) -> Any:
    """Make the schema of a page of version 2. `items`: the type of the list."""
    return schema(name, "", {"items": items, "next_cursor": str | None, "has_more": bool}, total=True)


class TraceRunsV2(TypedDict):
    items: list[RunV2]


class TraceV2(TypedDict, total=False):
    root_run: RunV2
    trace_aggregates: TraceAggregates


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


class RunUrl(TypedDict):
    url: str
