"""SQL of export runs: rows with leases, whose checkpoint is the list of written and verified files.

Every write of a holder checks its attempt, and nothing is written to a run that has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.exports.records.exports import Compression, FormatVersion
from moorage.exports.records.runs import ExportCursor, ExportLocation, PendingPart, Window, WrittenFile
from moorage.exports.store.exports import FAIL, LOCK, failing
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

_COLUMNS = """
    id, export_id, session_id, start_at, end_at, status, retry_number, errors, latest_cursor, rows_written,
    bytes_written, files, pending, created_at, updated_at, finished_at
"""
_READ_ALL = f"""
SELECT {_COLUMNS} FROM export_runs WHERE workspace_id = %(workspace_id)s AND export_id = %(export_id)s
ORDER BY start_at, session_id
"""
_READ = f"SELECT {_COLUMNS} FROM export_runs WHERE workspace_id = %s AND export_id = %s AND id = %s"
_READ_OF_SCHEDULE = f"""
SELECT {_COLUMNS} FROM export_runs
WHERE workspace_id = %(workspace_id)s AND export_id IN (
    SELECT id FROM exports WHERE workspace_id = %(workspace_id)s AND source_export_id = %(source_export_id)s
)
ORDER BY start_at, session_id, export_id LIMIT %(limit)s OFFSET %(offset)s
"""
# Selects the runs to work on next. The limits always hold, because claims run one after the other (the lock before this
# statement):
# - exports of a workspace: those that have begun, then others up to the workspace's limit, oldest first;
# - runs of an export: up to the export's limit, earliest day first;
# - among these, first the runs whose workspace has the fewest runs at work, then those whose export has.
_CLAIM = f"""
WITH at_work AS (
    SELECT workspace_id, export_id, count(*) AS n FROM export_runs WHERE worker IS NOT NULL GROUP BY 1, 2
), admitted AS (
    SELECT id, workspace_id FROM (
        SELECT id, workspace_id, status,
            count(*) FILTER (WHERE status = 'Running') OVER (PARTITION BY workspace_id) AS running,
            row_number() OVER (PARTITION BY workspace_id, status ORDER BY id) AS turn
        FROM exports WHERE status IN ('Created', 'Running')
    ) e WHERE status = 'Running' OR running + turn <= %(exports_max)s
), offered AS (
    SELECT r.id, a.id AS export_id, a.workspace_id, coalesce(w.n, 0) + r.turn AS turn
    FROM admitted a
    LEFT JOIN at_work w ON w.export_id = a.id
    CROSS JOIN LATERAL (
        SELECT id, row_number() OVER (ORDER BY start_at, id) AS turn FROM export_runs
        WHERE export_id = a.id AND worker IS NULL AND status IN ('Created', 'Running')
            AND (not_before <= now() OR updated_at > now() + interval '1 minute')
        ORDER BY start_at, id LIMIT least(%(slots)s, greatest(0, %(runs_max)s - coalesce(w.n, 0)))
    ) r
), picked AS MATERIALIZED (
    SELECT o.id, o.export_id FROM offered o
    ORDER BY row_number() OVER (PARTITION BY o.workspace_id ORDER BY o.turn, o.export_id)
        + coalesce((SELECT sum(n) FROM at_work w WHERE w.workspace_id = o.workspace_id), 0), o.turn, o.id
    LIMIT %(slots)s
), begun AS (
    UPDATE exports e SET status = 'Running', cutoff_at = now(), updated_at = now(),
        deadline_at = now() + %(export_timeout_s)s * interval '1 second'
    FROM (SELECT DISTINCT export_id FROM picked) p WHERE e.id = p.export_id AND e.status = 'Created'
    RETURNING e.id, e.cutoff_at
), claimed AS (
    UPDATE export_runs r SET status = 'Running', worker = %(worker)s, attempt = attempt + 1, updated_at = now(),
        lease_until = now() + %(lease_s)s * interval '1 second'
    FROM picked WHERE r.id = picked.id AND r.worker IS NULL AND r.status IN ('Created', 'Running')
    RETURNING r.*
)
SELECT {", ".join(f"c.{name.strip()}" for name in _COLUMNS.split(","))}, c.worker, c.attempt, c.workspace_id,
    e.destination_id, e.bucket, e.root, e.filter, e.format_version, e.compression, e.export_fields,
    coalesce(e.cutoff_at, begun.cutoff_at) AS cutoff_at
