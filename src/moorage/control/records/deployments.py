"""Deployments and revisions: requests as they come in, and what goes out."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from moorage.control.records.secrets import Secret, SecretReference
from moorage.control.records.states import IMAGE_SOURCES, Source

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SHELL = re.compile(r"[;&|`$<>\n\r\0]")

DeploymentType = Literal["dev_free", "dev", "prod", "dev_zero", "dev_free_zero"]


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("must be 1 to 63 lower-case letters, digits and dashes, begin with a letter, end with no dash")
    return name


def _checked_command(command: str) -> str:
    if _SHELL.search(command):
        raise ValueError("must be a single command without shell operators")
    return command


Name = Annotated[str, AfterValidator(_checked_name)]
Command = Annotated[str, AfterValidator(_checked_command), Field(max_length=1000)]
Cpu = Annotated[float, Field(ge=0.1, le=8)]
CpuLimit = Annotated[float, Field(ge=0.1, le=16)]
MemoryMb = Annotated[int, Field(ge=64, le=262_144)]


class ResourceSpec(BaseModel):
    """What one agent may use. Fields of other runtimes are kept and given back, and act where that runtime runs."""

    model_config = ConfigDict(extra="allow")

    min_scale: Annotated[int, Field(ge=0, le=100)] | None = None
    max_scale: Annotated[int, Field(ge=1, le=100)] | None = None
    cpu: Cpu | None = None
    cpu_limit: CpuLimit | None = None
    memory_mb: MemoryMb | None = None
    memory_limit_mb: MemoryMb | None = None
    db_max_connections: Annotated[int, Field(ge=1, le=1000)] | None = None

    @model_validator(mode="after")
    def _lower_is_not_above_upper(self) -> Self:
        for lower, upper in (("min_scale", "max_scale"), ("cpu", "cpu_limit"), ("memory_mb", "memory_limit_mb")):
            low, high = getattr(self, lower), getattr(self, upper)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{lower} must not be above {upper}")
        return self


class ListenerConfig(BaseModel):
    k8s_namespace: str | None = None


class SourceConfigRequest(BaseModel):
    """How a deployment is built and run. Null means: as it was, or the default."""

    model_config = ConfigDict(extra="ignore")

    integration_id: str | None = None
    repo_url: Annotated[str, Field(max_length=2048)] | None = None
    deployment_type: DeploymentType | None = None
    build_on_push: bool | None = None
    custom_url: Annotated[str, Field(max_length=2048)] | None = None
    resource_spec: ResourceSpec | None = None
    listener_id: str | None = None
    listener_config: ListenerConfig | None = None
    install_command: Command | None = None
    build_command: Command | None = None


class SourceRevisionConfigRequest(BaseModel):
    """What one revision is built from. The config path has two names: both come in, both go out."""

    model_config = ConfigDict(extra="ignore")

    repo_ref: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    langgraph_config_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, validation_alias=AliasChoices("langgraph_config_path", "graph_config_path")
    )
    image_uri: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    source_tarball_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class DeploymentCreate(BaseModel):
    name: Name
    source: Source
    source_config: SourceConfigRequest
    source_revision_config: SourceRevisionConfigRequest
    secrets: list[Secret]
    secret_references: list[SecretReference] | None = None
    display_name: Annotated[str, Field(max_length=255)] | None = None

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
        check_push(config.build_on_push, revision.repo_ref)
        return self


def check_push(build_on_push: bool | None, repo_ref: str | None) -> None:  # noqa: FBT001 - a field of the wire
    """Raises ValueError: nothing is ever pushed to a tag."""
    if build_on_push and repo_ref and repo_ref.startswith("refs/tags/"):
        raise ValueError("source_config.build_on_push must be false when repo_ref is a tag")


class DeploymentPatch(BaseModel):
    """What changes. A part that is not given, or null, stays as it is; an empty list of secrets too."""

    model_config = ConfigDict(extra="ignore")

    revision_source: Literal["github", "internal_docker", "internal_source"] | None = None
    source_config: SourceConfigRequest | None = None
    source_revision_config: SourceRevisionConfigRequest | None = None
    secrets: list[Secret] | None = None
    secret_references: list[SecretReference] | None = None
    display_name: Annotated[str, Field(max_length=255)] | None = None


# --- what goes out ----------------------------------------------------------------------------------------------------


class SourceConfig(TypedDict):
    integration_id: str | None
    repo_url: str | None
    deployment_type: str | None
    build_on_push: bool | None
    custom_url: str | None
    resource_spec: dict[str, Any] | None
    listener_id: str | None
    listener_config: dict[str, Any] | None
    install_command: str | None
    build_command: str | None


class SourceRevisionConfig(TypedDict):
    repo_ref: str | None
    langgraph_config_path: str | None
    graph_config_path: str | None
    image_uri: str | None
    source_tarball_path: str | None
    repo_commit_sha: str | None


class MaskedSecret(TypedDict):
    name: str
    value: str


class Deployment(TypedDict):
    """`source_revision_config` is that of the latest revision. `secrets_hash` is this server's own."""

    id: UUID
    tenant_id: UUID
    name: str
    display_name: str | None
    source: str
    source_config: SourceConfig
    source_revision_config: SourceRevisionConfig
    secrets: list[MaskedSecret]
    secrets_hash: str
    secret_references: list[dict[str, str]]
    created_at: datetime
    updated_at: datetime
    status: str
    latest_revision_id: UUID | None
    active_revision_id: UUID | None
    image_version: str | None
    is_preview: bool


class Revision(TypedDict):
    """`number`, `status_message` and `build_of` are this server's own."""

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
