"""SQL of retention: how long workspaces and projects keep runs."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from typing_extensions import TypedDict

from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.records.words import TraceTier

_COLUMNS = """workspace_id AS tenant_id, id, default_trace_tier, longlived_ttl_days, shortlived_ttl_days, created_at,
    updated_at"""
_READ = f"SELECT {_COLUMNS} FROM retention_settings WHERE workspace_id = %s"
_WRITE = f"""
INSERT INTO retention_settings (id, workspace_id, default_trace_tier, longlived_ttl_days, shortlived_ttl_days, actor)
VALUES (%(id)s, %(workspace_id)s, %(default_trace_tier)s, %(longlived_ttl_days)s, %(shortlived_ttl_days)s, %(actor)s)
ON CONFLICT (workspace_id) DO UPDATE SET default_trace_tier = excluded.default_trace_tier,
    longlived_ttl_days = excluded.longlived_ttl_days, shortlived_ttl_days = excluded.shortlived_ttl_days,
    updated_at = now(), actor = excluded.actor
RETURNING {_COLUMNS}
"""
_APPLY_TO_ALL = """
UPDATE projects SET trace_tier = NULL, longlived_ttl_days = NULL, updated_at = now(), actor = %s
WHERE workspace_id = %s AND (trace_tier IS NOT NULL OR longlived_ttl_days IS NOT NULL)
"""
# Projects whose runs expire, and after how many days.
_LIFETIMES = """
SELECT id, workspace_id, days FROM (
    SELECT p.id, p.workspace_id, CASE coalesce(p.trace_tier, s.default_trace_tier, 'longlived')
        WHEN 'shortlived' THEN coalesce(s.shortlived_ttl_days, %s)
        ELSE nullif(coalesce(p.longlived_ttl_days, s.longlived_ttl_days), 0) END AS days
    FROM projects p LEFT JOIN retention_settings s USING (workspace_id)
) AS lifetimes WHERE days IS NOT NULL ORDER BY days, workspace_id, id
"""


class RetentionRow(TypedDict):
    tenant_id: UUID
    id: UUID
    default_trace_tier: TraceTier
    longlived_ttl_days: int | None
    shortlived_ttl_days: int
    created_at: datetime
    updated_at: datetime


class Lifetime(NamedTuple):
    project_id: UUID
    workspace_id: UUID
    days: int


class RetentionStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def read(self, workspace_id: UUID) -> RetentionRow | None:
        return await self._postgres.fetch_one(_READ, (workspace_id,))  # type: ignore[return-value]

    async def write(
        self,
        workspace_id: UUID,
        *,
        default_trace_tier: TraceTier,
        longlived_ttl_days: int | None,
        shortlived_ttl_days: int,
        apply_to_all_projects: bool,
        actor: str,
    ) -> RetentionRow:
        """Write the workspace's settings; `apply_to_all_projects` removes the projects' own settings."""
        values = {
            "id": uuid7(),
            "workspace_id": workspace_id,
            "default_trace_tier": default_trace_tier.value,
            "longlived_ttl_days": longlived_ttl_days,
            "shortlived_ttl_days": shortlived_ttl_days,
            "actor": actor,
        }
        async with self._postgres.connection() as connection, connection.transaction():
            row = await (await connection.execute(_WRITE, values)).fetchone()
            if apply_to_all_projects:
                await connection.execute(_APPLY_TO_ALL, (actor, workspace_id))
        assert row is not None
        return row  # type: ignore[return-value]

    async def lifetimes(self, shortlived_days: int) -> list[Lifetime]:
        """List how long the projects of all workspaces keep runs, ordered by days; without those that keep for ever."""
        rows = await self._postgres.fetch(_LIFETIMES, (shortlived_days,))
        return [Lifetime(row["id"], row["workspace_id"], row["days"]) for row in rows]
