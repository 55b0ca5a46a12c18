"""Deployments: created, changed, listed and deleted. Verbs record what should run; the control loop makes it run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from moorage.control.changes import Changed, DeploymentRules, after, begun, sets_secrets
from moorage.control.integrations import Integrations
from moorage.control.listeners import Listeners
from moorage.control.records.deployments import (
    FREE_TYPES,
    Deployment,
    DeploymentCreate,
    DeploymentFilter,
    DeploymentPatch,
    DeploymentsList,
    ShownSecret,
    StoredDeployment,
    complete_config,
    shown_deployment,
)
from moorage.control.records.host_names import HostName
from moorage.control.records.revisions import Revision, StoredRevision, shown_revision
from moorage.control.records.secrets import MASK, Secret, merged_secrets, without_secrets
from moorage.control.records.states import TERMINAL, DeploymentStatus, RevisionStatus, Source
from moorage.control.secret_box import SecretBox
from moorage.control.store.deployments import DeploymentStore, LockedDeployment, NewDeployment
from moorage.control.store.revisions import NewRevision
from moorage.control.store.uploads import UploadStore
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BadRequestError, ConflictError, NotFoundError
from moorage.kernel.ids import uuid7

# The actor of revisions that are made by a push.
_PUSH = "push"
_REACHED_BY = ("integration_id", "repo_url")
_RUNS_AT = ("listener_id", "listener_config")


def deployment_not_found(deployment_id: UUID) -> NotFoundError:
    return NotFoundError(f"Deployment ID {deployment_id} not found.")


@dataclass(frozen=True)
class Deployments:
    """Verbs of deployments. `wake` tells the control loop that there is work."""

    store: DeploymentStore
    uploads: UploadStore
    box: SecretBox
    rules: DeploymentRules
    wake: Callable[[], None]
    integrations: Integrations
    listeners: Listeners

    async def create(self, caller: Caller, new: DeploymentCreate) -> Deployment:
        """Make a deployment with its first revision, or without one if its source comes later, as an upload or a pushed
        image.

        Raises ConflictError when the name or the host name is taken, BadRequestError or InvalidRequestError for invalid
        settings.
        """
        wanted = begun(new, self.rules)
        await self.integrations.check(caller.workspace_id, wanted.source_config)
        await self.listeners.check(caller.workspace_id, wanted.source_config)
        deployment_id = uuid7()
        made = NewDeployment(
            deployment_id,
            new.name,
            new.display_name,
            new.source,
            wanted.source_config,
            wanted.source_revision_config,
            self.box.seal(deployment_id, merged_secrets(new.secrets, {}, may_say_who=self.rules.takes_orders)),
            wanted.secret_references,
            wanted.host_name,
        )
        first = None if wanted.lacks else _next_revision(wanted)
        taken = await self.store.insert(caller.workspace_id, made, first, caller.actor)
        if taken == DeploymentStatus.AWAITING_DELETE:  # another workspace's, or its project is deleted too
            raise ConflictError(f"A deployment named {new.name} is still being deleted; try again in a moment")
        if taken:
            raise ConflictError(f"The name {new.name} is taken: names of deployments are unique in the installation")
        self.wake()
        return await self.get(caller, deployment_id)

    async def get(self, caller: Caller, deployment_id: UUID) -> Deployment:
        """Return the deployment. Raises NotFoundError, as does every method that takes a deployment's id."""
        row = await self.store.read(caller.workspace_id, deployment_id)
        if row is None:
            raise deployment_not_found(deployment_id)
        return (await self._shown(caller, [row]))[0]

    async def list(self, caller: Caller, wanted: DeploymentFilter, limit: int, offset: int) -> DeploymentsList:
        """Return a page of deployments, newest first. The answer's `offset` is where the next page begins."""
        rows = await self.store.page(caller.workspace_id, wanted, limit, offset)
        return {"resources": list(await self._shown(caller, rows)), "offset": offset + len(rows)}

    async def count_free(self, caller: Caller) -> int:
        return await self.store.count_of_types(caller.workspace_id, FREE_TYPES)

    async def update(self, caller: Caller, deployment_id: UUID, patch: DeploymentPatch) -> Deployment:
        """Change the deployment. A new source, resources or secrets make a revision; a display name, `build_on_push` or
        `custom_url` do not.

        Raises BadRequestError or InvalidRequestError for invalid settings, ConflictError for a host name that is taken;
        then nothing has changed.
        """
        await self._change(caller, deployment_id, patch, must_make=False)
        return await self.get(caller, deployment_id)

    async def create_revision(self, caller: Caller, deployment_id: UUID, patch: DeploymentPatch) -> Revision:
        """Change the deployment as `update` does, and always make a revision."""
        made = await self._change(caller, deployment_id, patch, must_make=True)
        assert made, "a change that must make a revision has made one"
        return shown_revision(made)

    async def delete(self, caller: Caller, deployment_id: UUID, *, deletes_project: bool) -> None:
        """Hide the deployment from callers and free its name for its workspace. The control loop removes the rest."""
        async with self.store.locked(caller.workspace_id, deployment_id) as locked:
            if locked is None:
                raise deployment_not_found(deployment_id)
            await locked.set_deleted(deletes_project=deletes_project, actor=caller.actor)
        self.wake()

    async def delete_many(self, caller: Caller, deployment_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Delete deployments and return the ids that were not found. Raises NotFoundError if all are missing."""
        missing: list[UUID] = []
        for deployment_id in dict.fromkeys(deployment_ids):
            try:
                await self.delete(caller, deployment_id, deletes_project=False)
            except NotFoundError:
                missing.append(deployment_id)
        if missing and len(missing) == len(set(deployment_ids)):
            raise deployment_not_found(missing[0])
        return missing

    async def secrets_of(self, deployment_id: UUID) -> dict[str, str]:
        """Return the secrets for the environment of an agent or its build; never for a response."""
        found = (await self.store.read_secrets([deployment_id])).get(deployment_id)
        if found is None:
            raise deployment_not_found(deployment_id)
        return self.box.open(deployment_id, found)

    async def note_push(self, workspace_id: UUID, deployment_id: UUID, commit: str) -> bool:
        """Make a revision for a push, unless the commit is known or a waiting build will fetch it. Returns True if a
        revision was made.
        """
        async with self.store.locked(workspace_id, deployment_id) as locked:
            if locked is None or not locked.deployment["source_config"].get("build_on_push"):
                return False
            stored = locked.deployment
            status, latest = stored["latest_status"], stored["repo_commit_sha"]
            waits = status is None or (latest is None and RevisionStatus(status) not in TERMINAL)
            if waits or not await locked.note_push(commit) or commit == latest:
                return False
            changed = after(stored, DeploymentPatch(revision_source=Source.GITHUB), self.rules)
            await locked.insert_revision(_next_revision(changed), _PUSH)
        self.wake()
        return True

    async def _change(
        self, caller: Caller, deployment_id: UUID, patch: DeploymentPatch, *, must_make: bool
    ) -> StoredRevision | None:
        async with self.store.locked(caller.workspace_id, deployment_id) as locked:
            if locked is None:
                raise deployment_not_found(deployment_id)
            stored = locked.deployment
            changed = after(stored, patch, self.rules)
            await self._check_upload(stored, patch)
            if any(changed.source_config.get(name) != stored["source_config"].get(name) for name in _REACHED_BY):
                await self.integrations.check(caller.workspace_id, changed.source_config)
            if any(changed.source_config.get(name) != stored["source_config"].get(name) for name in _RUNS_AT):
                await self.listeners.check(caller.workspace_id, changed.source_config)
            makes = must_make or _makes_revision(stored, changed)
            if makes and changed.lacks:
                raise BadRequestError(f"A revision of the source {changed.source} needs {changed.lacks[0]}")
            name = patch.display_name if patch.display_name is not None else stored["display_name"]
            await locked.update(changed.source_config, changed.host_name, name, changed.secret_references, caller.actor)
            if patch.remove_secrets or sets_secrets(patch.secrets, stored["secret_names"]):
                await self._set_secrets(locked, patch.secrets or [], patch.remove_secrets or [])
            made = await locked.insert_revision(_next_revision(changed), caller.actor) if makes else None
        if made:
            self.wake()
        return made

    async def _check_upload(self, stored: StoredDeployment, patch: DeploymentPatch) -> None:
        path = patch.source_revision_config.source_tarball_path if patch.source_revision_config else None
        if path is None:
            return
        upload = await self.uploads.read(path)
        if upload is None or upload.deployment_id != stored["id"]:
            raise BadRequestError("source_tarball_path is none of this deployment's: ask its upload-url for one")
        if upload.object_key is None:
            raise BadRequestError("Nothing was uploaded to source_tarball_path yet: PUT the archive to its upload_url")

    async def _set_secrets(self, locked: LockedDeployment, given: Sequence[Secret], removed: Sequence[str]) -> None:
        """Store the given secrets; without any, keep the stored ones. The stored ones are decrypted only when a value
        is needed.
        """
        deployment_id = locked.deployment["id"]
        current: dict[str, str] = {}
        if not given or any(secret.value == MASK for secret in given):
            current = self.box.open(deployment_id, await locked.read_secrets())
        may_say_who = self.rules.takes_orders
        merged = merged_secrets(given, current, may_say_who=may_say_who) if given else current
        await locked.set_secrets(self.box.seal(deployment_id, without_secrets(merged, removed)))

    async def _shown(self, caller: Caller, rows: Sequence[StoredDeployment]) -> Sequence[Deployment]:
        values: dict[UUID, dict[str, str]] = {}
        if Scope.SECRETS_READ in caller.scopes:
            sealed = await self.store.read_secrets([row["id"] for row in rows])
            values = {deployment_id: self.box.open(deployment_id, found) for deployment_id, found in sealed.items()}
        return [
            shown_deployment(
                row, _shown_secrets(row, values.get(row["id"], {})), self.rules.public_url, self._shown_host_name(row)
            )
            for row in rows
        ]

    def _shown_host_name(self, row: StoredDeployment) -> HostName | None:
        if row["host_name"] is None:
            return None
        secure = self.rules.serves_https and row["source_config"]["custom_url"].startswith("https:")
        return {
            "name": row["host_name"],
            "certificate": (row["certificate_state"] or "pending") if secure else "none",
            "message": row["certificate_message"],
            "expires_at": row["certificate_expires_at"],
        }


def _shown_secrets(row: StoredDeployment, values: dict[str, str]) -> list[ShownSecret]:
    return [{"name": name, "value": values.get(name, MASK)} for name in row["secret_names"]]


def _makes_revision(stored: StoredDeployment, changed: Changed) -> bool:
    """Return True if the change makes a revision. While a deployment waits for its source, a change only stores its
    settings.
    """
    return changed.asks_for_revision and not (changed.lacks and stored["latest_revision_id"] is None)


def _next_revision(changed: Changed) -> NewRevision:
    return NewRevision(uuid7(), changed.source, complete_config(changed.source_config), changed.source_revision_config)
