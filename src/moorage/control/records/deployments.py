"""Deployments: requests, the stored row, and the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from moorage.control.records.host_names import CertificateState, HostName
from moorage.control.records.resources import ResourceSpec, complete_spec
from moorage.control.records.revisions import SourceRevisionConfig, shown_config
from moorage.control.records.secrets import Secret, SecretReference
from moorage.control.records.states import IMAGE_SOURCES, Authentication, Source
from moorage.control.records.unserved import warnings_of
from moorage.control.records.urls import Url

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SHELL = re.compile(r"[;&|`$<>\n\r\0]")

DeploymentType = Literal["dev_free", "dev", "prod", "dev_zero", "dev_free_zero"]
FREE_TYPES = ("dev_free", "dev_free_zero")


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("must be 1 to 63 lower-case letters, digits and dashes, begin with a letter, end with no dash")
    return name


def _checked_command(command: str) -> str:
    if _SHELL.search(command):
        raise ValueError("must be a single command without shell operators")
    return command


def _checked_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not path.isprintable() or path.startswith("/") or ".." in parts or not parts:
        raise ValueError("must be a path inside the source, such as langgraph.json")
    return path


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]
Name = Annotated[str, AfterValidator(_checked_name)]
Command = Annotated[str, Field(max_length=1000), AfterValidator(_checked_command)]
ConfigPath = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_checked_path)]
DisplayName = Annotated[Text, Field(max_length=255)]


class ListenerConfig(BaseModel):
    k8s_namespace: Annotated[Text, Field(max_length=253)] | None = None


class SourceConfigRequest(BaseModel):
    """Configuration of a deployment's build and runs. Null keeps the stored value, or takes the default for a new
    deployment.
    """

    model_config = ConfigDict(extra="ignore")

    integration_id: Annotated[Text, Field(max_length=255)] | None = None
    repo_url: Annotated[Text, Field(max_length=2048)] | None = None
    deployment_type: DeploymentType | None = None
    build_on_push: bool | None = None
    custom_url: Url | None = None
    resource_spec: ResourceSpec | None = None
    listener_id: Annotated[Text, Field(max_length=255)] | None = None
    listener_config: ListenerConfig | None = None
    install_command: Command | None = None
    build_command: Command | None = None


class SourceRevisionConfigRequest(BaseModel):
    """The source of one revision."""

    model_config = ConfigDict(extra="ignore")

    repo_ref: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    langgraph_config_path: ConfigPath | None = None
    graph_config_path: ConfigPath | None = Field(None, description="The same as `langgraph_config_path`.")
    image_uri: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    source_tarball_path: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None

    @model_validator(mode="after")
    def _has_one_path(self) -> Self:
        one, other = self.langgraph_config_path, self.graph_config_path
        if one and other and one != other:
            raise ValueError("langgraph_config_path and graph_config_path are the same field, but differ")
        self.langgraph_config_path = one or other
        return self

    def given(self) -> dict[str, str]:
        """Return the fields that are not null, each under one name only."""
        return self.model_dump(exclude_none=True, exclude={"graph_config_path"})


class DeploymentCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: Name
    source: Source
    source_config: SourceConfigRequest
    source_revision_config: SourceRevisionConfigRequest
    secrets: list[Secret]
    secret_references: list[SecretReference] | None = None
    display_name: DisplayName | None = None

    @model_validator(mode="after")
    def _source_is_complete(self) -> Self:
        config, revision = self.source_config, self.source_revision_config
        if self.source is Source.GITHUB:
            if not config.repo_url:
                raise ValueError("source_config.repo_url is required for the source github")
            if not revision.repo_ref or not revision.langgraph_config_path:
                raise ValueError(
                    "source_revision_config needs repo_ref and langgraph_config_path for the source github"
                )
        if self.source is Source.EXTERNAL_DOCKER and not revision.image_uri:
            raise ValueError("source_revision_config.image_uri is required for the source external_docker")
        if self.source not in IMAGE_SOURCES and revision.image_uri:
            raise ValueError(f"source_revision_config.image_uri has no meaning for the source {self.source}")
        return self


class DeploymentPatch(BaseModel):
    """A change of a deployment. An absent or null part stays as it is, and so do the secrets when their list is empty.

    `remove_secrets` is a field of this server alone: since an empty list of secrets changes nothing, the last secret
    could not be removed without it.
    """

    model_config = ConfigDict(extra="ignore")

    revision_source: Literal["github", "internal_docker", "internal_source"] | None = None
    source_config: SourceConfigRequest | None = None
    source_revision_config: SourceRevisionConfigRequest | None = None
    secrets: list[Secret] | None = None
    remove_secrets: Annotated[list[str], Field(max_length=1000)] | None = None
    secret_references: list[SecretReference] | None = None
    display_name: DisplayName | None = None


@dataclass(frozen=True)
class DeploymentFilter:
    """Conditions of a list. None sets no condition."""

    name: str | None = None
    name_contains: str | None = None
    status: str | None = None
    deployment_type: str | None = None
    ids: list[UUID] | None = None


# --- the row, and what goes out ---------------------------------------------------------------------------------------


class StoredDeployment(TypedDict):
    """A row without its secrets. Both configurations contain exactly the values that callers have set."""

    id: UUID
    workspace_id: UUID
    number: int
    name: str
    display_name: str | None
    source: str
    status: str
    source_config: dict[str, Any]
    source_revision_config: dict[str, Any]
    secret_names: list[str]
    secrets_hash: str
    secret_references: list[dict[str, str]]
    latest_revision_id: UUID | None
    active_revision_id: UUID | None
    created_at: datetime
    updated_at: datetime
    # Of the latest revision, if there is one.
    latest_source: str | None
    latest_status: str | None
    repo_commit_sha: str | None
    authentication: Authentication | None  # of the revision that serves
    active_message: str | None  # why that revision does not serve as it should
    host_name: str | None
    certificate_state: CertificateState | None
    certificate_message: str | None
    certificate_expires_at: datetime | None


class SourceConfig(TypedDict):
    integration_id: str | None
    repo_url: str | None
    deployment_type: str | None
    build_on_push: bool
    custom_url: str | None
    resource_spec: dict[str, Any]
    listener_id: str | None
    listener_config: dict[str, Any] | None
    install_command: str | None
    build_command: str | None


class ShownSecret(TypedDict):
    name: str
    value: str


class Deployment(TypedDict):
    """A deployment as operations show it. `source_revision_config` is the latest revision's.

    Beside the contract it has `secrets_hash`, `latest_revision_status`, `active_revision_message` (why the active
    revision does not serve), `authentication` (how callers of the serving agent authenticate), `host_name` (its own,
    with the certificate) and `warnings` (settings that have no effect, or not the whole).
    """

    id: UUID
    tenant_id: UUID
    name: str
    display_name: str | None
    source: str
    source_config: SourceConfig
    source_revision_config: SourceRevisionConfig
    secrets: list[ShownSecret]
    secrets_hash: str
    secret_references: list[dict[str, str]]
    created_at: datetime
    updated_at: datetime
    status: str
    latest_revision_id: UUID | None
    active_revision_id: UUID | None
    latest_revision_status: str | None
    active_revision_message: str | None
    image_version: str | None
    is_preview: bool
    authentication: Authentication | None
    host_name: HostName | None
    warnings: list[str]


class DeploymentsList(TypedDict):
    resources: list[Deployment]
    offset: int


class FreeCount(TypedDict):
    count: int


def complete_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with all defaults filled in. A revision stores the result and never changes it."""
    empty: dict[str, Any] = dict.fromkeys(SourceConfigRequest.model_fields)
    spec = complete_spec(config.get("resource_spec"), config.get("deployment_type"))
    return empty | config | {"build_on_push": bool(config.get("build_on_push")), "resource_spec": spec}


