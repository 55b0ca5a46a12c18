"""SQL of exports: create and end them with their runs, spawn them from schedules, finish them and call their webhooks.

A statement that changes the state of a whole export, or claims its first run, holds one advisory lock. Such statements
are rare. The lock keeps limits exact and prevents deadlocks among them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from moorage.exports.records.exports import Compression, Export, ExportStatus, FormatVersion, origins_of, warnings_of
from moorage.exports.records.runs import ExportLocation, ExportRunStatus, Partition, Window
from moorage.exports.records.runs import origins_of as run_origins_of
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

# Any fixed number that nothing else in the database uses.
LOCK = "SELECT pg_advisory_xact_lock(7209663)"

_PUBLIC = """
    id, workspace_id AS tenant_id, destination_id AS bulk_export_destination_id, session_id,
    session_id IS NULL AS all_experiments, start_at AS start_time, end_at AS end_time, filter, 'Parquet' AS format,
    format_version, compression, interval_hours, export_fields, status, source_export_id AS source_bulk_export_id,
    created_at, updated_at, finished_at, cutoff_at, changed_since, error, manifest, webhook_url
"""
# Inserts the export with its runs, or neither. Returns no row if the window of the schedule already has an export.
_INSERT = f"""
WITH made AS (
    INSERT INTO exports (
        id, workspace_id, destination_id, bucket, root, session_id, start_at, end_at, filter, format_version, compression,
        export_fields, changed_since, interval_hours, next_start_at, source_export_id, webhook_url, webhook_secret,
        status, actor
    ) VALUES (
        %(id)s, %(workspace_id)s, %(destination_id)s, %(bucket)s, %(root)s, %(session_id)s, %(start_at)s, %(end_at)s, %(filter)s,
        %(format_version)s, %(compression)s, %(export_fields)s, %(changed_since)s, %(interval_hours)s,
        CASE WHEN %(interval_hours)s::int IS NOT NULL THEN %(start_at)s::timestamptz END, %(source_export_id)s,
        %(webhook_url)s, %(webhook_secret)s,
        CASE WHEN %(interval_hours)s::int IS NULL THEN 'Created' ELSE 'IntervalScheduled' END, %(actor)s
    )
    ON CONFLICT (source_export_id, start_at) WHERE source_export_id IS NOT NULL DO NOTHING
    RETURNING *
), runs AS (
    INSERT INTO export_runs (id, export_id, workspace_id, session_id, start_at, end_at)
    SELECT p.id, made.id, made.workspace_id, p.session_id, p.start_at, p.end_at
    FROM made, unnest(%(run_ids)s::uuid[], %(run_sessions)s::uuid[], %(run_starts)s::timestamptz[],
        %(run_ends)s::timestamptz[]) AS p (id, session_id, start_at, end_at)
)
SELECT {_PUBLIC} FROM made
"""
# Newest first: people mostly look for the export that they have just created.
_PAGE = f"""
SELECT {_PUBLIC} FROM exports WHERE workspace_id = %(workspace_id)s
ORDER BY created_at DESC, id DESC LIMIT %(limit)s OFFSET %(offset)s
"""
_READ = f"SELECT {_PUBLIC} FROM exports WHERE workspace_id = %s AND id = %s"
_READ_PLACE = "SELECT bucket, root FROM exports WHERE workspace_id = %s AND id = %s"
_UNFINISHED_RUN = run_origins_of(ExportRunStatus.CANCELLED)
# Ends an export that does not complete. Its unfinished runs end with it, even if a worker holds them.
_END = f"""
WITH ended AS (
    UPDATE exports SET status = %(status)s, error = %(error)s, finished_at = now(), updated_at = now(),
        worker = NULL, lease_until = NULL, not_before = now(),
        webhook_status = CASE WHEN webhook_url IS NOT NULL THEN 'pending' END
    WHERE {{which}}
    RETURNING *
), stopped AS (
    UPDATE export_runs r SET status = %(run_status)s, worker = NULL, lease_until = NULL, finished_at = now(),
        updated_at = now()
    FROM ended WHERE r.export_id = ended.id AND r.status IN ({_UNFINISHED_RUN})
)
SELECT {_PUBLIC} FROM ended
"""
_CANCEL = _END.format(
    which=f"workspace_id = %(workspace_id)s AND id = %(id)s AND status IN ({origins_of(ExportStatus.CANCELLED)})"
)
FAIL = _END.format(which=f"id = %(id)s AND status IN ({origins_of(ExportStatus.FAILED)})")
_TIME_OUT = _END.format(which=f"status IN ({origins_of(ExportStatus.TIMED_OUT)}) AND deadline_at < now()")

_SCHEDULES_DUE = """
SELECT id, workspace_id, destination_id, bucket, root, session_id, filter, format_version, compression, export_fields, webhook_url,
    webhook_secret, actor, interval_hours, next_start_at
