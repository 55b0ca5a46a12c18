"""Trace runs: what is answered about them, and what may be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.run_fields import DEFAULT_SELECT, RunSelect, TraceRun
from moorage.traces.records.words import At, JsonObject, RunType, SortOrder, TraceRequest

# --- answers ------------------------------------------------------------------------------------------------------


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


class ThreadPreview(TypedDict):
    thread_id: str
    previews: dict[Literal["all_messages", "human_ai_pairs", "first_human_last_ai"], str]


# --- requests -----------------------------------------------------------------------------------------------------

Ids = Annotated[list[UUID], Field(max_length=1000)]


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
    # Span of the last change of the feedback that the filters name. The minimum is included, the maximum excluded.
    min_feedback_modified_at: At | None = None
    max_feedback_modified_at: At | None = None


class RunsQuery(RunsFilter):
    cursor: str | None = None
    # The route checks the maximum of 100, since clients look for the text of its error.
    limit: Annotated[int, Field(ge=1)] = 100
    select: Sequence[RunSelect] = DEFAULT_SELECT
    order: SortOrder = "desc"
    skip_prev_cursor: bool = False


class RunsTailQuery(RunsFilter):
    """Runs to follow. `end_time` and `id` are as in a query; runs that began more than a day ago are left out."""

    select: Sequence[RunSelect] = DEFAULT_SELECT


class RunGroupQuery(TraceRequest):
    """Threads of a project: root runs grouped by the conversation that they belong to."""

    session_id: UUID
    group_by: Literal["conversation"]
    filter: str | None = None
    start_time: At | None = None
    end_time: At | None = None
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 10
