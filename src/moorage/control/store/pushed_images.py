"""SQL of pushed images: blobs, whose bytes are objects of the bucket, and manifests, which are rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from moorage.control.records.pushed_images import ImageManifest
from moorage.kernel.postgres import Postgres

# The least size that a part counts as: each costs a row and an object, however small it is.
_PART_BYTES_MIN = 4096
_USE_BLOB = """
UPDATE pushed_blobs SET used_at = now() WHERE deployment_id = %s AND digest = %s AND NOT unwanted
RETURNING object_key, size_bytes
"""
_INSERT_BLOB = """
INSERT INTO pushed_blobs (object_key, deployment_id, digest, size_bytes)
SELECT %(object_key)s, d.id, %(digest)s, %(size_bytes)s FROM deployments d
WHERE d.id = %(deployment_id)s AND d.status <> 'AWAITING_DELETE'
ON CONFLICT (deployment_id, digest) WHERE NOT unwanted DO NOTHING
"""
_MISSING = """
WITH blobs AS (
    UPDATE pushed_blobs SET used_at = now()
    WHERE deployment_id = %(deployment_id)s AND digest = ANY(%(parts)s) AND NOT unwanted RETURNING digest
), manifests AS (
    UPDATE pushed_manifests SET used_at = now()
    WHERE deployment_id = %(deployment_id)s AND digest = ANY(%(parts)s) RETURNING digest
)
SELECT part FROM unnest(%(parts)s::text[]) part
WHERE part NOT IN (SELECT digest FROM blobs UNION ALL SELECT digest FROM manifests)
"""
_PUT_MANIFEST = """
INSERT INTO pushed_manifests (deployment_id, digest, media_type, body, parts)
SELECT id, %(digest)s, %(media_type)s, %(body)s, %(parts)s FROM deployments
WHERE id = %(deployment_id)s AND status <> 'AWAITING_DELETE'
ON CONFLICT (deployment_id, digest) DO UPDATE SET used_at = now()
"""
_PUT_TAG = """
INSERT INTO pushed_tags (deployment_id, tag, digest)
SELECT deployment_id, %(tag)s, digest FROM pushed_manifests
WHERE deployment_id = %(deployment_id)s AND digest = %(digest)s
ON CONFLICT (deployment_id, tag) DO UPDATE SET digest = excluded.digest
"""
_READ_MANIFEST = """
UPDATE pushed_manifests SET used_at = now() WHERE deployment_id = %(deployment_id)s AND digest = coalesce(
    (SELECT digest FROM pushed_tags WHERE deployment_id = %(deployment_id)s AND tag = %(reference)s), %(reference)s
) RETURNING digest, media_type, body
"""
_KEPT_BYTES = f"""
SELECT (SELECT coalesce(sum(greatest(size_bytes, {_PART_BYTES_MIN})), 0) FROM pushed_blobs WHERE deployment_id = %(id)s)
    + (SELECT coalesce(sum(greatest(octet_length(body), {_PART_BYTES_MIN})), 0) FROM pushed_manifests
        WHERE deployment_id = %(id)s) AS bytes
"""
# Manifests that were not used for `keep_s`, that none of the newest revisions runs and that no index names.
_DELETE_MANIFESTS = """
DELETE FROM pushed_manifests m
WHERE m.used_at < now() - %(keep_s)s * interval '1 second' AND NOT EXISTS (
    SELECT FROM (
        SELECT source_revision_config->>'image_uri' AS image_uri, image_pin FROM revisions r
        WHERE r.deployment_id = m.deployment_id ORDER BY number DESC LIMIT %(keep_revisions)s
    ) newest WHERE right(newest.image_uri, 71) = m.digest OR right(newest.image_pin, 71) = m.digest
) AND NOT EXISTS (
    SELECT FROM pushed_manifests i WHERE i.deployment_id = m.deployment_id AND m.digest = ANY(i.parts)
)
"""
_MARK_BLOBS = """
UPDATE pushed_blobs b SET unwanted = true
WHERE b.used_at < now() - %(keep_s)s * interval '1 second' AND NOT b.unwanted AND NOT EXISTS (
    SELECT FROM pushed_manifests m WHERE m.deployment_id = b.deployment_id AND b.digest = ANY(m.parts)
)
"""
_READ_UNWANTED = "SELECT object_key FROM pushed_blobs WHERE unwanted LIMIT 1000"
_DELETE_BLOBS = "DELETE FROM pushed_blobs WHERE object_key = ANY(%s)"


@dataclass(frozen=True)
class Blob:
    object_key: str
    size_bytes: int


class PushedImageStore:
    """Store of pushed images. Each look-up counts as a use, so that the sweep keeps parts that a
    push has just found.
    """

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def use_blob(self, deployment_id: UUID, digest: str) -> Blob | None:
        row = await self._postgres.fetch_one(_USE_BLOB, (deployment_id, digest))
        return Blob(**row) if row else None

    async def insert_blob(self, deployment_id: UUID, digest: str, blob: Blob) -> bool:
        """Insert the blob. Returns False when it exists already, or its deployment is gone."""
        values = {"deployment_id": deployment_id, "digest": digest, **vars(blob)}
        return bool(await self._postgres.execute(_INSERT_BLOB, values))

    async def missing(self, deployment_id: UUID, parts: Sequence[str]) -> list[str]:
        """Return the digests among these that were not pushed yet."""
        rows = await self._postgres.fetch(_MISSING, {"deployment_id": deployment_id, "parts": list(parts)})
        return [row["part"] for row in rows]

    async def put_manifest(self, deployment_id: UUID, manifest: ImageManifest, tag: str | None) -> None:
        values = {"deployment_id": deployment_id, "tag": tag, **vars(manifest), "parts": list(manifest.parts)}
        named = [(_PUT_TAG, [values])] if tag is not None else []
        await self._postgres.execute_all([(_PUT_MANIFEST, [values]), *named])

    async def read_manifest(self, deployment_id: UUID, reference: str) -> ImageManifest | None:
        """Read a manifest by its tag or digest."""
        values = {"deployment_id": deployment_id, "reference": reference}
        row = await self._postgres.fetch_one(_READ_MANIFEST, values)
        return ImageManifest(**row) if row else None

    async def kept_bytes(self, deployment_id: UUID) -> int:
        row = await self._postgres.fetch_one(_KEPT_BYTES, {"id": deployment_id})
        return int(row["bytes"]) if row else 0

    async def mark_unwanted(self, keep_s: float, keep_revisions: int) -> list[str]:
        """Delete manifests that are no longer needed, and return up to 1000 objects that no manifest names."""
        values = {"keep_s": keep_s, "keep_revisions": keep_revisions}
        await self._postgres.execute(_DELETE_MANIFESTS, values)
        await self._postgres.execute(_MARK_BLOBS, values)
        return [row["object_key"] for row in await self._postgres.fetch(_READ_UNWANTED)]

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete the rows of removed objects."""
        await self._postgres.execute(_DELETE_BLOBS, (list(object_keys),))
