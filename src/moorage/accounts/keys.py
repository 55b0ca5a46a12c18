"""API keys: made, shown once, listed, revoked. The key itself is never stored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from moorage.accounts.records import (
    DEFAULT_SCOPES,
    READ_SCOPES,
    ApiKey,
    ApiKeyCreate,
    NewApiKey,
    digest_of,
    has_passed,
    may_grant,
    new_api_key,
    short_key_of,
)
from moorage.accounts.store import AccountStore
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import ForbiddenError, InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7

# A list of keys is read by people; whoever has more of them looks for one by its name elsewhere.
_LISTED_MAX = 1000


class Keys:
    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def create(self, caller: Caller, new: ApiKeyCreate) -> NewApiKey:
        """Raises ForbiddenError for a scope that the caller may not give, InvalidRequestError for an expiry that is past."""
        if has_passed(new.expires_at):
            raise InvalidRequestError("expires_at is in the past: a key that never works is of no use")
        scopes = _chosen_scopes(caller, new)
        return await self.insert(caller.workspace_id, new.description, scopes, new.expires_at, caller.actor)

    async def insert(
        self,
        workspace_id: UUID,
        description: str,
        scopes: frozenset[Scope],
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
        """Newest first, without the revoked."""
        return await self._store.read_keys(caller.workspace_id, _LISTED_MAX)

    async def revoke(self, caller: Caller, key_id: UUID) -> ApiKey:
        """In force everywhere when what processes remember of admitted keys has run out, a few seconds later."""
        revoked = await self._store.revoke_key(caller.workspace_id, key_id, caller.actor)
        if revoked is None:
            raise NotFoundError(f"API key {key_id} not found")
        return revoked


def _chosen_scopes(caller: Caller, new: ApiKeyCreate) -> frozenset[Scope]:
    if new.scopes is None:
        return caller.scopes & (READ_SCOPES if new.read_only else DEFAULT_SCOPES)
    scopes = frozenset(new.scopes)
    if beyond := scopes - may_grant(caller.scopes):
        raise ForbiddenError(f"You do not hold {', '.join(sorted(beyond))} yourself, so you cannot give it to a key")
    return scopes
