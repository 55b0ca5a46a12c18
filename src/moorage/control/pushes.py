"""Build on push: asks the repositories of deployments with `build_on_push` for the newest commit of their branch.

A push makes no new build while another build waits: the waiting build fetches the newest commit when it begins. So of
ten pushes in a row, the first and the last are built.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from moorage.control.checkouts import GitPolicy, newest_commit
from moorage.control.deployments import Deployments
from moorage.control.git_users import CredentialOf, git_user
from moorage.control.isolation import Isolation
from moorage.control.places import Place
from moorage.control.records.orders import FollowedBranch
from moorage.control.store.deployments import DeploymentStore
from moorage.embedded import processes
from moorage.kernel.errors import MoorageError

log = structlog.get_logger(__name__)

_AT_ONCE = 4
_LOOKED_AT_MAX = 100  # the most branches of one turn; the rest follow in the next


@dataclass(frozen=True)
class PushRules:
    home: Path
    git: GitPolicy
    isolation: Isolation
    poll_s: float


class Pushes:
    """The branches that deployments follow. Several processes may look at once: each commit is acted on once."""

    def __init__(
        self,
        rules: PushRules,
        store: DeploymentStore,
        deployments: Deployments,
        place_of: Callable[[int], Place],
        credential_of: CredentialOf,
    ) -> None:
        self._rules = rules
        self._store = store
        self._deployments = deployments
        self._place_of = place_of
        self._credential_of = credential_of
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def look(self) -> None:
        branches = await self._store.take_followed(self._rules.poll_s, _LOOKED_AT_MAX)
        await asyncio.gather(*map(self._look_at, branches))

    async def _look_at(self, branch: FollowedBranch) -> None:
        told = log.bind(deployment_id=str(branch.deployment_id))
        async with self._slots:
            try:
                commit = await self._newest(branch)
            except MoorageError as error:
                told.warning("the repository of a deployment cannot be asked for pushes", error=str(error))
                return
        if commit is None or commit == branch.pushed_commit_sha:
            return  # for a deleted branch nothing is built
        if await self._deployments.note_push(branch.workspace_id, branch.deployment_id, commit):
            told.info("a push makes a revision", commit=commit)

    async def _newest(self, branch: FollowedBranch) -> str | None:
        """Return the branch's newest commit. Git runs as a user without rights here too, since the server is not
        trusted.
        """
        place = self._place_of(branch.number)
        if processes.is_root() and not place.root.exists():
            return None  # there was no build yet, so the first one is still to come
        credential = await self._credential_of(branch.workspace_id, branch.source_config)
        runs_as = await asyncio.to_thread(git_user, place, self._rules.isolation, credential)
        with tempfile.TemporaryDirectory(prefix="moorage-push-") as folder:
            return await newest_commit(
                branch.repo_url, branch.repo_ref, Path(folder), self._rules.git, runs_as, credential
            )
