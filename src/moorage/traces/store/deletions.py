"""SQL of deletion: the orders in PostgreSQL, which survive a crash, the statements that they run on the trace store,
and the settings of retention.

Rows are deleted by key only. A run may be stored as several rows that share nothing but their key, and a condition on
any other column would miss some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.kernel.clickhouse import ClickHouse, Columns
from moorage.kernel.errors import UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.records.deletion import SHORTLIVED_DAYS, TRACES_MAX, TtlSettings, TtlSettingsWrite
from moorage.traces.store.filters import has_any
from moorage.traces.store.run_columns import BY_TRACES, nums_of
from moorage.traces.store.selections import NEVER
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

# --- orders -------------------------------------------------------------------------------------------------------

_INSERT = """
INSERT INTO trace_deletions (id, workspace_id, trace_ids, metadata, not_before, actor)
VALUES (%s, %s, %s, %s, now() + make_interval(secs => %s), %s)
"""
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM trace_deletions WHERE status = 'pending' AND not_before <= now()
    ORDER BY not_before FOR UPDATE SKIP LOCKED LIMIT %(slots)s
)
UPDATE trace_deletions d SET status = 'running', worker = %(worker)s, attempt = d.attempt + 1,
    lease_until = now() + make_interval(secs => %(lease_s)s)
FROM picked WHERE d.id = picked.id
RETURNING d.id, d.workspace_id, d.project_id, d.trace_ids, d.metadata, d.worker, d.attempt,
    coalesce(d.actor, '') AS actor
"""
_REAP = """
UPDATE trace_deletions SET status = 'pending', worker = NULL, lease_until = NULL
WHERE status = 'running' AND lease_until < now()
"""
_POSTPONE = f"""
UPDATE trace_deletions SET status = 'pending', worker = NULL, lease_until = NULL,
    not_before = now() + make_interval(secs => %(delay_s)s) WHERE {MINE} AND status = 'running'
"""
_END = f"""
UPDATE trace_deletions SET status = 'done', ended_at = now(), lease_until = NULL WHERE {MINE} AND status = 'running'
"""
# Done orders are kept for a month, so that people can still ask who deleted what.
_REMOVE_DONE = "DELETE FROM trace_deletions WHERE status = 'done' AND ended_at < now() - interval '30 days'"


@dataclass(frozen=True)
class RemovalOrder:
    """Order to remove given traces, traces with any of some metadata, or a whole project. One of the three is set."""

    lease: Lease
    workspace_id: UUID
    project_id: UUID | None
    trace_ids: Sequence[UUID] | None
    metadata: Mapping[str, str] | None
    actor: str


class DeletionStore(LeaseStore):
    """Store of removal orders."""

    BEAT = f"""
        UPDATE trace_deletions SET lease_until = now() + make_interval(secs => %(lease_s)s)
        {HELD} AND status = 'running' RETURNING id"""
    HAND_BACK = f"""
        UPDATE trace_deletions SET status = 'pending', worker = NULL, lease_until = NULL
        {HELD} AND status = 'running'"""

    async def insert(
        self,
        workspace_id: UUID,
        *,
        trace_ids: Sequence[UUID] | None = None,
        metadata: Mapping[str, str] | None = None,
        wait_s: float,
        actor: str,
    ) -> None:
        traces = None if trace_ids is None else list(trace_ids)
        pairs = None if metadata is None else Jsonb(dict(metadata))
        await self._postgres.execute(_INSERT, (uuid7(), workspace_id, traces, pairs, wait_s, actor))

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[RemovalOrder]:
        rows = await self._postgres.fetch(_CLAIM, {"worker": worker, "slots": slots, "lease_s": lease_s})
        return [RemovalOrder(Lease(row.pop("id"), row.pop("worker"), row.pop("attempt")), **row) for row in rows]

    async def reap(self) -> int:
        return await self._postgres.execute(_REAP)

    async def postpone(self, lease: Lease, delay_s: float) -> None:
        """Release the order for a while."""
        await self._postgres.execute(_POSTPONE, proof_of(lease) | {"delay_s": delay_s})

    async def end(self, lease: Lease) -> bool:
        """Mark the order as done. False when the lease was lost."""
        return bool(await self._postgres.execute(_END, proof_of(lease)))

    async def remove_done(self) -> int:
        return await self._postgres.execute(_REMOVE_DONE)


# --- statements of the orders -------------------------------------------------------------------------------------

