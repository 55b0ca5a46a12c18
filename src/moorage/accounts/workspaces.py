"""Workspaces: create, list and change them. The first one is created at the first start of the installation."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import structlog

from moorage.accounts.keys import Keys
from moorage.accounts.records import (
    DEFAULT_SCOPES,
    FIRST_SCOPES,
    KEY_CHARS_MAX,
    KEY_CHARS_MIN,
    ListedWorkspace,
    Member,
    NewWorkspace,
    Settings,
    Workspace,
    WorkspaceCreate,
    WorkspacePatch,
    digest_of,
    short_key_of,
)
from moorage.accounts.store import AccountStore
from moorage.kernel.access import Caller, Scope, only_reads
from moorage.kernel.errors import ConflictError, ForbiddenError, NotFoundError, StartupError
from moorage.kernel.ids import uuid7

log = structlog.get_logger(__name__)

_FIRST_KEY = "First API key"
_RECOVERED_KEY = "Recovered API key"
_FIRST_NAME = "Default"
_INSTALLATION = "installation"  # the actor of changes that no request caused


@dataclass(frozen=True)
class FirstStart:
    """The installation's first workspace, and its key if it was just made: the key is shown once."""

    workspace_id: UUID
    api_key: str | None = field(repr=False)


class Workspaces:
    def __init__(self, store: AccountStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def ensure_first(self, api_key: str | None, workspace_id: UUID | None) -> FirstStart:
        """Make a workspace and a key that opens it if they are missing. Idempotent: called at every start.

        `api_key` and `workspace_id` are those of MOORAGE_BOOTSTRAP_*. Without `workspace_id` the oldest workspace is
        used. Without `api_key` a key is made if the workspace never had one. Raises StartupError when `api_key` cannot
        be used.
        """
        async with self._store.alone():
            first = workspace_id or await self._store.oldest_workspace() or uuid7()
            if await self._store.insert_workspace(first, _FIRST_NAME, None, None, _INSTALLATION):
                log.debug("workspace made", workspace_id=str(first))
            if api_key is not None:
                await self._ensure_key(first, api_key)
                return FirstStart(first, None)
            if await self._store.has_keys(first):
                return FirstStart(first, None)
            made = await self._keys.insert(first, _FIRST_KEY, FIRST_SCOPES, None, _INSTALLATION)
            return FirstStart(first, made["key"])

    async def recover(self, workspace_id: UUID | None) -> FirstStart:
        """Make another key like the first, for the named workspace or the oldest one. Only for the owner of the home.

        Raises NotFoundError when there is no such workspace.
        """
        oldest = await self._store.oldest_workspace()
        wanted = workspace_id or oldest
        if wanted is None or not await self._store.read_workspaces([wanted]):
            raise NotFoundError(
                f"there is no workspace {wanted or 'yet'}; `moorage up` makes the first one and its key"
            )
        scopes = FIRST_SCOPES if wanted == oldest else DEFAULT_SCOPES  # all other workspaces belong to tenants
        made = await self._keys.insert(wanted, _RECOVERED_KEY, scopes, None, _INSTALLATION)
        return FirstStart(wanted, made["key"])

    async def _ensure_key(self, workspace_id: UUID, api_key: str) -> None:
        if not KEY_CHARS_MIN <= len(api_key) <= KEY_CHARS_MAX or not api_key.isascii() or not api_key.isprintable():
            raise StartupError(
                f"MOORAGE_BOOTSTRAP_API_KEY must have {KEY_CHARS_MIN} to {KEY_CHARS_MAX} printable characters, and be "
                "random: `openssl rand -hex 32` makes one"
            )
        made = await self._store.insert_key(
            uuid7(),
            workspace_id,
            digest=digest_of(api_key),
            short_key=short_key_of(api_key),
            description=_FIRST_KEY,
            scopes=FIRST_SCOPES,
            expires_at=None,
            actor=_INSTALLATION,
        )
        found = None if made else await self._store.find_key_by_digest(digest_of(api_key))
        if found and found["workspace_id"] != workspace_id:
            raise StartupError(
                "MOORAGE_BOOTSTRAP_API_KEY is the key of another workspace already; give it another value, or set "
                "MOORAGE_BOOTSTRAP_WORKSPACE_ID to that workspace"
            )
        if found and found["revoked_at"]:
            log.warning("MOORAGE_BOOTSTRAP_API_KEY was revoked and stays so; give it another value, or remove it")

    async def list(self, caller: Member) -> list[ListedWorkspace]:
        """List the workspaces that the caller's credentials open."""
        rights = sorted(caller.scopes)
        read_only = all(map(only_reads, rights))
        return [
            {**workspace, "read_only": read_only, "role_id": None, "role_name": None, "permissions": [*rights]}
            for workspace in await self._store.read_workspaces(caller.workspace_ids)
        ]

    async def create(self, caller: Caller, new: WorkspaceCreate) -> NewWorkspace:
        """Make a workspace with its first key, which may do everything in it but is not an operator's.

        Raises ConflictError for an id or a handle that is taken.
        """
        workspace_id = new.id or uuid7()
        made = await self._store.insert_workspace(
            workspace_id, new.display_name, new.tenant_handle, new.plan, caller.actor
        )
        if made is None:
            raise ConflictError("A workspace with this id or tenant_handle exists already; choose another")
        key = await self._keys.insert(workspace_id, _FIRST_KEY, DEFAULT_SCOPES, None, caller.actor)
        return {**made, "api_key": key["key"]}

    async def update(self, caller: Caller, workspace_id: UUID, patch: WorkspacePatch) -> Workspace:
        """Change the caller's own workspace. An operator may change every workspace, and only an operator may change a
        plan.

        Raises NotFoundError for a workspace that the caller may not see, ForbiddenError for a plan, ConflictError for a
        handle that is taken.
        """
        is_operator = Scope.OPERATOR in caller.scopes
        known = (
            await self._store.read_workspaces([workspace_id]) if is_operator else workspace_id == caller.workspace_id
        )
        if not known:
            raise NotFoundError(f"Workspace {workspace_id} not found")
        if patch.plan is not None and not is_operator:
            raise ForbiddenError("Only an operator's key changes the plan of a workspace: it lacks the scope operator")
        changed = await self._store.update_workspace(
            workspace_id, patch.display_name, patch.tenant_handle, patch.plan, caller.actor
        )
        if changed is None:
            raise ConflictError("Another workspace has this tenant_handle; choose another")
        return changed

    async def settings(self, caller: Caller) -> Settings:
        [workspace] = await self._store.read_workspaces([caller.workspace_id])
        return _settings_of(workspace)

    async def set_handle(self, caller: Caller, tenant_handle: str) -> Settings:
        """Set the handle of the caller's workspace. Raises ConflictError when another workspace has the handle."""
        patch = WorkspacePatch(tenant_handle=tenant_handle)
        return _settings_of(await self.update(caller, caller.workspace_id, patch))


def _settings_of(workspace: Workspace) -> Settings:
    return {
        "id": workspace["id"],
        "display_name": workspace["display_name"],
        "tenant_handle": workspace["tenant_handle"],
        "created_at": workspace["created_at"],
    }
