"""Orders: everything needed to build and run one revision, except secrets, which builds and
runtimes read separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moorage.control.records.states import RevisionStatus, Source
from moorage.worker.leases import Lease


@dataclass(frozen=True)
class Order:
    """A revision with the settings of its deployment.

    `source_config` has every field that callers see except `custom_url`; its `resource_spec` is complete.
    """

    revision_id: UUID
    deployment_id: UUID
    workspace_id: UUID
    deployment_name: str
    deployment_number: int
    number: int
    status: RevisionStatus
    source: Source
    source_config: dict[str, Any]
    source_revision_config: dict[str, Any]
    repo_commit_sha: str | None  # if given: this commit and no newer one
    build_of: UUID | None
    is_built: bool
    active_revision_id: UUID | None  # the revision that serves at the moment
    image_pin: str | None = None  # if given: this very image, whatever its tag means by now

    @property
    def listener_id(self) -> UUID | None:
        """Return the listener that builds and runs the revision, or None for the platform's own machine."""
        listener_id = self.source_config.get("listener_id")
        return UUID(listener_id) if listener_id else None

    @property
    def workers(self) -> int:
        """Return the least number of processes. Nothing scales to zero."""
        return max(1, self.resource_spec.get("min_scale") or 1)

    @property
    def workers_max(self) -> int:
        """Return the largest number of processes under load."""
        return max(self.workers, self.resource_spec.get("max_scale") or 1)

    @property
    def resource_spec(self) -> dict[str, Any]:
        return self.source_config.get("resource_spec") or {}

    @property
    def made_of(self) -> UUID | str:
        """Return the build or image that the revision runs. Two revisions with the same one run the same code."""
        return self.image_pin or self.build_id

    @property
    def build_id(self) -> UUID:
        """Return the revision that the build belongs to: an earlier one, if this revision deploys its build again."""
        return self.build_of or self.revision_id


@dataclass(frozen=True)
class LeasedRevision:
    lease: Lease
    order: Order


@dataclass(frozen=True)
class LeasedDeployment:
    """A deployment that waits for its database, or for its removal."""

    lease: Lease
    deployment_id: UUID
    workspace_id: UUID
    name: str
    number: int
    status: str
    deletes_project: bool
    listener_id: UUID | None = None


@dataclass(frozen=True)
class FollowedBranch:
    """The branch of a deployment whose pushes make revisions, and the newest commit that was acted on."""

    deployment_id: UUID
    workspace_id: UUID
    number: int
    source_config: dict[str, Any]
    repo_ref: str
    pushed_commit_sha: str | None

    @property
    def repo_url(self) -> str:
        url: str = self.source_config["repo_url"]
        return url
