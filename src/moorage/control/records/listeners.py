"""Listeners: machines that run agents for a workspace. Requests, the stored row, and the answer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import TypedDict

ComputeType = Literal["k8s", "machine"]
# Printable, since it is shown on terminals.
ComputeId = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
Namespace = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?$")]
Version = Annotated[str, StringConstraints(max_length=255, pattern=r"^[\x20-\x7e]*$")]


class ListenerComputeConfig(BaseModel):
    """`k8s_namespaces` are the namespaces that deployments may name in `listener_config`; null allows any."""

    model_config = ConfigDict(extra="forbid")

    k8s_namespaces: Annotated[list[Namespace], Field(max_length=1000)] | None = None


class ListenerCreate(BaseModel):
    """A request for a listener. `compute_id` is unique in the workspace: `moorage listener NAME` serves the listener of
    that name.
    """

    model_config = ConfigDict(extra="forbid")

    version: Version | None = None
    compute_type: ComputeType
    compute_id: ComputeId
    compute_config: ListenerComputeConfig

    @model_validator(mode="after")
    def _has_namespaces_in_clusters_only(self) -> Self:
        if self.compute_type != "k8s" and self.compute_config.k8s_namespaces is not None:
            raise ValueError("compute_config.k8s_namespaces is for the compute_type k8s only")
        return self


class ListenerPatch(BaseModel):
    """A change of a listener. An absent or null part stays as it is."""

    model_config = ConfigDict(extra="forbid")

    version: Version | None = None
    compute_config: ListenerComputeConfig | None = None


class StoredListener(TypedDict):
    id: UUID
    workspace_id: UUID
    version: str | None
    compute_type: ComputeType
    compute_id: str
    compute_config: dict[str, Any]
    last_seen_at: datetime | None
    created_at: datetime
    updated_at: datetime


class Listener(TypedDict):
    """A listener. `is_connected` and `last_seen_at` are fields of this server alone."""

    id: UUID
    version: str | None
    compute_type: ComputeType
    compute_id: str
    compute_config: dict[str, Any]
    is_connected: bool
    last_seen_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ListenersList(TypedDict):
    resources: list[Listener]
    offset: int


class ListenerHello(BaseModel):
    """The first frame of a tunnel. `instance` distinguishes machines of the same name; `key` is an API key of the
    listener's own moorage, with which the platform gives it orders.
    """

    model_config = ConfigDict(extra="ignore")

    instance: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    key: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\x21-\x7e]+$")]
    version: Version
