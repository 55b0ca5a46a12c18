"""Who is calling and what they may do: words that every room of the platform shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Scope(StrEnum):
    """What a key may do. `read` never changes anything; `write` creates and updates; `delete` stands alone."""

    WORKSPACES_READ = "workspaces:read"
    WORKSPACES_MANAGE = "workspaces:manage"
    KEYS_MANAGE = "keys:manage"
    PROJECTS_READ = "projects:read"
    PROJECTS_WRITE = "projects:write"
    PROJECTS_DELETE = "projects:delete"
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    RUNS_DELETE = "runs:delete"
    FEEDBACK_READ = "feedback:read"
    FEEDBACK_WRITE = "feedback:write"
    PRICES_MANAGE = "prices:manage"
    BULK_EXPORTS_READ = "bulk-exports:read"
    BULK_EXPORTS_MANAGE = "bulk-exports:manage"
    DEPLOYMENTS_READ = "deployments:read"
    DEPLOYMENTS_WRITE = "deployments:write"
    SECRETS_READ = "secrets:read"
    OAUTH_PROVIDERS_READ = "oauth-providers:read"
    OAUTH_PROVIDERS_MANAGE = "oauth-providers:manage"


class Plan(StrEnum):
    """What a workspace has: bulk export needs more than `developer`."""

    DEVELOPER = "developer"
    PLUS = "plus"
    ENTERPRISE = "enterprise"


@dataclass(frozen=True)
class Caller:
    """Who a request was admitted as. Every statement of a store is bound to `workspace_id`."""

    workspace_id: UUID
    plan: Plan
    scopes: frozenset[Scope]
    actor: str  # what state changes are signed with, such as "key:<id>" or "user:<subject>"
