"""SQL of uploads: each has a path for one tarball."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moorage.kernel.postgres import Postgres

_INSERT = """
INSERT INTO uploads (path, deployment_id, workspace_id, expires_at, actor)
SELECT %(path)s, d.id, d.workspace_id, now() + %(good_for_s)s * interval '1 second', %(actor)s FROM deployments d
WHERE d.workspace_id = %(workspace_id)s AND d.id = %(deployment_id)s AND d.status <> 'AWAITING_DELETE'
RETURNING extract(epoch FROM expires_at)::bigint AS expires_at
"""
_READ = """
SELECT path, deployment_id, object_key, size_bytes FROM uploads WHERE path = %s
"""
# The first complete upload wins; later ones change nothing.
_SET_UPLOADED = """
UPDATE uploads SET object_key = %(object_key)s, size_bytes = %(size_bytes)s, uploaded_at = now()
WHERE path = %(path)s AND uploaded_at IS NULL AND expires_at > now()
"""
_READ_KEYS = "SELECT object_key FROM uploads WHERE deployment_id = %s AND object_key IS NOT NULL"
# Uploads that did not arrive in time, and those older than `keep_s` that none of the newest revisions was made of.
_READ_UNUSED = """
SELECT path, deployment_id, object_key, size_bytes FROM uploads u
WHERE (u.uploaded_at IS NULL AND u.expires_at < now())
    OR (u.uploaded_at < now() - %(keep_s)s * interval '1 second' AND NOT EXISTS (
        SELECT FROM (
            SELECT source_revision_config FROM revisions r WHERE r.deployment_id = u.deployment_id
            ORDER BY number DESC LIMIT %(keep_revisions)s
        ) newest WHERE newest.source_revision_config->>'source_tarball_path' = u.path
    ))
LIMIT 100
"""
_REMOVE = "DELETE FROM uploads WHERE path = ANY(%s)"


@dataclass(frozen=True)
class Upload:
    path: str
    deployment_id: UUID
    object_key: str | None  # None until the upload is complete
    size_bytes: int | None


class UploadStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self, workspace_id: UUID, deployment_id: UUID, path: str, good_for_s: float, actor: str
    ) -> int | None:
        """Insert an upload, and return its expiry in seconds of the epoch, or None when there is no such deployment."""
        values = {"path": path, "workspace_id": workspace_id, "deployment_id": deployment_id, "good_for_s": good_for_s}
        row = await self._postgres.fetch_one(_INSERT, {**values, "actor": actor})
        return int(row["expires_at"]) if row else None

    async def read(self, path: str) -> Upload | None:
        row = await self._postgres.fetch_one(_READ, (path,))
        return Upload(**row) if row else None

    async def set_uploaded(self, path: str, object_key: str, size_bytes: int) -> bool:
        """Record the upload. Returns False when it is complete already, or has expired."""
        values: dict[str, Any] = {"path": path, "object_key": object_key, "size_bytes": size_bytes}
        return bool(await self._postgres.execute(_SET_UPLOADED, values))

    async def read_keys(self, deployment_id: UUID) -> list[str]:
        """Return the keys of a deployment's objects in the bucket."""
        return [row["object_key"] for row in await self._postgres.fetch(_READ_KEYS, (deployment_id,))]

    async def read_unused(self, keep_s: float, keep_revisions: int) -> list[Upload]:
        """Return up to 100 uploads that are no longer needed."""
        rows = await self._postgres.fetch(_READ_UNUSED, {"keep_s": keep_s, "keep_revisions": keep_revisions})
        return [Upload(**row) for row in rows]

    async def remove(self, paths: Sequence[str]) -> None:
        """Delete the rows of removed objects."""
        await self._postgres.execute(_REMOVE, (list(paths),))
