"""SQL of workspaces and API keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from psycopg.errors import UniqueViolation

from moorage.accounts.records import ApiKey, RevokedKey, StoredKey, Workspace
from moorage.kernel.access import Plan
from moorage.kernel.crypto import SealedColumn
from moorage.kernel.postgres import Postgres

_WORKSPACE = """
    id, display_name, tenant_handle, coalesce(plan, %(default_plan)s) AS plan,
    false AS is_personal, false AS is_deleted, NULL::uuid AS organization_id, NULL::text AS data_plane_url,
    created_at, updated_at
"""
_KEY = """
    id, short_key, description, scopes,
    NOT EXISTS (SELECT 1 FROM unnest(scopes) AS scope WHERE scope !~ '^([a-z-]+:read|agents:read:.+)$') AS read_only,
    created_at, expires_at, last_used_at
"""

# Returns no row when the id or the handle is taken; the caller finds out which.
_INSERT_WORKSPACE = f"""
INSERT INTO workspaces (id, display_name, tenant_handle, plan, actor)
VALUES (%(id)s, %(display_name)s, %(tenant_handle)s, %(plan)s, %(actor)s)
ON CONFLICT DO NOTHING
RETURNING {_WORKSPACE}
"""
_READ_WORKSPACES = f"SELECT {_WORKSPACE} FROM workspaces WHERE id = ANY(%(ids)s) ORDER BY created_at, id"
# A NULL parameter keeps the column's value.
_UPDATE_WORKSPACE = f"""
UPDATE workspaces SET
    display_name = coalesce(%(display_name)s, display_name),
    tenant_handle = coalesce(%(tenant_handle)s, tenant_handle),
    plan = coalesce(%(plan)s, plan),
    actor = %(actor)s,
    updated_at = now()
