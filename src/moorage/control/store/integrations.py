"""SQL of integrations. Tokens and secrets of webhooks are sealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.errors import UniqueViolation

from moorage.control.records.integrations import ForgeKind, IntegrationKind, StoredIntegration
from moorage.kernel.postgres import Postgres

_COLUMNS = "id, number, workspace_id, kind, name, base_url, app_id, installation_id, public_key, host_keys, created_at"
_INSERT = f"""
INSERT INTO integrations (
    id, workspace_id, kind, name, base_url, sealed_token, sealed_webhook_secret, app_id, installation_id, public_key,
    host_keys, actor
) VALUES (
    %(id)s, %(workspace_id)s, %(kind)s, %(name)s, %(base_url)s, %(sealed_token)s, %(sealed_webhook_secret)s,
    %(app_id)s, %(installation_id)s, %(public_key)s, %(host_keys)s, %(actor)s
) RETURNING {_COLUMNS}
"""
_READ = f"SELECT {_COLUMNS}, sealed_token FROM integrations WHERE workspace_id = %s AND id = %s"
_READ_ALL = f"SELECT {_COLUMNS} FROM integrations WHERE workspace_id = %s ORDER BY created_at DESC, id DESC LIMIT %s"
_READ_OF_PUSHES = "SELECT workspace_id, kind, sealed_webhook_secret FROM integrations WHERE id = %s AND kind <> 'ssh'"
# The next look for pushes takes these branches first.
_MAKE_DUE = """
UPDATE deployments SET pushes_looked_at = NULL
WHERE workspace_id = %(workspace_id)s AND source_config->>'integration_id' = %(integration_id)s
    AND source_config @> '{"build_on_push": true}'
    AND lower(regexp_replace(source_config->>'repo_url', '(\\.git)?/?$', '')) = ANY(%(urls)s)
"""
_REMOVE = "DELETE FROM integrations WHERE workspace_id = %s AND id = %s"


@dataclass(frozen=True)
class NewIntegration:
    id: UUID
    workspace_id: UUID
    kind: IntegrationKind
    name: str
    base_url: str
    sealed_token: bytes
    sealed_webhook_secret: bytes
    app_id: str | None
    installation_id: int | None
    public_key: str | None
    host_keys: list[str]
    actor: str


class IntegrationStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(self, new: NewIntegration) -> StoredIntegration | None:
        """Insert the integration. Returns None when the workspace has an integration of that name."""
        try:
            row = await self._postgres.fetch_one(_INSERT, vars(new))
        except UniqueViolation:
            return None
        assert row, "an INSERT returns its row"
        return StoredIntegration(**row)

    async def read(self, workspace_id: UUID, integration_id: UUID) -> tuple[StoredIntegration, bytes] | None:
        """Return the integration and its sealed token."""
        row = await self._postgres.fetch_one(_READ, (workspace_id, integration_id))
        if row is None:
            return None
        sealed = bytes(row.pop("sealed_token"))
        return StoredIntegration(**row), sealed

    async def read_all(self, workspace_id: UUID, limit: int) -> list[StoredIntegration]:
        """Return the integrations, newest first."""
        return [StoredIntegration(**row) for row in await self._postgres.fetch(_READ_ALL, (workspace_id, limit))]

    async def read_push_secret(self, integration_id: UUID) -> tuple[UUID, ForgeKind, bytes] | None:
        """Return the workspace, the kind of forge and the sealed webhook secret. Not limited to a workspace, since
        forges send no key.
        """
        row = await self._postgres.fetch_one(_READ_OF_PUSHES, (integration_id,))
        return (row["workspace_id"], row["kind"], bytes(row["sealed_webhook_secret"])) if row else None

    async def make_due(self, workspace_id: UUID, integration_id: UUID, urls: Sequence[str]) -> int:
        """Make the branches that deployments follow in these repositories due for a look, and return how many.

        `urls` are in lower case, without `.git`.
        """
        values = {"workspace_id": workspace_id, "integration_id": str(integration_id), "urls": list(urls)}
        return await self._postgres.execute(_MAKE_DUE, values)

    async def remove(self, workspace_id: UUID, integration_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE, (workspace_id, integration_id)))