FROM exports
WHERE status = 'IntervalScheduled' AND next_start_at + make_interval(hours => interval_hours) + %(delay)s <= %(now)s
ORDER BY next_start_at LIMIT %(most)s
FOR UPDATE SKIP LOCKED
"""
_ADVANCE_SCHEDULE = """
UPDATE exports SET next_start_at = %(next_start_at)s, updated_at = now()
WHERE id = %(id)s AND status = 'IntervalScheduled'
"""

# Claims exports that need their manifest, since all runs are complete, or a call of their webhook.
_CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM exports e
    WHERE worker IS NULL AND not_before <= now() AND (
        webhook_status = 'pending'
        OR (status = 'Running' AND NOT EXISTS (
            SELECT FROM export_runs r WHERE r.export_id = e.id AND r.status <> 'Completed'))
        OR (status = 'Created' AND NOT EXISTS (SELECT FROM export_runs r WHERE r.export_id = e.id))
    )
    ORDER BY not_before FOR UPDATE SKIP LOCKED LIMIT %(slots)s
), claimed AS (
    UPDATE exports e SET worker = %(worker)s, attempt = attempt + 1,
        status = CASE WHEN status = 'Created' THEN 'Running' ELSE status END,
        cutoff_at = coalesce(cutoff_at, now()),
        lease_until = now() + %(lease_s)s * interval '1 second'
    FROM picked WHERE e.id = picked.id AND e.worker IS NULL
    RETURNING e.*
)
SELECT {_PUBLIC}, worker, attempt, retry_number, webhook_secret, webhook_attempts, bucket, root FROM claimed
"""
_REAP = "UPDATE exports SET worker = NULL, lease_until = NULL WHERE worker IS NOT NULL AND lease_until < now()"
_COMPLETE = f"""
UPDATE exports SET status = 'Completed', manifest = %(manifest)s, finished_at = now(), updated_at = now(),
    worker = NULL, lease_until = NULL, webhook_status = CASE WHEN webhook_url IS NOT NULL THEN 'pending' END
WHERE {MINE} AND status IN ({origins_of(ExportStatus.COMPLETED)})
RETURNING id
"""
_RETRY = f"""
UPDATE exports SET retry_number = retry_number + 1, error = %(error)s, updated_at = now(), worker = NULL,
    lease_until = NULL, not_before = now() + %(delay_s)s * interval '1 second'
WHERE {MINE}
"""
_MOVE_WEBHOOK = f"""
UPDATE exports SET webhook_status = %(webhook_status)s, webhook_attempts = webhook_attempts + 1, worker = NULL,
    lease_until = NULL, not_before = now() + %(delay_s)s * interval '1 second'
WHERE {MINE}
"""


@dataclass(frozen=True)
class NewExport:
    """Values of a new export, or of a schedule when it has an interval."""

    id: UUID
    workspace_id: UUID
    destination_id: UUID
    place: ExportLocation
    session_id: UUID | None
    window: Window | None
    start_at: datetime
    filter: str | None
    format_version: FormatVersion
    compression: Compression
    export_fields: list[str] | None
    changed_since: datetime | None
    interval_hours: int | None
    webhook_url: str | None
    webhook_secret: bytes | None
    actor: str
    source_export_id: UUID | None = None
    partitions: Sequence[Partition] = ()