WHERE id = %(id)s
RETURNING {_WORKSPACE}
"""
_OLDEST_WORKSPACE = "SELECT id FROM workspaces ORDER BY created_at, id LIMIT 1"

# Returns no row when the key exists already, in any workspace.
_INSERT_KEY = f"""
INSERT INTO api_keys (id, workspace_id, digest, short_key, description, scopes, expires_at, actor)
VALUES (%(id)s, %(workspace_id)s, %(digest)s, %(short_key)s, %(description)s, %(scopes)s, %(expires_at)s, %(actor)s)
ON CONFLICT (digest) DO NOTHING
RETURNING {_KEY}
"""
_READ_KEYS = f"""
SELECT {_KEY} FROM api_keys WHERE workspace_id = %s AND revoked_at IS NULL ORDER BY created_at DESC, id DESC LIMIT %s
"""
_REVOKE_KEY = f"""
UPDATE api_keys SET revoked_at = now(), actor = %(actor)s
WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND revoked_at IS NULL
RETURNING {_KEY}
"""
# One round trip finds the key and records its use. The use is recorded at most once a minute, so all other requests
# only read.
_FIND_KEY = """
WITH used AS (
    UPDATE api_keys SET last_used_at = now()
    WHERE {by} = %(sought)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
        AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
)
SELECT k.id, k.workspace_id, coalesce(w.plan, %(default_plan)s) AS plan, k.scopes, k.expires_at, k.revoked_at
FROM api_keys k JOIN workspaces w ON w.id = k.workspace_id
WHERE k.{by} = %(sought)s
"""
_FIND_KEY_BY_DIGEST = _FIND_KEY.format(by="digest")
_FIND_KEY_BY_ID = _FIND_KEY.format(by="id")
# A row becomes visible shortly after its `revoked_at`, so callers also read some time before their last read.
_READ_REVOKED = """
SELECT id, workspace_id FROM api_keys
WHERE revoked_at > %(since)s AND (%(workspace_id)s::uuid IS NULL OR workspace_id = %(workspace_id)s)
ORDER BY revoked_at, id
"""
_HAS_KEYS = "SELECT 1 FROM api_keys WHERE workspace_id = %s LIMIT 1"

# Also deletes expired links: there are too few to need a loop.
_INSERT_LOGIN_LINK = """
WITH gone AS (DELETE FROM login_links WHERE expires_at < now())
INSERT INTO login_links (digest, key_id, expires_at) VALUES (%s, %s, now() + make_interval(secs => %s))
"""
# If two callers use a link at once, one of them gets it.
_TAKE_LOGIN_LINK = "DELETE FROM login_links WHERE digest = %s RETURNING key_id, expires_at > now() AS is_fresh"

# Any fixed number that nothing else in the database uses.
_LOCK = "SELECT pg_advisory_xact_lock(7209662)"

# A rotation of the master key goes through every sealed column. Values sealed by an older key begin with another
# prefix.
_OUTDATED = "{column} IS NOT NULL AND substring({column} FROM 1 FOR length(%(prefix)s)) <> %(prefix)s"
_READ_OUTDATED = f"SELECT {{id_column}} AS id, {{column}} AS sealed FROM {{table}} WHERE {_OUTDATED} LIMIT %(limit)s"
_COUNT_OUTDATED = f"SELECT count(*) AS n FROM {{table}} WHERE {_OUTDATED}"
# A value that has changed meanwhile is already sealed by the newest key.
_REWRAP = "UPDATE {table} SET {column} = %(rewrapped)s WHERE {id_column} = %(id)s AND {column} = %(sealed)s"


class AccountStore:
    def __init__(self, postgres: Postgres, default_plan: Plan) -> None:
        self._postgres = postgres
        self._default_plan = default_plan

    # --- workspaces ---------------------------------------------------------------------------------------------------

    async def insert_workspace(
        self, workspace_id: UUID, display_name: str, tenant_handle: str | None, plan: Plan | None, actor: str
    ) -> Workspace | None:
        """Return the new workspace, or None when its id or handle is taken."""
        values = {"id": workspace_id, "display_name": display_name, "tenant_handle": tenant_handle}
        return cast(Workspace | None, await self._one(_INSERT_WORKSPACE, **values, plan=plan, actor=actor))

    async def read_workspaces(self, workspace_ids: Sequence[UUID]) -> list[Workspace]:
        """Return the workspaces that exist, oldest first."""
        values = {"ids": list(workspace_ids), "default_plan": self._default_plan}
        return cast(list[Workspace], await self._postgres.fetch(_READ_WORKSPACES, values))

    async def update_workspace(
        self, workspace_id: UUID, display_name: str | None, tenant_handle: str | None, plan: Plan | None, actor: str
    ) -> Workspace | None:
        """Return the changed workspace, or None when it does not exist or another workspace has the handle."""
        values = {"id": workspace_id, "display_name": display_name, "tenant_handle": tenant_handle}
        try:
            return cast(Workspace | None, await self._one(_UPDATE_WORKSPACE, **values, plan=plan, actor=actor))
        except UniqueViolation:
            return None

    async def oldest_workspace(self) -> UUID | None:
        row = await self._postgres.fetch_one(_OLDEST_WORKSPACE)
        return row["id"] if row else None

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def insert_key(
        self,
        key_id: UUID,
        workspace_id: UUID,
        *,
        digest: bytes,
        short_key: str,
        description: str,
        scopes: Iterable[str],
        expires_at: datetime | None,
        actor: str,
    ) -> ApiKey | None:
        """Return the new key, or None when a key with this digest exists."""
        values = {"digest": digest, "short_key": short_key, "description": description, "expires_at": expires_at}
        ids = {"id": key_id, "workspace_id": workspace_id}
        return cast(
            ApiKey | None, await self._one(_INSERT_KEY, **ids, **values, scopes=sorted(map(str, scopes)), actor=actor)
        )

    async def read_keys(self, workspace_id: UUID, limit: int) -> list[ApiKey]:
        """Return the keys that are not revoked, newest first."""
        return cast(list[ApiKey], await self._postgres.fetch(_READ_KEYS, (workspace_id, limit)))

    async def revoke_key(self, workspace_id: UUID, key_id: UUID, actor: str) -> ApiKey | None:
        return cast(ApiKey | None, await self._one(_REVOKE_KEY, workspace_id=workspace_id, id=key_id, actor=actor))

    async def now(self) -> datetime:
        """Return the time of the database's clock, which revocations are stamped with."""
        row = await self._postgres.fetch_one("SELECT now() AS now")
        return cast(datetime, row["now"] if row else None)

    async def read_revoked(self, since: datetime, workspace_id: UUID | None = None) -> list[RevokedKey]:
        """Return keys that were revoked after `since`, oldest first: of the workspace, or of all workspaces."""
        values = {"since": since, "workspace_id": workspace_id}
        return cast(list[RevokedKey], await self._postgres.fetch(_READ_REVOKED, values))

    async def find_key_by_digest(self, digest: bytes) -> StoredKey | None:
        return cast(StoredKey | None, await self._one(_FIND_KEY_BY_DIGEST, sought=digest))

    async def find_key_by_id(self, key_id: UUID) -> StoredKey | None:
        return cast(StoredKey | None, await self._one(_FIND_KEY_BY_ID, sought=key_id))

    async def has_keys(self, workspace_id: UUID) -> bool:
        """Return True if the workspace has ever had a key."""
        return await self._postgres.fetch_one(_HAS_KEYS, (workspace_id,)) is not None

    async def insert_login_link(self, digest: bytes, key_id: UUID, life_s: int) -> None:
        await self._postgres.execute(_INSERT_LOGIN_LINK, (digest, key_id, life_s))

    async def take_login_link(self, digest: bytes) -> UUID | None:
        """Return the key that the link stands for and delete the link; None when the link does not exist or has
        expired.
        """
        row = await self._postgres.fetch_one(_TAKE_LOGIN_LINK, (digest,))
        return row["key_id"] if row and row["is_fresh"] else None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold a lock that one process at a time can have. The lock belongs to the connection, so it is released when
        its holder is killed.
        """
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            yield

    # --- rotation of the master key -----------------------------------------------------------------------------------

    async def read_outdated(self, column: SealedColumn, prefix: bytes, limit: int) -> list[tuple[Any, bytes]]:
        """Return id and value of rows whose value does not begin with the prefix."""
        sql = _for_column(_READ_OUTDATED, column)
        return [
            (row["id"], row["sealed"]) for row in await self._postgres.fetch(sql, {"prefix": prefix, "limit": limit})
        ]

    async def count_outdated(self, column: SealedColumn, prefix: bytes) -> int:
        row = await self._postgres.fetch_one(_for_column(_COUNT_OUTDATED, column), {"prefix": prefix})
        return int(row["n"]) if row else 0

    async def set_rewrapped(self, column: SealedColumn, row_id: Any, sealed: bytes, rewrapped: bytes) -> bool:
        """Replace the sealed value. Returns False if it has changed in the meantime."""
        values = {"id": row_id, "sealed": sealed, "rewrapped": rewrapped}
        return bool(await self._postgres.execute(_for_column(_REWRAP, column), values))

    async def _one(self, sql: str, **values: Any) -> Any:
        return await self._postgres.fetch_one(sql, {**values, "default_plan": self._default_plan})


def _for_column(sql: str, column: SealedColumn) -> str:
    return sql.format(table=column.table, id_column=column.id_column, column=column.column)