# Readers skip runs with deleted_at. It is set by another row of the same key, and no later row can unset it.
_HIDE = f"""
INSERT INTO trace_run_rows (tenant_id, session_id, start_time, id, deleted_at)
SELECT DISTINCT tenant_id, session_id, start_time, id, {{at:DateTime64(6, 'UTC')}} FROM trace_keys
WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES}
"""
_ELSEWHERE = f"""
SELECT DISTINCT trace_id FROM trace_keys
WHERE tenant_id = {{tenant_id:UUID}} AND {BY_TRACES} AND session_id != {{session_id:UUID}}
"""
# The index only gives candidates, since it has single rows and values that a PATCH replaced. The whole run is checked.
_WITH_METADATA = """
SELECT DISTINCT trace_id FROM trace_runs
WHERE tenant_id = {tenant_id:UUID} AND (session_id, start_time, id) IN (
    SELECT session_id, start_time, id FROM trace_run_rows
    WHERE tenant_id = {tenant_id:UUID} AND {candidates})
AND isNotNull(trace_id) AND arrayExists(pair -> if(JSONType(ifNull(metadata_json, ''), pair.1) = 'String',
    JSONExtractString(ifNull(metadata_json, ''), pair.1), JSONExtractRaw(ifNull(metadata_json, ''), pair.1)) = pair.2,
    {pairs:Array(Tuple(String, String))})
LIMIT {most:UInt32}
"""

# A removal touches every file of its table, so a removal for many orders costs hardly more than for one.
_TRACES = """(tenant_id, UUIDToNum(trace_id)) IN (
            SELECT pair.1, UUIDToNum(pair.2) FROM (SELECT arrayJoin({pairs:Array(Tuple(UUID, UUID))}) AS pair))"""
# The order matters: `trace_keys` goes last, since after a crash it is needed to find the remaining rows.
_ERASE_TRACES = {
    "feedback_rows": f"""
        DELETE FROM feedback_rows WHERE (tenant_id, ifNull(trace_id, {{nothing:UUID}})) IN {{pairs:Array(Tuple(UUID, UUID))}}
        OR (tenant_id, ifNull(run_id, {{nothing:UUID}})) IN (SELECT tenant_id, id FROM trace_keys WHERE {_TRACES})""",
    "trace_run_rows": f"""
        DELETE FROM trace_run_rows WHERE (tenant_id, session_id, start_time, id) IN (
            SELECT tenant_id, session_id, start_time, id FROM trace_keys WHERE {_TRACES})""",
    "trace_run_keys": f"""
        DELETE FROM trace_run_keys WHERE (tenant_id, id, session_id, start_time) IN (
            SELECT tenant_id, id, session_id, start_time FROM trace_keys WHERE {_TRACES})""",
    "trace_keys": f"DELETE FROM trace_keys WHERE {_TRACES}",
}
_TABLES = tuple(_ERASE_TRACES)
_IN_PROJECTS = "(tenant_id, session_id) IN {pairs:Array(Tuple(UUID, UUID))}"
_BEFORE = f"{_IN_PROJECTS} AND start_time < {{before:DateTime64(6, 'UTC')}}"

_WITH_ATTACHMENTS = f"""
SELECT DISTINCT tenant_id, assumeNotNull(trace_id) FROM trace_run_keys
WHERE isNotNull(trace_id) AND (tenant_id, id) IN (
    SELECT tenant_id, id FROM trace_run_rows
    WHERE {_BEFORE} AND (isNotNull(attachments) OR isNotNull(patched_attachments)))
"""
_WITH_RUNS_BEFORE = f"SELECT DISTINCT tenant_id, session_id FROM trace_run_rows WHERE {_BEFORE}"
# A removal runs in the background and is polled until it is done, since in a large table it may take longer than a
# request may. Repeating it before its end would only queue it again.
_IN_BACKGROUND = " SETTINGS lightweight_deletes_sync = 0"
_UNFINISHED = """
SELECT count() FROM system.mutations
WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done AND command NOT LIKE '%APPLY DELETED MASK%'
"""
_ASK_AGAIN_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_PATIENCE_S = 1800.0
# Deleted rows stay in their files, hidden, until the files are rewritten.
_MASKED = """
SELECT DISTINCT table, partition_id FROM system.parts
WHERE active AND database = currentDatabase() AND has_lightweight_delete AND table IN {tables:Array(String)}
ORDER BY table, partition_id
"""
# Only the files of one month are rewritten at a time. This bounds the memory, and the time that a removal waits for it.
_CLEAN = "ALTER TABLE {table} APPLY DELETED MASK IN PARTITION ID '{partition}' SETTINGS mutations_sync = 0"
_CLEANING = """
SELECT count() > 0 FROM system.mutations
WHERE database = currentDatabase() AND NOT is_done AND command LIKE '%APPLY DELETED MASK%'
"""
# The engine retries a failing rewrite for ever, and later mutations wait for it.
_STOP_FAILING = """
KILL MUTATION WHERE database = currentDatabase() AND command LIKE '%APPLY DELETED MASK%' AND NOT is_done
    AND latest_fail_reason != ''
"""

