"""SQL of integrations. Tokens and the secrets of webhooks come and go sealed."""

from __future__ import annotations

from uuid import UUID

from psycopg.errors import UniqueViolation

from moorage.control.records.integrations import IntegrationCreate, StoredIntegration
from moorage.kernel.postgres import Postgres

_COLUMNS = "id, number, workspace_id, kind, name, base_url, created_at"
_INSERT = f"""
INSERT INTO integrations (id, workspace_id, kind, name, base_url, sealed_token, sealed_webhook_secret, actor)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
RETURNING {_COLUMNS}
"""
_READ = f"SELECT {_COLUMNS}, sealed_token FROM integrations WHERE workspace_id = %s AND id = %s"
_READ_ALL = f"SELECT {_COLUMNS} FROM integrations WHERE workspace_id = %s ORDER BY created_at DESC, id DESC LIMIT %s"
_REMOVE = "DELETE FROM integrations WHERE workspace_id = %s AND id = %s"


class IntegrationStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self,
        workspace_id: UUID,
        integration_id: UUID,
        new: IntegrationCreate,
        sealed_token: bytes,
        sealed_webhook_secret: bytes,
        actor: str,
    ) -> StoredIntegration | None:
        """None when the workspace has an integration of that name."""
        values = (integration_id, workspace_id, new.kind, new.name, new.address)
        try:
            row = await self._postgres.fetch_one(_INSERT, (*values, sealed_token, sealed_webhook_secret, actor))
        except UniqueViolation:
            return None
        assert row, "an INSERT returns its row"
        return StoredIntegration(**row)

    async def read(self, workspace_id: UUID, integration_id: UUID) -> tuple[StoredIntegration, bytes] | None:
        """The integration and its sealed token."""
        row = await self._postgres.fetch_one(_READ, (workspace_id, integration_id))
        if row is None:
            return None
        sealed = bytes(row.pop("sealed_token"))
        return StoredIntegration(**row), sealed

    async def read_all(self, workspace_id: UUID, limit: int) -> list[StoredIntegration]:
        """Newest first."""
        return [StoredIntegration(**row) for row in await self._postgres.fetch(_READ_ALL, (workspace_id, limit))]

    async def remove(self, workspace_id: UUID, integration_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE, (workspace_id, integration_id)))
