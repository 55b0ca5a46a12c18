"""SQL of OAuth providers. Client secrets are sealed."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import DictRow

from moorage.control.records.oauth import Discovered, OAuthProvider, OAuthProviderCreate, OAuthProviderUpdate
from moorage.kernel.postgres import Postgres

_COLUMNS = """
    id, workspace_id AS organization_id, provider_id, name, client_id, auth_url, token_url, uses_pkce,
    code_challenge_method, provider_type, mcp_server_url, token_endpoint_auth_method, is_dynamic_client,
    revocation_url, created_at,
    updated_at
"""
_INSERT = f"""
INSERT INTO oauth_providers (
    id, workspace_id, provider_id, name, client_id, sealed_client_secret, auth_url, token_url, uses_pkce,
    code_challenge_method, provider_type, token_endpoint_auth_method, revocation_url, mcp_server_url, issuer,
    is_dynamic_client, actor
)
VALUES (
    %(id)s, %(workspace_id)s, %(provider_id)s, %(name)s, %(client_id)s, %(sealed_client_secret)s, %(auth_url)s,
    %(token_url)s, %(uses_pkce)s, %(code_challenge_method)s, %(provider_type)s, %(token_endpoint_auth_method)s,
    %(revocation_url)s, %(mcp_server_url)s, %(issuer)s, %(is_dynamic_client)s, %(actor)s
)
RETURNING {_COLUMNS}
"""
_READ = f"SELECT {_COLUMNS} FROM oauth_providers WHERE workspace_id = %s AND provider_id = %s"
_READ_ALL = f"SELECT {_COLUMNS} FROM oauth_providers WHERE workspace_id = %s ORDER BY created_at DESC, id DESC LIMIT %s"
# A NULL parameter keeps the column's value. The sealed secret is bound to the id of its row.
_UPDATE = f"""
UPDATE oauth_providers SET
    name = coalesce(%(name)s, name),
    client_id = coalesce(%(client_id)s, client_id),
    sealed_client_secret = coalesce(%(sealed_client_secret)s, sealed_client_secret),
    auth_url = coalesce(%(auth_url)s, auth_url),
    token_url = coalesce(%(token_url)s, token_url),
    uses_pkce = coalesce(%(uses_pkce)s, uses_pkce),
    code_challenge_method = coalesce(%(code_challenge_method)s, code_challenge_method),
    provider_type = coalesce(%(provider_type)s, provider_type),
    revocation_url = coalesce(%(revocation_url)s, revocation_url),
    token_endpoint_auth_method = coalesce(%(token_endpoint_auth_method)s, token_endpoint_auth_method),
    actor = %(actor)s,
    updated_at = now()
WHERE workspace_id = %(workspace_id)s AND id = %(id)s
RETURNING {_COLUMNS}
"""
_REMOVE = "DELETE FROM oauth_providers WHERE workspace_id = %s AND provider_id = %s"
# For requests to the provider; never for an answer to a caller.
_READ_CLIENT = """
SELECT id, provider_id, client_id, sealed_client_secret, auth_url, token_url, revocation_url, issuer, mcp_server_url,
    provider_type, token_endpoint_auth_method, uses_pkce, coalesce(code_challenge_method, 'S256') AS code_challenge_method,
    updated_at
FROM oauth_providers WHERE workspace_id = %s AND provider_id = %s
"""


class OAuthProviderStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self,
        workspace_id: UUID,
        row_id: UUID,
        new: OAuthProviderCreate,
        sealed_client_secret: bytes | None,
        actor: str,
        found_at: Discovered | None = None,
    ) -> OAuthProvider | None:
        """Insert the provider. Returns None when the workspace has a provider of that id."""
        values = {**new.model_dump(exclude={"client_secret"}), "id": row_id, "workspace_id": workspace_id}
        values |= {"mcp_server_url": None, "issuer": None} if found_at is None else found_at._asdict()
        values["is_dynamic_client"] = found_at is not None
        try:
            row = await self._postgres.fetch_one(
                _INSERT, {**values, "sealed_client_secret": sealed_client_secret, "actor": actor}
            )
        except UniqueViolation:
            return None
        return cast(OAuthProvider, row)

    async def read(self, workspace_id: UUID, provider_id: str) -> OAuthProvider | None:
        return cast(OAuthProvider | None, await self._postgres.fetch_one(_READ, (workspace_id, provider_id)))

    async def read_all(self, workspace_id: UUID, limit: int) -> list[OAuthProvider]:
        """Return the providers, newest first."""
        return cast(list[OAuthProvider], await self._postgres.fetch(_READ_ALL, (workspace_id, limit)))

    async def update(
        self, workspace_id: UUID, row_id: UUID, new: OAuthProviderUpdate, sealed_client_secret: bytes | None, actor: str
    ) -> OAuthProvider | None:
        values = {**new.model_dump(exclude={"client_secret"}), "id": row_id, "workspace_id": workspace_id}
        row = await self._postgres.fetch_one(
            _UPDATE, {**values, "sealed_client_secret": sealed_client_secret, "actor": actor}
        )
        return cast(OAuthProvider | None, row)

    async def remove(self, workspace_id: UUID, provider_id: str) -> bool:
        return bool(await self._postgres.execute(_REMOVE, (workspace_id, provider_id)))

    async def read_client(self, workspace_id: UUID, provider_id: str) -> DictRow | None:
        """Return the fields for requests to the provider, with its secret sealed, or None when there is no such
        provider.
        """
        return await self._postgres.fetch_one(_READ_CLIENT, (workspace_id, provider_id))
