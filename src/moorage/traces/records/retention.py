"""Retention settings: the days that a workspace keeps runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.traces.records.words import TraceRequest, TraceTier

# What `shortlived` means unless a workspace says otherwise.
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