FROM claimed c JOIN exports e ON e.id = c.export_id LEFT JOIN begun ON begun.id = c.export_id
"""
# A crash uses up no retry: the run goes on from its checkpoint until the deadline of its export. A row with updated_at
# in the future was written before the clock was set back, so its lease and its delay are ignored.
_REAP = """
UPDATE export_runs SET worker = NULL, lease_until = NULL, updated_at = now()
WHERE worker IS NOT NULL AND (lease_until < now() OR updated_at > now() + interval '1 minute')
"""
_MINE = f"{MINE} AND status = 'Running'"
_SET_PENDING = f"""
UPDATE export_runs SET pending = %(pending)s, updated_at = now() WHERE {_MINE}
RETURNING EXISTS (SELECT FROM export_destinations d WHERE d.id = %(destination_id)s) AS has_destination
"""
_ADVANCE = f"""
UPDATE export_runs SET files = files || %(file)s, latest_cursor = %(cursor)s, pending = NULL, updated_at = now(),
    rows_written = rows_written + %(rows)s, bytes_written = bytes_written + %(bytes)s
WHERE {_MINE}
RETURNING id
"""
_COMPLETE = f"""
UPDATE export_runs SET status = 'Completed', worker = NULL, lease_until = NULL, finished_at = now(), updated_at = now()
WHERE {_MINE}
RETURNING id
"""
_POSTPONE = f"""
UPDATE export_runs SET worker = NULL, lease_until = NULL, updated_at = now(),
    not_before = now() + %(delay_s)s * interval '1 second'
WHERE {_MINE}
"""
_ERRORS = "coalesce(errors, '{}') || jsonb_build_object('retry_' || retry_number, %(error)s::text)"
_RETRY = f"""
UPDATE export_runs SET errors = {_ERRORS}, retry_number = retry_number + 1, worker = NULL, lease_until = NULL,
    not_before = now() + %(delay_s)s * interval '1 second', updated_at = now()
WHERE {_MINE} AND retry_number < %(retries_max)s
RETURNING id
"""
_FAIL = f"""
UPDATE export_runs SET status = 'Failed', errors = {_ERRORS}, worker = NULL, lease_until = NULL, finished_at = now(),
    updated_at = now()
