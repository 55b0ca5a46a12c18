"""SQL of destinations. Their credentials are always sealed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.exports.records.destinations import Destination, DestinationConfig, DestinationType, Permissions
from moorage.kernel.postgres import Postgres

_PUBLIC = """
    id, workspace_id AS tenant_id, destination_type, display_name, config, credentials_keys, permissions, created_at,
    updated_at
"""
_INSERT = f"""
INSERT INTO export_destinations
    (id, workspace_id, destination_type, display_name, config, credentials, credentials_keys, permissions, actor)
VALUES (
    %(id)s, %(workspace_id)s, %(destination_type)s, %(display_name)s, %(config)s, %(credentials)s,
    %(credentials_keys)s, %(permissions)s, %(actor)s
)
RETURNING {_PUBLIC}
"""
_PAGE = f"""
SELECT {_PUBLIC} FROM export_destinations WHERE workspace_id = %(workspace_id)s
ORDER BY created_at, id LIMIT %(limit)s OFFSET %(offset)s
"""
_READ = f"SELECT {_PUBLIC} FROM export_destinations WHERE workspace_id = %s AND id = %s"
# For code that opens the bucket; never used for an answer.
_READ_STORED = """
SELECT id, destination_type, config, credentials, permissions FROM export_destinations WHERE workspace_id = %s AND id = %s
"""
# One destination of each kind that may need something from the process: a setting, credentials for assuming a role, or
# a master key, whose id is at the start of a sealed value. Covers all workspaces, since a worker serves all.
_READ_KINDS = """
SELECT DISTINCT ON (destination_type, substring(credentials FOR 9), config ->> 'aws_role_arn' IS NULL)
    id, destination_type, config, credentials, permissions
FROM export_destinations
ORDER BY destination_type, substring(credentials FOR 9), config ->> 'aws_role_arn' IS NULL, created_at DESC
"""
_SET_CREDENTIALS = f"""
UPDATE export_destinations SET credentials = %(credentials)s, credentials_keys = %(credentials_keys)s,
    config = %(config)s, permissions = %(permissions)s, updated_at = now(), actor = %(actor)s
WHERE workspace_id = %(workspace_id)s AND id = %(id)s
RETURNING {_PUBLIC}
"""
_REMOVE = "DELETE FROM export_destinations WHERE workspace_id = %s AND id = %s"


@dataclass(frozen=True)
class StoredDestination:
    """Connection to a bucket. `credentials` are sealed; None means the environment's. `permissions` are None
    until the destination was tested.
    """

    id: UUID
    destination_type: DestinationType
    config: DestinationConfig
    credentials: bytes | None
    permissions: Permissions | None


class DestinationStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self,
        destination: StoredDestination,
        workspace_id: UUID,
        *,
        display_name: str,
        credentials_keys: list[str],
        permissions: Permissions,
        actor: str,
    ) -> Destination:
        values = {
            "id": destination.id,
            "workspace_id": workspace_id,
            "destination_type": destination.destination_type.value,
            "display_name": display_name,
            "config": Jsonb(destination.config),
            "credentials": destination.credentials,
            "credentials_keys": credentials_keys,
            "permissions": Jsonb(permissions),
            "actor": actor,
        }
        row = await self._postgres.fetch_one(_INSERT, values)
        assert row is not None
        return _public(row)

    async def page(self, workspace_id: UUID, *, limit: int, offset: int) -> list[Destination]:
        """List destinations, oldest first."""
        values = {"workspace_id": workspace_id, "limit": limit, "offset": offset}
        return [_public(row) for row in await self._postgres.fetch(_PAGE, values)]

    async def read(self, workspace_id: UUID, destination_id: UUID) -> Destination | None:
        row = await self._postgres.fetch_one(_READ, (workspace_id, destination_id))
        return _public(row) if row else None

    async def read_stored(self, workspace_id: UUID, destination_id: UUID) -> StoredDestination | None:
        row = await self._postgres.fetch_one(_READ_STORED, (workspace_id, destination_id))
        return _stored(row) if row else None

    async def read_kinds(self) -> list[StoredDestination]:
        """Return the newest destination for each combination of type, master key, and having a role or not."""
        return [_stored(row) for row in await self._postgres.fetch(_READ_KINDS)]

    async def set_credentials(
        self,
        destination: StoredDestination,
        workspace_id: UUID,
        *,
        credentials_keys: list[str],
        permissions: Permissions,
        actor: str,
    ) -> Destination | None:
        """Set new credentials and their changes of the configuration; None if the destination was deleted meanwhile."""
        values = {
            "id": destination.id,
            "workspace_id": workspace_id,
            "credentials": destination.credentials,
            "credentials_keys": credentials_keys,
            "config": Jsonb(destination.config),
            "permissions": Jsonb(permissions),
            "actor": actor,
        }
        row = await self._postgres.fetch_one(_SET_CREDENTIALS, values)
        return _public(row) if row else None

    async def remove(self, workspace_id: UUID, destination_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE, (workspace_id, destination_id)))


def _public(row: dict[str, Any]) -> Destination:
    return {**row, "destination_type": DestinationType(row["destination_type"])}  # type: ignore[typeddict-item]


def _stored(row: dict[str, Any]) -> StoredDestination:
    return StoredDestination(**{**row, "destination_type": DestinationType(row["destination_type"])})