def own_url(public_url: str, name: str) -> str:
    """Return the URL at which the platform serves the agent."""
    return f"{public_url}/d/{name}"


def shown_deployment(
    row: StoredDeployment, secrets: Sequence[ShownSecret], public_url: str, host_name: HostName | None
) -> Deployment:
    """Return the answer for a deployment. `public_url` is the origin that users see; `custom_url` in it is the agent's
    address.
    """
    config = complete_config(row["source_config"])
    address = config["custom_url"] or own_url(public_url, row["name"])
    return {
        "id": row["id"],
        "tenant_id": row["workspace_id"],
        "name": row["name"],
        "display_name": row["display_name"],
        "source": row["source"],
        "source_config": SourceConfig(**{**config, "custom_url": address}),  # type: ignore[typeddict-item]
        "source_revision_config": shown_config(
            row["source_revision_config"], row["latest_source"] or row["source"], row["repo_commit_sha"]
        ),
        "secrets": list(secrets),
        "secrets_hash": row["secrets_hash"],
        "secret_references": row["secret_references"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["status"],
        "latest_revision_id": row["latest_revision_id"],
        "active_revision_id": row["active_revision_id"],
        "latest_revision_status": row["latest_status"],
        "active_revision_message": row["active_message"],
        "image_version": None,
        "is_preview": False,
        "authentication": row["authentication"],
        "host_name": host_name,
        "warnings": [*warnings_of(row), *_host_name_warnings(host_name)],
    }


def _host_name_warnings(found: HostName | None) -> list[str]:
    if found is None or found["certificate"] != "failed":
        return []
    return [f"source_config.custom_url is served without HTTPS: {found['name']} has no certificate. {found['message']}"]
