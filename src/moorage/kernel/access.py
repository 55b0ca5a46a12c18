"""Callers and their scopes, shared by all rooms of the platform."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Scope(StrEnum):
    """The rights of a key. `read` never changes anything; `write` creates and updates; `delete` is separate.

    `agents:…` are rights on all deployed agents of the workspace; `agents:…:<deployment name>` limits a right to one
    deployment. `operator` is the right to administer the installation, across workspaces.
    """

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
    AGENTS_READ = "agents:read"
    AGENTS_INVOKE = "agents:invoke"
    SECRETS_READ = "secrets:read"
    OAUTH_PROVIDERS_READ = "oauth-providers:read"
    OAUTH_PROVIDERS_MANAGE = "oauth-providers:manage"
    OAUTH_TOKENS_READ = "oauth-tokens:read"
    OAUTH_TOKENS_USE = "oauth-tokens:use"
    OPERATOR = "operator"


_SCOPES = frozenset(Scope)
_ON_ONE_AGENT = re.compile(r"(agents:read|agents:invoke):[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_READS = re.compile(r"[a-z-]+:read|agents:read:.+")


def checked_scope(word: str) -> str:
    """Return the word if it is a scope. Raises ValueError otherwise."""
    if word not in _SCOPES and not _ON_ONE_AGENT.fullmatch(word):
        raise ValueError(
            f"not a scope; there are {', '.join(Scope)}, and agents:read:NAME and agents:invoke:NAME for one deployment"
        )
    return word


def known_scopes(words: Iterable[str]) -> frozenset[str]:
    """Return the scopes among the words. Unknown words are ignored, since a token may serve other programs too."""
    return frozenset(word for word in words if word in _SCOPES or _ON_ONE_AGENT.fullmatch(word))


def covers(held: Collection[str], scope: str) -> bool:
    """Return True if the scopes include this one by name, or if none of them is limited to one deployment."""
    one_agent = _ON_ONE_AGENT.fullmatch(scope)
    return scope in held or bool(one_agent and one_agent[1] in held)


def may_use_agent(held: Collection[str], right: Scope, deployment: str) -> bool:
    return right in held or f"{right}:{deployment}" in held


def only_reads(scope: str) -> bool:
    """Return True if the scope only reads. The SQL that lists keys applies the same rule."""
    return bool(_READS.fullmatch(scope))


class Plan(StrEnum):
    """The plan of a workspace. Bulk export needs more than `developer`."""

    DEVELOPER = "developer"
    PLUS = "plus"
    ENTERPRISE = "enterprise"


@dataclass(frozen=True)
class Caller:
    """The caller that a request was admitted as. Every query of a store is limited to `workspace_id`."""

    workspace_id: UUID
    plan: Plan
    scopes: frozenset[str]  # members of Scope, and rights on single agents
    actor: str  # recorded with each change of state, such as "key:<id>" or "user:<subject>"