WHERE {_MINE}
RETURNING export_id
"""


@dataclass(frozen=True)
class ExportRunRow:
    """An export run with its checkpoint."""

    id: UUID
    export_id: UUID
    session_id: UUID
    window: Window
    status: str
    retry_number: int
    errors: dict[str, str] | None
    cursor: ExportCursor | None
    rows_written: int
    bytes_written: int
    files: list[WrittenFile]
    pending: PendingPart | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class LeasedExportRun:
    """An export run that this process holds, with what it needs to write it."""

    lease: Lease
    run: ExportRunRow
    workspace_id: UUID
    destination_id: UUID
    place: ExportLocation
    filter: str | None
    format_version: FormatVersion
    compression: Compression
    export_fields: list[str] | None
    cutoff_at: datetime


@dataclass(frozen=True)
class ClaimLimits:
    """Limits on concurrent work, which hold for all workers together; and the time limit of an export."""

    runs_of_export_max: int
    exports_of_workspace_max: int
    export_timeout_s: float


class ExportRunStore(LeaseStore):
    BEAT = f"UPDATE export_runs SET lease_until = now() + %(lease_s)s * interval '1 second' {HELD} AND status = 'Running' RETURNING id"
    HAND_BACK = (
        f"UPDATE export_runs SET worker = NULL, lease_until = NULL, updated_at = now() {HELD} AND status = 'Running'"
    )

    async def read_all(self, workspace_id: UUID, export_id: UUID) -> list[ExportRunRow]:
        """Read all runs of an export, earliest day first."""
        values = {"workspace_id": workspace_id, "export_id": export_id}
        return [_stored(row) for row in await self._postgres.fetch(_READ_ALL, values)]

    async def read(self, workspace_id: UUID, export_id: UUID, run_id: UUID) -> ExportRunRow | None:
        row = await self._postgres.fetch_one(_READ, (workspace_id, export_id, run_id))
        return _stored(row) if row else None

    async def page_of_schedule(
        self, workspace_id: UUID, source_export_id: UUID, *, limit: int, offset: int
    ) -> list[ExportRunRow]:
        values = {"workspace_id": workspace_id, "source_export_id": source_export_id, "limit": limit, "offset": offset}
        return [_stored(row) for row in await self._postgres.fetch(_READ_OF_SCHEDULE, values)]

    async def claim(self, worker: str, slots: int, lease_s: float, limits: ClaimLimits) -> list[LeasedExportRun]:
        values = {
            "worker": worker,
            "slots": slots,
            "lease_s": lease_s,
            "runs_max": limits.runs_of_export_max,
            "exports_max": limits.exports_of_workspace_max,
            "export_timeout_s": limits.export_timeout_s,
        }
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(LOCK)
            cursor = await connection.execute(_CLAIM, values, binary=True)
            return [_leased(row) for row in await cursor.fetchall()]

    async def postpone(self, lease: Lease, delay_s: float) -> None:
        """Release the run for a while without using up an attempt."""
        await self._postgres.execute(_POSTPONE, {**proof_of(lease), "delay_s": delay_s})

    async def reap(self) -> int:
        return await self._postgres.execute(_REAP)

    async def set_pending(self, lease: Lease, pending: PendingPart, destination_id: UUID) -> bool | None:
        """Record the part to upload. Returns whether the destination still exists; None when the lease was lost."""
        values = {**proof_of(lease), "pending": Jsonb(pending), "destination_id": destination_id}
        row = await self._postgres.fetch_one(_SET_PENDING, values)
        return None if row is None else bool(row["has_destination"])

    async def advance(self, lease: Lease, file: WrittenFile, cursor: ExportCursor) -> bool:
        """Record an uploaded and verified part, and move the cursor behind it. False when the lease was lost."""
        values = {"file": Jsonb([file]), "cursor": str(cursor), "rows": file["rows"], "bytes": file["bytes"]}
        return await self._postgres.fetch_one(_ADVANCE, {**proof_of(lease), **values}) is not None

    async def complete(self, lease: Lease) -> bool:
        """Complete the run. False when the lease was lost."""
        return await self._postgres.fetch_one(_COMPLETE, proof_of(lease)) is not None

    async def retry(self, lease: Lease, error: str, *, delay_s: float, retries_max: int) -> bool:
        """Record the error and wait for the next attempt. False if no attempt is left, or the lease was lost."""
        values = {**proof_of(lease), "error": error, "delay_s": delay_s, "retries_max": retries_max}
        return await self._postgres.fetch_one(_RETRY, values) is not None

    async def fail(self, lease: Lease, error: str) -> bool:
        """Fail the run, and with it the whole export. False when the lease was lost."""
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(LOCK)
            row = await (await connection.execute(_FAIL, {**proof_of(lease), "error": error})).fetchone()
            if row is not None:
                await connection.execute(FAIL, failing(row["export_id"], f"Run {lease.key} failed: {error}"))
        return row is not None


def _stored(row: DictRow) -> ExportRunRow:
    return ExportRunRow(
        id=row["id"],
        export_id=row["export_id"],
        session_id=row["session_id"],
        window=Window(row["start_at"], row["end_at"]),
        status=row["status"],
        retry_number=row["retry_number"],
        errors=row["errors"],
        cursor=ExportCursor.parse(row["latest_cursor"]) if row["latest_cursor"] else None,
        rows_written=row["rows_written"],
        bytes_written=row["bytes_written"],
        files=row["files"],
        pending=row["pending"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
    )


def _leased(row: DictRow) -> LeasedExportRun:
    return LeasedExportRun(
        lease=Lease(row["id"], row["worker"], row["attempt"]),
        run=_stored(row),
        workspace_id=row["workspace_id"],
        destination_id=row["destination_id"],
        place=ExportLocation(row["bucket"], row["root"]),
        filter=row["filter"],
        format_version=FormatVersion(row["format_version"]),
        compression=Compression(row["compression"]),
        export_fields=row["export_fields"],
        cutoff_at=row["cutoff_at"],
    )