_NOTHING = UUID(int=0)
# A workspace id, with the id of a trace or a project in it.
Pair = tuple[UUID, UUID]


class Files(NamedTuple):
    """Files of one month of a table."""

    table: str
    partition: str


class TombstoneStore:
    """Tombstones and the removal of deleted rows. All operations may be repeated."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def bury(self, workspace_id: UUID, ids: Collection[UUID]) -> None:
        """Write tombstones of traces or projects: from now on, ingest drops their data."""
        columns: Columns = {
            "tenant_id": ("UUID", [workspace_id] * len(ids)),
            "id": ("UUID", list(ids)),
            "deleted_at": ("DateTime64(6, 'UTC')", [datetime.now(UTC)] * len(ids)),
        }
        await self._clickhouse.insert("deleted_runs", columns)

    async def bury_and_hide(self, workspace_id: UUID, trace_ids: Collection[UUID]) -> None:
        """Write tombstones of traces, and hide the stored runs from readers, effective when this returns."""
        await self.bury(workspace_id, trace_ids)
        values = {"tenant_id": workspace_id, "trace_nums": nums_of(trace_ids), "at": datetime.now(UTC)}
        # A trace may span more months than the engine's default allows for one insert.
        await self._clickhouse.command(_HIDE, values, {"max_partitions_per_insert_block": 0})

    async def elsewhere(self, workspace_id: UUID, trace_ids: Collection[UUID], session_id: UUID) -> set[UUID]:
        """Find the traces that have runs in another project."""
        values = {"tenant_id": workspace_id, "trace_nums": nums_of(trace_ids), "session_id": session_id}
        return {row[0] for row in await self._clickhouse.rows(_ELSEWHERE, values)}

    async def with_metadata(self, workspace_id: UUID, metadata: Mapping[str, str]) -> list[UUID]:
        """Find up to TRACES_MAX traces with a run that has any of the pairs."""
        named = {f"p{number}": f"{key}={value}" for number, (key, value) in enumerate(metadata.items())}
        sql = _WITH_METADATA.replace("{candidates}", has_any(f"{{{name}:String}}" for name in named))
        values = {**named, "tenant_id": workspace_id, "pairs": list(metadata.items()), "most": TRACES_MAX}
        return [row[0] for row in await self._clickhouse.rows(sql, values)]

    async def erase_traces(self, traces: Collection[Pair]) -> None:
        """Remove traces with all of their runs and feedback."""
        for table, statement in _ERASE_TRACES.items():
            await self._erase(table, statement, {"pairs": list(traces), "nothing": _NOTHING})

    async def erase_projects(self, projects: Collection[Pair]) -> None:
        """Remove all runs and feedback of the projects."""
        for table in _TABLES:
            await self._erase(table, f"DELETE FROM {table} WHERE {_IN_PROJECTS}", {"pairs": list(projects)})

    async def erase_before(self, expired: Mapping[datetime, Collection[Pair]]) -> None:
        """Remove runs that began before a time, by time and projects, and feedback on them."""
        conditions, values = list[str](), dict[str, Any]()
        for number, (before, projects) in enumerate(expired.items()):
            values |= {f"pairs{number}": list(projects), f"before{number}": before}
            conditions.append(_BEFORE.replace("{pairs:", f"{{pairs{number}:").replace("{before:", f"{{before{number}:"))
        for table in _TABLES:
            await self._erase(table, f"DELETE FROM {table} WHERE {' OR '.join(conditions)}", values)

    async def _erase(self, table: str, statement: str, values: Mapping[str, Any]) -> None:
        """Delete rows and wait for the end. Raises UnavailableError if the engine takes longer than _PATIENCE_S."""
        await self._clickhouse.command(statement + _IN_BACKGROUND, values)
        waits, waited_s = iter(_ASK_AGAIN_S), 0.0
        while await self._clickhouse.value(_UNFINISHED, {"table": table}):
            if waited_s > _PATIENCE_S:
                raise UnavailableError(f"The trace store is not through with a removal from {table}; it goes on")
            wait_s = next(waits, _ASK_AGAIN_S[-1])
            await asyncio.sleep(wait_s)
            waited_s += wait_s

    async def with_runs_before(self, projects: Collection[Pair], before: datetime) -> list[Pair]:
        """Find the projects that have runs from before that time."""
        return await self._clickhouse.rows(_WITH_RUNS_BEFORE, {"pairs": list(projects), "before": before})

    async def with_attachments(self, projects: Collection[Pair], before: datetime = NEVER) -> list[Pair]:
        """Find the projects' traces with a run that has attachments and began before that time."""
        return await self._clickhouse.rows(_WITH_ATTACHMENTS, {"pairs": list(projects), "before": before})

    async def masked(self) -> list[Files]:
        """List files that still contain erased rows."""
        return [Files(*row) for row in await self._clickhouse.rows(_MASKED, {"tables": list(_TABLES)})]

    async def is_cleaning(self) -> bool:
        return bool(await self._clickhouse.value(_CLEANING))

    async def clean(self, files: Files) -> None:
        """Start rewriting the files in the background, which frees their space."""
        # Both names come from the engine, not from callers.
        await self._clickhouse.command(_CLEAN.format(table=files.table, partition=files.partition))

    async def stop_failing_cleaning(self) -> None:
        """Stop rewrites that fail, since removals wait for them. They are tried again later."""
        await self._clickhouse.command(_STOP_FAILING)