@dataclass(frozen=True)
class DueSchedule:
    """A schedule with a window that has passed, locked until the transaction ends."""

    model: NewExport
    interval_hours: int
    next_start_at: datetime


@dataclass(frozen=True)
class LeasedExport:
    """Export that this process holds, to finish it or to call its webhook."""

    lease: Lease
    export: Export
    place: ExportLocation
    retry_number: int
    webhook_secret: bytes | None
    webhook_attempts: int


class ExportStore(LeaseStore):
    BEAT = f"UPDATE exports SET lease_until = now() + %(lease_s)s * interval '1 second' {HELD} RETURNING id"
    HAND_BACK = f"UPDATE exports SET worker = NULL, lease_until = NULL {HELD}"

    async def insert(self, new: NewExport) -> Export:
        row = await self._postgres.fetch_one(_INSERT, _values(new))
        assert row is not None
        return _public(row)

    async def page(self, workspace_id: UUID, *, limit: int, offset: int) -> list[Export]:
        values = {"workspace_id": workspace_id, "limit": limit, "offset": offset}
        return [_public(row) for row in await self._postgres.fetch(_PAGE, values)]

    async def read(self, workspace_id: UUID, export_id: UUID) -> Export | None:
        row = await self._postgres.fetch_one(_READ, (workspace_id, export_id))
        return _public(row) if row else None

    async def read_place(self, workspace_id: UUID, export_id: UUID) -> ExportLocation | None:
        row = await self._postgres.fetch_one(_READ_PLACE, (workspace_id, export_id))
        return ExportLocation(**row) if row else None

    async def cancel(self, workspace_id: UUID, export_id: UUID) -> Export | None:
        """Cancel an export; None if it does not exist or has ended."""
        values = {"workspace_id": workspace_id, "id": export_id, **_endings(ExportStatus.CANCELLED, None)}
        async with self._alone() as connection:
            row = await (await connection.execute(_CANCEL, values)).fetchone()
        return _public(row) if row else None

    async def time_out(self) -> int:
        """End exports whose deadline has passed; returns how many."""
        error = "The export took longer than an export may take in all"
        async with self._alone() as connection:
            return (await connection.execute(_TIME_OUT, _endings(ExportStatus.TIMED_OUT, error))).rowcount

    # --- schedules ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def schedules_due(
        self, now: datetime, delay: Any, most: int
    ) -> AsyncIterator[tuple[Spawning, list[DueSchedule]]]:
        """Yield schedules with a window that has passed, and a `Spawning` for them. The context is one transaction."""
        async with self._postgres.connection() as connection, connection.transaction():
            cursor = await connection.execute(_SCHEDULES_DUE, {"now": now, "delay": delay, "most": most}, binary=True)
            yield Spawning(connection), [_due(row) for row in await cursor.fetchall()]

    # --- finishing and telling ----------------------------------------------------------------------------------------

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedExport]:
        values = {"worker": worker, "slots": slots, "lease_s": lease_s}
        return [_leased(row) for row in await self._postgres.fetch(_CLAIM, values)]

    async def reap(self) -> int:
        return await self._postgres.execute(_REAP)

    async def complete(self, lease: Lease, manifest: str) -> bool:
        """Complete an export. False when the lease was lost."""
        return await self._postgres.fetch_one(_COMPLETE, {**proof_of(lease), "manifest": manifest}) is not None

    async def retry(self, lease: Lease, error: str, delay_s: float) -> None:
        await self._postgres.execute(_RETRY, {**proof_of(lease), "error": error, "delay_s": delay_s})

    async def fail(self, lease: Lease, error: str) -> None:
        async with self._alone() as connection:
            await connection.execute(FAIL, {"id": lease.key, **_endings(ExportStatus.FAILED, error)})

    async def move_webhook(self, lease: Lease, webhook_status: str, delay_s: float = 0) -> None:
        values = {**proof_of(lease), "webhook_status": webhook_status, "delay_s": delay_s}
        await self._postgres.execute(_MOVE_WEBHOOK, values)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(LOCK)
            yield connection


