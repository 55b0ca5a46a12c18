"""OAuth providers with their secrets decrypted, for code that talks to them."""

from __future__ import annotations

from uuid import UUID

from moorage.control.records.oauth import SEALED_CLIENT_SECRET
from moorage.control.records.oauth_tokens import OAuthClient
from moorage.control.store.oauth import OAuthProviderStore
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import NotFoundError


class Clients:
    def __init__(self, store: OAuthProviderStore, keys: MasterKeys) -> None:
        self._store = store
        self._keys = keys

    async def open(self, workspace_id: UUID, provider_id: str) -> OAuthClient:
        """Return the provider with its client secret decrypted. Raises NotFoundError and UnsealError."""
        row = await self._store.read_client(workspace_id, provider_id)
        if row is None:
            raise NotFoundError(f"OAuth provider {provider_id} not found")
        row_id, sealed, changed_at = row.pop("id"), row.pop("sealed_client_secret"), row.pop("updated_at")
        secret = self._keys.open(bytes(sealed), SEALED_CLIENT_SECRET.place(row_id)).decode() if sealed else None
        return OAuthClient(row_id=row_id, client_secret=secret, changed_at=changed_at, **row)
