"""Revisions: the stored row, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from typing_extensions import TypedDict

from moorage.control.records.states import Source


class SourceRevisionConfig(TypedDict):
    """The source of a revision. The configuration path has two names on the wire, and answers have both."""

    repo_ref: str | None
    langgraph_config_path: str | None
    graph_config_path: str | None
    image_uri: str | None
    source_tarball_path: str | None
    repo_commit_sha: str | None


class StoredRevision(TypedDict):
    """A row. `source_revision_config` contains only the fields that were given."""

    id: UUID
    deployment_id: UUID
    workspace_id: UUID
    number: int
    status: str
    status_message: str | None
    source: str
    source_config: dict[str, Any]
    source_revision_config: dict[str, Any]
    repo_commit_sha: str | None
    image_pin: str | None
    build_of: UUID | None
    is_built: bool
    created_at: datetime
    updated_at: datetime


class Revision(TypedDict):
    """A revision. `deployment_id`, `number`, `status_message` and `build_of` are fields of this server alone."""

    id: UUID
    deployment_id: UUID
    number: int
    created_at: datetime
    updated_at: datetime
    status: str
    status_message: str | None
    source: str
    source_revision_config: SourceRevisionConfig
    build_of: UUID | None


class RevisionsList(TypedDict):
    resources: list[Revision]
    offset: int


# The fields of a revision's configuration that have a meaning for each source.
_FIELDS = {
    Source.GITHUB: frozenset({"repo_ref", "langgraph_config_path"}),
    Source.INTERNAL_SOURCE: frozenset({"source_tarball_path", "langgraph_config_path"}),
    Source.INTERNAL_DOCKER: frozenset({"image_uri"}),
    Source.EXTERNAL_DOCKER: frozenset({"image_uri"}),
}


def meaningless_fields(given: Mapping[str, str], source: Source) -> list[str]:
    return sorted(given.keys() - _FIELDS[source])


def missing_fields(config: Mapping[str, str], source: Source) -> list[str]:
    """Return the fields that a revision of this source still needs."""
    return sorted(_FIELDS[source] - config.keys())


def shown_config(config: Mapping[str, str], source: str, repo_commit_sha: str | None) -> SourceRevisionConfig:
    """Return the fields of the configuration that belong to this source. A deployment that had other sources has more
    fields.
    """
    fields = _FIELDS[Source(source)]
    shown = {name: value for name, value in config.items() if name in fields}
    path = shown.get("langgraph_config_path")
    return {
        "repo_ref": shown.get("repo_ref"),
        "langgraph_config_path": path,
        "graph_config_path": path,
        "image_uri": shown.get("image_uri"),
        "source_tarball_path": shown.get("source_tarball_path"),
        "repo_commit_sha": repo_commit_sha,
    }


def shown_revision(row: StoredRevision) -> Revision:
    return {
        "id": row["id"],
        "deployment_id": row["deployment_id"],
        "number": row["number"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["status"],
        "status_message": row["status_message"],
        "source": row["source"],
        "source_revision_config": shown_config(row["source_revision_config"], row["source"], row["repo_commit_sha"]),
        "build_of": row["build_of"],
    }