# --- retention ----------------------------------------------------------------------------------------------------

# There are no organizations: the workspace's id stands for one.
_SETTINGS = """workspace_id AS tenant_id, workspace_id AS organization_id, id, default_trace_tier, longlived_ttl_days,
    shortlived_ttl_days, false AS apply_to_all_projects, 'user' AS configured_by, created_at, updated_at"""
_READ = f"SELECT {_SETTINGS} FROM retention_settings WHERE workspace_id = %s"
# Days that are not named stay as they are.
_WRITE = f"""
INSERT INTO retention_settings AS s
    (id, workspace_id, default_trace_tier, longlived_ttl_days, shortlived_ttl_days, actor)
VALUES (%(id)s, %(workspace_id)s, %(default_trace_tier)s, %(longlived_ttl_days)s,
    coalesce(%(shortlived_ttl_days)s, {SHORTLIVED_DAYS}), %(actor)s)
ON CONFLICT (workspace_id) DO UPDATE SET default_trace_tier = excluded.default_trace_tier,
    longlived_ttl_days = CASE WHEN %(names_longlived)s THEN excluded.longlived_ttl_days ELSE s.longlived_ttl_days END,
    shortlived_ttl_days = coalesce(%(shortlived_ttl_days)s, s.shortlived_ttl_days),
    updated_at = now(), actor = excluded.actor
RETURNING {_SETTINGS}
"""
_APPLY_TO_ALL = """
UPDATE projects SET trace_tier = NULL, longlived_ttl_days = NULL, updated_at = now(), actor = %s
WHERE workspace_id = %s AND (trace_tier IS NOT NULL OR longlived_ttl_days IS NOT NULL)
"""
# Projects whose runs expire, and after how many days.
_LIFETIMES = f"""
SELECT project_id, workspace_id, days FROM (
    SELECT p.id AS project_id, p.workspace_id, CASE coalesce(p.trace_tier, s.default_trace_tier, 'longlived')
        WHEN 'shortlived' THEN coalesce(s.shortlived_ttl_days, {SHORTLIVED_DAYS})
        ELSE nullif(coalesce(p.longlived_ttl_days, s.longlived_ttl_days), 0) END AS days
    FROM projects p LEFT JOIN retention_settings s USING (workspace_id)
) AS lifetimes WHERE days IS NOT NULL ORDER BY days, workspace_id, project_id
"""


class Lifetime(NamedTuple):
    project_id: UUID
    workspace_id: UUID
    days: int


class RetentionStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def read(self, workspace_id: UUID) -> TtlSettings | None:
        return await self._postgres.fetch_one(_READ, (workspace_id,))  # type: ignore[return-value]

    async def write(self, workspace_id: UUID, wanted: TtlSettingsWrite, actor: str) -> TtlSettings:
        """Write the workspace's settings; `apply_to_all_projects` removes the projects' own settings."""
        names_longlived = "longlived_ttl_days" in wanted.model_fields_set
        values = {"id": uuid7(), "workspace_id": workspace_id, "names_longlived": names_longlived, "actor": actor}
        async with self._postgres.connection() as connection, connection.transaction():
            row = await (await connection.execute(_WRITE, {**wanted.model_dump(), **values})).fetchone()
            if wanted.apply_to_all_projects:
                await connection.execute(_APPLY_TO_ALL, (actor, workspace_id))
        return {**(row or {}), "apply_to_all_projects": wanted.apply_to_all_projects}  # type: ignore[typeddict-item]

    async def lifetimes(self) -> list[Lifetime]:
        """List how long the projects of all workspaces keep runs, ordered by days; without those that keep for ever."""
        return [Lifetime(**row) for row in await self._postgres.fetch(_LIFETIMES)]
