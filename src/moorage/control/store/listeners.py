"""SQL of listeners."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from moorage.control.records.listeners import ListenerCreate, ListenerPatch, StoredListener
from moorage.kernel.postgres import Postgres

_COLUMNS = """
    id, workspace_id, version, compute_type, compute_id, compute_config, last_seen_at, created_at, updated_at
"""
_INSERT = f"""
INSERT INTO listeners (id, workspace_id, version, compute_type, compute_id, compute_config, actor)
VALUES (%s, %s, %s, %s, %s, %s, %s)
RETURNING {_COLUMNS}
"""
_READ = f"SELECT {_COLUMNS} FROM listeners WHERE workspace_id = %s AND id = %s"
_PAGE = f"SELECT {_COLUMNS} FROM listeners WHERE workspace_id = %s ORDER BY created_at DESC, id DESC LIMIT %s OFFSET %s"
_UPDATE = f"""
UPDATE listeners SET version = coalesce(%s, version), compute_config = coalesce(%s, compute_config), updated_at = now(),
    actor = %s
WHERE workspace_id = %s AND id = %s
RETURNING {_COLUMNS}
"""
_COUNT_DEPLOYMENTS = """
SELECT count(*) AS n FROM deployments
WHERE workspace_id = %s AND source_config->>'listener_id' = %s AND status <> 'AWAITING_DELETE'
"""
_REMOVE = "DELETE FROM listeners WHERE workspace_id = %s AND id = %s"
_SET_SEEN = "UPDATE listeners SET last_seen_at = now() WHERE id = ANY(%s)"
_SET_VERSION = "UPDATE listeners SET last_seen_at = now(), version = %s WHERE id = %s"
_EXISTS = "SELECT FROM listeners WHERE id = %s"


class ListenerStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self, workspace_id: UUID, listener_id: UUID, new: ListenerCreate, actor: str
    ) -> StoredListener | None:
        """Insert the listener. Returns None when the workspace has a listener of that compute id."""
        values = (listener_id, workspace_id, new.version, new.compute_type, new.compute_id)
        try:
            row = await self._postgres.fetch_one(_INSERT, (*values, Jsonb(new.compute_config.model_dump()), actor))
        except UniqueViolation:
            return None
        return cast(StoredListener, row)

    async def read(self, workspace_id: UUID, listener_id: UUID) -> StoredListener | None:
        return cast(StoredListener | None, await self._postgres.fetch_one(_READ, (workspace_id, listener_id)))

    async def page(self, workspace_id: UUID, limit: int, offset: int) -> list[StoredListener]:
        """Return a page of listeners, newest first."""
        return cast(list[StoredListener], await self._postgres.fetch(_PAGE, (workspace_id, limit, offset)))

    async def update(
        self, workspace_id: UUID, listener_id: UUID, patch: ListenerPatch, actor: str
    ) -> StoredListener | None:
        config = Jsonb(patch.compute_config.model_dump()) if patch.compute_config else None
        row = await self._postgres.fetch_one(_UPDATE, (patch.version, config, actor, workspace_id, listener_id))
        return cast(StoredListener | None, row)

    async def count_deployments(self, workspace_id: UUID, listener_id: UUID) -> int:
        """Count the deployments that name it, except those that are being deleted."""
        row = await self._postgres.fetch_one(_COUNT_DEPLOYMENTS, (workspace_id, str(listener_id)))
        return int(row["n"]) if row else 0

    async def remove(self, workspace_id: UUID, listener_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE, (workspace_id, listener_id)))

    async def set_seen(self, listener_ids: Collection[UUID]) -> None:
        if listener_ids:
            await self._postgres.execute(_SET_SEEN, (list(listener_ids),))

    async def set_version(self, listener_id: UUID, version: str) -> None:
        await self._postgres.execute(_SET_VERSION, (version, listener_id))

    async def exists(self, listener_id: UUID) -> bool:
        """Return True if the listener exists, in any workspace. Used for a deployment that names it."""
        return await self._postgres.fetch_one(_EXISTS, (listener_id,)) is not None
