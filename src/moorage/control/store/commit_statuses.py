"""SQL of statuses that are written to commits."""

from __future__ import annotations

from uuid import UUID

from moorage.control.records.integrations import UntoldStatus
from moorage.kernel.postgres import Postgres

# Only the newest revision of a commit sets its status. Taking a status postpones its next attempt, so several processes
# share the statuses, and the work of a killed process is repeated.
_TAKE = """
WITH known AS MATERIALIZED (
    SELECT r.id, d.name, d.source_config, i.id AS integration_id, r.workspace_id, r.repo_commit_sha AS commit_sha,
        r.told_state, r.tell_at, CASE
            WHEN r.status = 'DEPLOYED' THEN 'success'
            WHEN r.status IN ('BUILD_FAILED', 'DEPLOY_FAILED', 'INTERRUPTED') THEN 'failure'
            ELSE 'pending' END AS state
    FROM integrations i
    JOIN deployments d ON d.source_config->>'integration_id' = i.id::text AND d.workspace_id = i.workspace_id
    JOIN revisions r ON r.deployment_id = d.id AND r.created_at >= i.created_at
    WHERE d.source_config ? 'integration_id' AND r.source = 'github' AND r.repo_commit_sha IS NOT NULL
        AND r.status NOT IN ('SKIPPED', 'QUEUED') AND r.updated_at > now() - interval '1 day'
        AND NOT EXISTS (
            SELECT FROM revisions o
            WHERE o.deployment_id = d.id AND o.number > r.number AND o.repo_commit_sha = r.repo_commit_sha
                AND o.status NOT IN ('SKIPPED', 'QUEUED')
        )
), picked AS MATERIALIZED (
    SELECT r.id FROM revisions r JOIN known k ON k.id = r.id
    WHERE k.told_state IS DISTINCT FROM k.state AND k.tell_at <= now()
    ORDER BY r.tell_at FOR UPDATE OF r SKIP LOCKED LIMIT %(limit)s
)
UPDATE revisions SET tell_at = now() + %(retry_s)s * interval '1 second' FROM picked, known k
WHERE revisions.id = picked.id AND k.id = picked.id AND revisions.tell_at <= now()
RETURNING k.id AS revision_id, k.workspace_id, k.integration_id, k.name AS deployment_name,
    k.source_config->>'repo_url' AS repo_url,
    k.source_config->>'custom_url' AS custom_url, k.commit_sha, k.state
"""
# Due again at once, since the revision may have moved on meanwhile.
_NOTE = "UPDATE revisions SET told_state = %s, tell_at = now() WHERE id = %s"


class CommitStatusStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def take(self, retry_s: float, limit: int) -> list[UntoldStatus]:
        """Take statuses that were not written to their commits. Each is due again after `retry_s` until it is noted."""
        return [UntoldStatus(**row) for row in await self._postgres.fetch(_TAKE, {"retry_s": retry_s, "limit": limit})]

    async def note(self, revision_id: UUID, state: str) -> None:
        """Record that the status was written, or that the forge refuses it for good."""
        await self._postgres.execute(_NOTE, (state, revision_id))
