"""API keys: create, list and revoke them. The key itself is shown once and never stored."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from moorage.accounts.records import (
    ApiKey,
    ApiKeyCreate,
    NewApiKey,
    default_scopes,
    digest_of,
    has_passed,
    new_api_key,
    short_key_of,
)
from moorage.accounts.store import AccountStore
from moorage.kernel.access import Caller, Scope, covers
from moorage.kernel.errors import ForbiddenError, InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7

# People read this list. It is not paged, so a workspace with more keys sees only the newest ones.
_LISTED_MAX = 1000


class Keys:
    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def create(self, caller: Caller, new: ApiKeyCreate) -> NewApiKey:
        """Make a key of the caller's workspace, or of any workspace for an operator.

        Raises ForbiddenError for a scope or a workspace that the caller may not grant, NotFoundError for a workspace
        that does not exist, InvalidRequestError for an expiry in the past.
        """
        if has_passed(new.expires_at):
            raise InvalidRequestError("expires_at is in the past: a key that never works is of no use")
        scopes = _chosen_scopes(caller, new)
        workspace_id = await self._chosen_workspace(caller, new)
        return await self.insert(workspace_id, new.description, scopes, new.expires_at, caller.actor)

    async def _chosen_workspace(self, caller: Caller, new: ApiKeyCreate) -> UUID:
        wanted = new.workspace_id or caller.workspace_id
        if wanted == caller.workspace_id:
            return wanted
        if Scope.OPERATOR not in caller.scopes:
            raise ForbiddenError("Only an operator's key makes keys of another workspace: leave out workspace_id")
        if not await self._store.read_workspaces([wanted]):
            raise NotFoundError(f"Workspace {wanted} not found")
        return wanted

    async def insert(
        self,
        workspace_id: UUID,
        description: str,
        scopes: Collection[str],
        expires_at: datetime | None,
        actor: str,
    ) -> NewApiKey:
        key = new_api_key()
        made = await self._store.insert_key(
            uuid7(),
            workspace_id,
            digest=digest_of(key),
            short_key=short_key_of(key),
            description=description,
            scopes=scopes,
            expires_at=expires_at,
            actor=actor,
        )
        assert made, "128 random bits came up twice"
        return {**made, "key": key}

    async def list(self, caller: Caller) -> list[ApiKey]:
        """List the keys of the caller's workspace that are not revoked, newest first."""
        return await self._store.read_keys(caller.workspace_id, _LISTED_MAX)

    async def revoke(self, caller: Caller, key_id: UUID) -> ApiKey:
        """Revoke a key. Processes and agents that cache it learn of the revocation within 2 seconds (`revocations.py`).

        Raises NotFoundError.
        """
        revoked = await self._store.revoke_key(caller.workspace_id, key_id, caller.actor)
        if revoked is None:
            raise NotFoundError(f"API key {key_id} not found")
        return revoked


def _chosen_scopes(caller: Caller, new: ApiKeyCreate) -> frozenset[str]:
    """Return the scopes of a new key. Raises ForbiddenError for scopes that a caller lacks who is no operator."""
    scopes = default_scopes(caller.scopes, read_only=new.read_only) if new.scopes is None else frozenset(new.scopes)
    beyond = [scope for scope in sorted(scopes) if not covers(caller.scopes, scope)]
    if beyond and Scope.OPERATOR not in caller.scopes:
        raise ForbiddenError(f"You do not hold {', '.join(beyond)} yourself, so you cannot give it to a key")
    return scopes
