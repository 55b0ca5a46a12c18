"""Projects (wire: sessions): what a workspace's traces are sorted into."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.words import At, FeedbackStat, JsonObject, TraceRequest, TraceTier

# Longer names do not fit an index entry, whatever alphabet they are written in.
NAME_CHARS_MAX = 600
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
# Days that runs are kept. 0: for ever, whatever the workspace says.
TtlDays = Annotated[int, Field(ge=0, le=36_500)]
PAGE_MAX = 100


class Project(TypedDict):
    """A project as every operation shows it. The SDK insists on `reference_dataset_id`, be it null."""

    id: UUID
    tenant_id: UUID
    name: str
    description: str | None
    extra: JsonObject | None
    start_time: datetime
    end_time: datetime | None
    default_dataset_id: UUID | None
    reference_dataset_id: UUID | None
    trace_tier: TraceTier | None
    longlived_ttl_days: int | None
    test_run_number: int | None
    last_run_start_time_live: NotRequired[datetime | None]


class ProjectStats(TypedDict, total=False):
    """Statistics of a project: counts, rates and latencies of its traces, tokens and costs of all runs.

    Latencies are seconds, costs US dollars as decimal strings. `stored_bytes` is about what the runs
    take on the disk. `run_facets` are frequent values of the runs, each with the filter that narrows a search to it.
    """

    run_count: int | None
    latency_p50: float | None
    latency_p99: float | None
    first_token_p50: float | None
    first_token_p99: float | None
    total_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    total_cost: str | None
    prompt_cost: str | None
    completion_cost: str | None
    last_run_start_time: datetime | None
    feedback_stats: dict[str, FeedbackStat] | None
    session_feedback_stats: dict[str, FeedbackStat] | None
    run_facets: Sequence[JsonObject] | None
    error_rate: float | None
    streaming_rate: float | None
    stored_runs: int | None
    stored_bytes: int | None


class ProjectWithStats(Project, ProjectStats):
    """A project as reads show it."""


class ProjectFields(TraceRequest):
    name: Name | None = None
    description: str | None = None
    extra: JsonObject | None = None
    end_time: At | None = None
    default_dataset_id: UUID | None = None
    trace_tier: TraceTier | None = None
    longlived_ttl_days: TtlDays | None = None


class ProjectCreate(ProjectFields):
    id: UUID | None = None
    start_time: At | None = None
    reference_dataset_id: UUID | None = None


class ProjectPatch(ProjectFields):
    """A null changes nothing, since the SDK sends one for whatever it was not given.

    `longlived_ttl_days` is the exception: clients that name it mean it, and null stands for the workspace's.
    """

    def changes(self) -> dict[str, Any]:
        return {
            **self.model_dump(exclude_none=True),
            **self.model_dump(exclude_unset=True, include={"longlived_ttl_days"}),
        }


class MetadataSearch(TraceRequest):
    metadata_keys: Annotated[list[str], Field(max_length=1000)] | None = None
    start_time: At | None = None
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    root_runs_only: bool = False


class AddressKind(StrEnum):
    AGENT = "AGENT"
    EXPERIMENT = "EXPERIMENT"
    EVALUATOR = "EVALUATOR"


class AddressSearch(TraceRequest):
    """Target that newer clients name instead of a project: an agent in an environment, an experiment, or the evaluators."""

    kind: AddressKind
    id: str | None = None
    environment: Literal["LOCAL", "DEVELOPMENT", "STAGING", "PRODUCTION"] | None = None

    @property
    def project_name(self) -> str | None:
        """Return the name under which ingest stores runs of the address; None for an experiment, which has only an id."""
        if self.kind is AddressKind.AGENT and self.id and self.environment:
            return f"{self.id}/{self.environment.lower()}"
        return "evaluators" if self.kind is AddressKind.EVALUATOR else None


class ResolvedAddress(TypedDict):
    session_id: UUID


class ProjectSort(StrEnum):
    NAME = "name"
    START_TIME = "start_time"
    LAST_RUN_START_TIME = "last_run_start_time"
    LATENCY_P50 = "latency_p50"
    LATENCY_P99 = "latency_p99"
    ERROR_RATE = "error_rate"
    FEEDBACK = "feedback"
    RUNS_COUNT = "runs_count"


class ProjectSearch(TraceRequest):
    """Search for projects: conditions, all of which must hold, order, and fields to show."""

    id: Annotated[list[UUID], Field(max_length=1000)] | None = None
    name: str | None = None
    name_contains: str | None = None
    reference_free: bool | None = None
    reference_dataset: Annotated[list[UUID], Field(max_length=1000)] | None = None
    dataset_version: str | None = None
    metadata: str | None = Field(None, description="A JSON object that the project's metadata must contain.")
    filter: str | None = None
    # Resource tags do not exist here, so no project has the tags that are asked for.
    tag_value_id: list[UUID] | None = None
    sort_by: ProjectSort = ProjectSort.START_TIME
    sort_by_desc: bool = True
    sort_by_feedback_key: str | None = None
    sort_by_feedback_source: Literal["session", "run"] | None = None
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX)] = PAGE_MAX
    include_stats: bool = False
    facets: bool = Field(False, description="Whether `run_facets` are counted: frequent values, each with its filter.")
    stats_start_time: At | None = None
    stats_filter: str | None = None
    stats_select: list[str] | None = Field(None, description="Which statistics; the others are null.")


# --- workspaces ---------------------------------------------------------------------------------------------------


class WorkspaceStats(TypedDict):
    """Counts by kind. What this server does not have is always 0, and deployments are counted by the control plane."""

    tenant_id: UUID
    tracer_session_count: int
    dataset_count: int
    repo_count: int
    annotation_queue_count: int
    deployment_count: int
    dashboards_count: int
    evaluator_count: int


class UsageLimit(TypedDict):
    in_reject_set: bool
    usage_limit_type: str | None
    tenant_limit: int | None
