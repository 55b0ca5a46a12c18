"""Projects: deployments and revisions with the field names of the first version of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from moorage.control.records.deployments import (
    ConfigPath,
    Deployment,
    DeploymentPatch,
    SourceConfigRequest,
    SourceRevisionConfigRequest,
    Text,
)
from moorage.control.records.resources import ResourceSpec
from moorage.control.records.revisions import Revision
from moorage.control.records.secrets import Secret


class ProjectRevisionCreate(BaseModel):
    """A request for a revision. Absent and null fields are taken from the previous revision."""

    model_config = ConfigDict(extra="ignore")

    image_path: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    repo_path: ConfigPath | None = None
    env_vars: list[Secret] | None = None
    container_spec: ResourceSpec | None = None

    def patch(self) -> DeploymentPatch:
        return DeploymentPatch(
            source_config=SourceConfigRequest(resource_spec=self.container_spec),
            source_revision_config=SourceRevisionConfigRequest(
                image_uri=self.image_path, langgraph_config_path=self.repo_path
            ),
            secrets=self.env_vars,
        )


class ProjectMetadata(TypedDict):
    deployment_type: str | None
    image_source: str


class ProjectResource(TypedDict):
    url: str | None
    latest_revision: dict[str, Any] | None
    latest_active_revision: dict[str, Any] | None


class Project(TypedDict):
    id: UUID
    tenant_id: UUID
    name: str
    created_at: datetime
    updated_at: datetime
    lc_hosted: bool
    repo_url: str | None
    repo_branch: str | None
    build_on_push: bool
    metadata: ProjectMetadata
    resource: ProjectResource


class ProjectRevisionMetadata(TypedDict):
    repo_commit_sha: str | None


class ProjectRevision(TypedDict):
    id: UUID
    project_id: UUID
    created_at: datetime
    updated_at: datetime
    repo_path: str | None
    repo_commit: str | None
    image_path: str | None
    status: str
    status_message: str | None
    metadata: ProjectRevisionMetadata


def shown_project(deployment: Deployment) -> Project:
    config = deployment["source_config"]
    return {
        "id": deployment["id"],
        "tenant_id": deployment["tenant_id"],
        "name": deployment["name"],
        "created_at": deployment["created_at"],
        "updated_at": deployment["updated_at"],
        "lc_hosted": False,
        "repo_url": config["repo_url"],
        "repo_branch": deployment["source_revision_config"]["repo_ref"],
        "build_on_push": config["build_on_push"],
        "metadata": {"deployment_type": config["deployment_type"], "image_source": deployment["source"]},
        "resource": {
            "url": config["custom_url"],
            "latest_revision": _reference(deployment["latest_revision_id"]),
            "latest_active_revision": _reference(deployment["active_revision_id"]),
        },
    }


def shown_project_revision(revision: Revision) -> ProjectRevision:
    config = revision["source_revision_config"]
    return {
        "id": revision["id"],
        "project_id": revision["deployment_id"],
        "created_at": revision["created_at"],
        "updated_at": revision["updated_at"],
        "repo_path": config["langgraph_config_path"],
        "repo_commit": config["repo_ref"],
        "image_path": config["image_uri"],
        "status": revision["status"],
        "status_message": revision["status_message"],
        "metadata": {"repo_commit_sha": config["repo_commit_sha"]},
    }


def _reference(revision_id: UUID | None) -> dict[str, Any] | None:
    return None if revision_id is None else {"hosted_langserve_revision_id": revision_id}