class Spawning:
    """Creation of exports within the transaction that locks their schedule."""

    def __init__(self, connection: AsyncConnection[DictRow]) -> None:
        self._connection = connection

    async def spawn(
        self,
        schedule: DueSchedule,
        window: Window,
        export_id: UUID,
        partitions: Sequence[Partition],
        webhook_secret: bytes | None,
    ) -> bool:
        """Create the export of a window. False if the window already has one."""
        new = replace(
            schedule.model,
            id=export_id,
            window=window,
            start_at=window.start_at,
            source_export_id=schedule.model.id,
            partitions=partitions,
            webhook_secret=webhook_secret,
        )
        return await (await self._connection.execute(_INSERT, _values(new))).fetchone() is not None

    async def advance(self, schedule: DueSchedule, next_start_at: datetime) -> None:
        await self._connection.execute(_ADVANCE_SCHEDULE, {"id": schedule.model.id, "next_start_at": next_start_at})


def _endings(status: ExportStatus, error: str | None) -> dict[str, Any]:
    run_status = ExportRunStatus.TIMED_OUT if status is ExportStatus.TIMED_OUT else ExportRunStatus.CANCELLED
    return {"status": status.value, "run_status": run_status.value, "error": error}


def failing(export_id: UUID, error: str) -> dict[str, Any]:
    """Return the parameters of `FAIL` for an export that failed."""
    return {"id": export_id, **_endings(ExportStatus.FAILED, error)}


def _values(new: NewExport) -> dict[str, Any]:
    return {
        "id": new.id,
        "workspace_id": new.workspace_id,
        "destination_id": new.destination_id,
        "bucket": new.place.bucket,
        "root": new.place.root,
        "session_id": new.session_id,
        "start_at": new.start_at,
        "end_at": new.window.end_at if new.window else None,
        "filter": new.filter,
        "format_version": new.format_version.value,
        "compression": new.compression.value,
        "export_fields": new.export_fields,
        "changed_since": new.changed_since,
        "interval_hours": None if new.window else new.interval_hours,
        "source_export_id": new.source_export_id,
        "webhook_url": new.webhook_url,
        "webhook_secret": new.webhook_secret,
        "actor": new.actor,
        "run_ids": [partition.id for partition in new.partitions],
        "run_sessions": [partition.session_id for partition in new.partitions],
        "run_starts": [partition.window.start_at for partition in new.partitions],
        "run_ends": [partition.window.end_at for partition in new.partitions],
    }


def _public(row: DictRow) -> Export:
    return {
        **row,  # type: ignore[typeddict-item]
        "status": ExportStatus(row["status"]),
        "format_version": FormatVersion(row["format_version"]),
        "compression": Compression(row["compression"]),
        # Before the export starts, its creation time is the earliest possible cutoff.
        "warnings": warnings_of(row["end_time"], row["cutoff_at"] or row["created_at"]),
    }


def _due(row: DictRow) -> DueSchedule:
    model = NewExport(
        id=row["id"],
        workspace_id=row["workspace_id"],
        destination_id=row["destination_id"],
        place=ExportLocation(row["bucket"], row["root"]),
        session_id=row["session_id"],
        window=None,
        start_at=row["next_start_at"],
        filter=row["filter"],
        format_version=FormatVersion(row["format_version"]),
        compression=Compression(row["compression"]),
        export_fields=row["export_fields"],
        changed_since=None,
        interval_hours=row["interval_hours"],
        webhook_url=row["webhook_url"],
        webhook_secret=row["webhook_secret"],
        actor=row["actor"],
    )
    return DueSchedule(model, row["interval_hours"], row["next_start_at"])


def _leased(row: DictRow) -> LeasedExport:
    lease = Lease(row["id"], row.pop("worker"), row.pop("attempt"))
    private = {name: row.pop(name) for name in ("retry_number", "webhook_secret", "webhook_attempts")}
    place = ExportLocation(row.pop("bucket"), row.pop("root"))
    return LeasedExport(lease, _public(row), place, **private)
