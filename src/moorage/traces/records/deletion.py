"""Deletions that callers may ask for, and the days that a workspace keeps runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from moorage.traces.records.words import TraceRequest, TraceTier

TRACES_MAX = 1000
PAIRS_MAX = 100
TraceIds = Annotated[list[UUID], Field(min_length=1, max_length=TRACES_MAX)]


class TracesDelete(TraceRequest):
    """Traces of a project by their ids; or traces of the whole workspace that have any of the metadata on any run."""

    session_id: UUID | None = None
    trace_ids: TraceIds | None = None
    metadata: Annotated[dict[str, str], Field(min_length=1, max_length=PAIRS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        by_id = self.session_id is not None and self.trace_ids is not None
        if by_id == (self.metadata is not None):
            raise ValueError("expected either session_id with trace_ids, or metadata")
        return self


class TracesDeleteById(TraceRequest):
    session_id: UUID
    trace_ids: TraceIds


# --- retention ----------------------------------------------------------------------------------------------------

# Days that shortlived runs are kept if the workspace sets no other number.
SHORTLIVED_DAYS = 14
Days = Annotated[int, Field(ge=1, le=36_500)]


class TtlSettings(TypedDict):
    """`longlived_ttl_days` null: for ever. There are no organizations here: `organization_id` is the workspace's."""

    id: UUID
    tenant_id: UUID
    organization_id: UUID
    default_trace_tier: TraceTier
    longlived_ttl_days: int | None
    shortlived_ttl_days: int
    apply_to_all_projects: bool
    configured_by: Literal["system", "user"]
    created_at: datetime
    updated_at: datetime


class TtlSettingsWrite(TraceRequest):
    """`apply_to_all_projects`: no project keeps a setting of its own. Days that are not named stay as they are."""

    tenant_id: UUID | None = None
    default_trace_tier: TraceTier
    apply_to_all_projects: bool = False
    longlived_ttl_days: Days | None = None
    shortlived_ttl_days: Days | None = None
