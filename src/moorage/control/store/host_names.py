"""SQL of host names: the deployments that have them, and the state of their certificates."""

from __future__ import annotations

from moorage.control.records.host_names import HostName, ServedName
from moorage.kernel.postgres import Postgres

# An address with a port of its own does not tell where the front door's HTTPS is reached.
_READ = """
SELECT host_name, name AS deployment_name, certificate_state = 'issued'
    AND source_config->>'custom_url' = 'https://' || host_name AS has_https
FROM deployments WHERE host_name IS NOT NULL AND status <> 'AWAITING_DELETE'
"""
_TAKE_DUE = """
WITH picked AS MATERIALIZED (
    SELECT id FROM deployments
    WHERE host_name IS NOT NULL AND status <> 'AWAITING_DELETE' AND source_config->>'custom_url' LIKE 'https:%%'
        AND (certificate_look_at IS NULL OR certificate_look_at <= now())
    ORDER BY certificate_look_at NULLS FIRST FOR UPDATE SKIP LOCKED LIMIT %(limit)s
)
UPDATE deployments d SET certificate_look_at = now() + %(held_s)s * interval '1 second'
FROM picked WHERE d.id = picked.id RETURNING d.host_name
"""
# If another deployment has taken over the name meanwhile, the result is valid for that deployment too.
_NOTE = """
UPDATE deployments SET certificate_state = %(certificate)s, certificate_message = %(message)s,
    certificate_expires_at = %(expires_at)s, certificate_look_at = now() + %(again_s)s * interval '1 second'
WHERE host_name = %(name)s AND status <> 'AWAITING_DELETE'
"""


class HostNameStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def read(self) -> list[ServedName]:
        return [ServedName(**row) for row in await self._postgres.fetch(_READ)]

    async def take_due(self, limit: int, held_s: float) -> list[str]:
        """Take host names whose certificates are due for a check, the longest ago first. Each is
        reserved for `held_s`.
        """
        rows = await self._postgres.fetch(_TAKE_DUE, {"limit": limit, "held_s": held_s})
        return [row["host_name"] for row in rows]

    async def note(self, seen: HostName, again_s: float) -> None:
        """Store the result of a check. The next check is due after `again_s`."""
        await self._postgres.execute(_NOTE, {**seen, "again_s": again_s})
