"""The states of deployments and revisions, and the allowed transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

# How callers of an agent authenticate: with keys of the platform, or as the project's own code decides.
Authentication = Literal["platform_keys", "custom"]


class DeploymentStatus(StrEnum):
    AWAITING_DATABASE = "AWAITING_DATABASE"
    READY = "READY"
    UNUSED = "UNUSED"
    AWAITING_DELETE = "AWAITING_DELETE"
    UNKNOWN = "UNKNOWN"


class RevisionStatus(StrEnum):
    CREATING = "CREATING"
    QUEUED = "QUEUED"
    AWAITING_BUILD = "AWAITING_BUILD"
    BUILDING = "BUILDING"
    AWAITING_DEPLOY = "AWAITING_DEPLOY"
    DEPLOYING = "DEPLOYING"
    DEPLOYED = "DEPLOYED"
    CREATE_FAILED = "CREATE_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    SKIPPED = "SKIPPED"
    INTERRUPTED = "INTERRUPTED"
    UNKNOWN = "UNKNOWN"


_S = RevisionStatus
# One revision of a deployment is built or deployed at a time. Those that arrive meanwhile are QUEUED; when it ends, the
# newest of them goes on and the others are SKIPPED.
REVISION_MOVES: Mapping[RevisionStatus, frozenset[RevisionStatus]] = {
    _S.CREATING: frozenset({_S.QUEUED, _S.AWAITING_BUILD, _S.AWAITING_DEPLOY, _S.CREATE_FAILED, _S.INTERRUPTED}),
    _S.QUEUED: frozenset({_S.AWAITING_BUILD, _S.AWAITING_DEPLOY, _S.SKIPPED, _S.INTERRUPTED}),
    # A revision fails from AWAITING when its lease holders died again and again.
    _S.AWAITING_BUILD: frozenset({_S.BUILDING, _S.BUILD_FAILED, _S.SKIPPED, _S.INTERRUPTED}),
    _S.BUILDING: frozenset({_S.AWAITING_DEPLOY, _S.BUILD_FAILED, _S.INTERRUPTED}),
    _S.AWAITING_DEPLOY: frozenset({_S.DEPLOYING, _S.DEPLOY_FAILED, _S.INTERRUPTED}),
    _S.DEPLOYING: frozenset({_S.DEPLOYED, _S.DEPLOY_FAILED, _S.INTERRUPTED}),
    # Clients stop waiting at these states. A rollback is a new revision that uses the build of an old one.
    _S.DEPLOYED: frozenset(),
    _S.CREATE_FAILED: frozenset(),
    _S.BUILD_FAILED: frozenset(),
    _S.DEPLOY_FAILED: frozenset(),
    _S.SKIPPED: frozenset(),
    _S.INTERRUPTED: frozenset(),
    _S.UNKNOWN: frozenset(),
}
TERMINAL = frozenset(status for status, moves in REVISION_MOVES.items() if not moves)
AT_WORK = frozenset({_S.AWAITING_BUILD, _S.BUILDING, _S.AWAITING_DEPLOY, _S.DEPLOYING})


class Source(StrEnum):
    """The source of a deployment's code. It never changes."""

    GITHUB = "github"
    INTERNAL_SOURCE = "internal_source"
    INTERNAL_DOCKER = "internal_docker"
    EXTERNAL_DOCKER = "external_docker"


IMAGE_SOURCES = frozenset({Source.INTERNAL_DOCKER, Source.EXTERNAL_DOCKER})
