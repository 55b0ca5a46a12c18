"""Revisions: listed, deployed again and interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from moorage.control.deployments import deployment_not_found
from moorage.control.records.revisions import Revision, RevisionsList, StoredRevision, shown_revision
from moorage.control.records.states import IMAGE_SOURCES, TERMINAL, RevisionStatus, Source
from moorage.control.store.deployments import DeploymentStore, LockedDeployment
from moorage.control.store.revisions import NewRevision, RevisionStore
from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, NotFoundError
from moorage.kernel.ids import uuid7


class Revisions:
    """Verbs of revisions. `wake` tells the control loop that there is work."""

    def __init__(self, store: RevisionStore, deployments: DeploymentStore, wake: Callable[[], None]) -> None:
        self._store = store
        self._deployments = deployments
        self._wake = wake

    async def list(
        self, caller: Caller, deployment_id: UUID, statuses: Sequence[RevisionStatus] | None, limit: int, offset: int
    ) -> RevisionsList:
        """List the revisions, newest first. Raises NotFoundError when there is no such deployment, as every method here
        does.
        """
        await self._check_deployment(caller, deployment_id)
        rows = await self._store.page(caller.workspace_id, deployment_id, statuses, limit, offset)
        return {"resources": [shown_revision(row) for row in rows], "offset": offset + len(rows)}

    async def get(self, caller: Caller, deployment_id: UUID, revision_id: UUID) -> Revision:
        await self._check_deployment(caller, deployment_id)
        return shown_revision(await self._read(caller, deployment_id, revision_id))

    async def redeploy(self, caller: Caller, deployment_id: UUID, revision_id: UUID) -> None:
        """Make a new revision from an old one. It reuses the old build if that is kept, else builds the same commit or
        archive.

        Raises BadRequestError while the old revision is still under way.
        """
        async with self._deployments.locked(caller.workspace_id, deployment_id) as locked:
            if locked is None:
                raise deployment_not_found(deployment_id)
            old = await self._read(caller, deployment_id, revision_id)
            if RevisionStatus(old["status"]) not in TERMINAL:
                raise BadRequestError(f"Revision {old['number']} is {old['status']}: wait for its end, or interrupt it")
            await locked.insert_revision(await _like(locked, old), caller.actor)
        self._wake()

    async def interrupt(self, caller: Caller, deployment_id: UUID, revision_id: UUID) -> Revision:
        """End the revision, and return it. Raises BadRequestError when it has ended already."""
        async with self._deployments.locked(caller.workspace_id, deployment_id) as locked:
            if locked is None:
                raise deployment_not_found(deployment_id)
            row = await self._read(caller, deployment_id, revision_id)
            ended = await locked.interrupt(revision_id, "Interrupted on request", caller.actor)
            if ended is None:
                raise BadRequestError(f"Revision {row['number']} has ended as {row['status']} already")
        self._wake()
        return shown_revision(ended)

    async def _check_deployment(self, caller: Caller, deployment_id: UUID) -> None:
        if await self._deployments.read(caller.workspace_id, deployment_id) is None:
            raise deployment_not_found(deployment_id)

    async def _read(self, caller: Caller, deployment_id: UUID, revision_id: UUID) -> StoredRevision:
        row = await self._store.read(caller.workspace_id, deployment_id, revision_id)
        if row is None:
            raise NotFoundError(f"Revision ID {revision_id} not found.")
        return row


async def _like(locked: LockedDeployment, old: StoredRevision) -> NewRevision:
    source = Source(old["source"])
    build = old["build_of"] or old["id"]
    has_build = source not in IMAGE_SOURCES and await locked.has_build(build)
    return NewRevision(
        uuid7(),
        source,
        old["source_config"],
        old["source_revision_config"],
        repo_commit_sha=old["repo_commit_sha"],
        image_pin=old["image_pin"],
        build_of=build if has_build else None,
    )
