"""OAuth providers: created, read, changed and deleted."""

from __future__ import annotations

from moorage.control.records.oauth import (
    SEALED_CLIENT_SECRET,
    Discovered,
    OAuthProvider,
    OAuthProviderCreate,
    OAuthProviderUpdate,
)
from moorage.control.store.oauth import OAuthProviderStore
from moorage.kernel.access import Caller
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import ConflictError, NotFoundError
from moorage.kernel.ids import uuid7

# The API's list has no pages.
_LISTED_MAX = 1000


class OAuthProviders:
    def __init__(self, store: OAuthProviderStore, keys: MasterKeys) -> None:
        self._store = store
        self._keys = keys

    async def create(
        self, caller: Caller, new: OAuthProviderCreate, found_at: Discovered | None = None
    ) -> OAuthProvider:
        """Create a provider. `found_at` are the discovered endpoints. Raises ConflictError when the workspace has a
        provider of that id.
        """
        row_id = uuid7()
        sealed = self._sealed(row_id, new.client_secret)
        made = await self._store.insert(caller.workspace_id, row_id, new, sealed, caller.actor, found_at)
        if made is None:
            raise _taken(new.provider_id)
        return made

    async def check_free(self, caller: Caller, provider_id: str) -> None:
        """Check that a provider id is free. Raises ConflictError when the workspace has a provider of that id."""
        if await self._store.read(caller.workspace_id, provider_id) is not None:
            raise _taken(provider_id)

    async def list(self, caller: Caller) -> list[OAuthProvider]:
        """List the providers, newest first."""
        return await self._store.read_all(caller.workspace_id, _LISTED_MAX)

    async def get(self, caller: Caller, provider_id: str) -> OAuthProvider:
        """Return the provider. Raises NotFoundError, as `update` and `delete` do."""
        found = await self._store.read(caller.workspace_id, provider_id)
        if found is None:
            raise _not_found(provider_id)
        return found

    async def update(self, caller: Caller, provider_id: str, new: OAuthProviderUpdate) -> OAuthProvider:
        row_id = (await self.get(caller, provider_id))["id"]
        sealed = self._sealed(row_id, new.client_secret)
        updated = await self._store.update(caller.workspace_id, row_id, new, sealed, caller.actor)
        if updated is None:  # deleted meanwhile
            raise _not_found(provider_id)
        return updated

    async def delete(self, caller: Caller, provider_id: str) -> None:
        if not await self._store.remove(caller.workspace_id, provider_id):
            raise _not_found(provider_id)

    def _sealed(self, row_id: object, secret: str | None) -> bytes | None:
        return None if secret is None else self._keys.seal(secret.encode(), SEALED_CLIENT_SECRET.place(row_id))


def _taken(provider_id: str) -> ConflictError:
    return ConflictError(f"There is an OAuth provider {provider_id} already: update it, or use another id")


def _not_found(provider_id: str) -> NotFoundError:
    return NotFoundError(f"OAuth provider {provider_id} not found")
