"""Workspaces, as clients ask for them."""

from __future__ import annotations

from uuid import UUID

from typing_extensions import TypedDict


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
