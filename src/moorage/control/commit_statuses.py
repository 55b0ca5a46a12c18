"""Statuses of commits: the forge shows beside a commit whether it is being deployed, is deployed or has failed.

The statuses to write are read from the revisions, so a killed process loses none, and no revision waits for a forge.
"""

from __future__ import annotations

import asyncio

import structlog

from moorage.control.integrations import Integrations
from moorage.control.records.deployments import own_url
from moorage.control.records.integrations import CommitStatus, UntoldStatus
from moorage.control.store.commit_statuses import CommitStatusStore
from moorage.kernel.errors import MoorageError, RemoteError

log = structlog.get_logger(__name__)

_RETRY_S = 60.0
_AT_ONCE_MAX = 20
_DESCRIPTIONS = {
    "pending": "The commit is being deployed",
    "success": "The commit serves",
    "failure": "The commit was not deployed",
}


class CommitStatuses:
    """Statuses to write to commits. Several processes may look at once, and writing a status twice changes nothing."""

    def __init__(self, store: CommitStatusStore, integrations: Integrations, public_url: str) -> None:
        self._store = store
        self._integrations = integrations
        self._public_url = public_url

    async def look(self) -> None:
        await asyncio.gather(*map(self._tell, await self._store.take(_RETRY_S, _AT_ONCE_MAX)))

    async def _tell(self, untold: UntoldStatus) -> None:
        status = CommitStatus(
            untold.commit_sha,
            untold.state,
            untold.custom_url or own_url(self._public_url, untold.deployment_name),
            _DESCRIPTIONS[untold.state],
            f"moorage/{untold.deployment_name}",
        )
        try:
            await self._integrations.tell_status(untold.workspace_id, untold.integration_id, untold.repo_url, status)
        except MoorageError as error:
            log.warning(
                "the status of a commit cannot be written", revision_id=str(untold.revision_id), error=str(error)
            )
            if isinstance(error, RemoteError):
                return  # retried later
        await self._store.note(untold.revision_id, untold.state)
