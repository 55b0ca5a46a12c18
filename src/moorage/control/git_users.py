"""Choice of the user that git runs as, which depends on whether git holds a credential."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from moorage.control.checkouts import Credential, RunsAs
from moorage.control.deploy_keys import DeployKey
from moorage.control.isolation import Isolation
from moorage.control.places import Place
from moorage.embedded import processes

# From a workspace and the `source_config` of one of its deployments.
CredentialOf = Callable[[UUID, Mapping[str, Any]], Awaitable[Credential | DeployKey | None]]


def git_user(place: Place, isolation: Isolation, credential: Credential | DeployKey | None) -> RunsAs:
    """Return the user for git: the deployment's own, or a user that no agent runs as.

    The second is used when git holds a credential or a connection, since processes of one user can read each other's
    environment and memory.
    """
    if not processes.is_root():
        return RunsAs(None, isolation.wrapped)
    return RunsAs(place.uid if credential is None else place.claim_git_user(), isolation.wrapped)
