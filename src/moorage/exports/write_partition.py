"""The worker's job: write the files of one export run, so that they contain each trace run exactly once.

Each part goes through steps that can be repeated: encode it into a spool file; store its size and checksum (the
intent); upload it under its fixed name; check that the upload is complete; record it, which advances the cursor. After
a crash, the next worker can tell from the intent whether the upload was done. If not, it makes the same file again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO
from uuid import UUID

import structlog

from moorage.exports.destinations import DestinationGoneError, Destinations, OpenDestination, text_of
from moorage.exports.parquet import drop_zones, fingerprint, path_of, spool_file
from moorage.exports.partitions import part_name, partition_folder
from moorage.exports.records.exports import FormatVersion
from moorage.exports.records.runs import ExportCursor, PendingPart, WrittenFile
from moorage.exports.store.runs import ClaimLimits, ExportRunStore, LeasedExportRun
from moorage.kernel.buckets.etags import is_etag, md5_etag
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.errors import BadRequestError, InvalidRequestError, MoorageError, UnavailableError
from moorage.traces.exported_runs import ExportedRuns, ExportPage, ExportSelection, export_condition
from moorage.traces.records.run_catalogue import EXPORT_FIELDS, EXPORT_TIME_FIELDS
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

_STORE_AWAY_S = 5.0
_PART_BYTES_MIN = 2**20
_MEMORY_LIMIT_EXCEEDED = 241  # ClickHouse's error code


@dataclass(frozen=True)
class WriteRules:
    """Limits, time-outs and retries of export runs."""

    limits: ClaimLimits
    run_timeout_s: float
    retries_max: int
    retry_delay_s: float
    part_bytes_max: int  # before compression


@dataclass(frozen=True)
class PartitionQueue:
    """Export runs of the database as rows with leases, and their execution."""

    runs: ExportRunStore
    pages: ExportedRuns
    destinations: Destinations
    rules: WriteRules
    spool: Path
    wake_exports: Callable[[], None]

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedExportRun]:
        return await self.runs.claim(worker, slots, lease_s, self.rules.limits)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        return await self.runs.beat(leases, lease_s)

    async def reap(self) -> int:
        return await self.runs.reap()

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self.runs.hand_back(leases)

    async def execute(self, row: LeasedExportRun) -> bool:
        """Execute the run. Always returns True: it has freed its place, so another run may start."""
        told = log.bind(export_id=str(row.run.export_id), export_run_id=str(row.lease.key), attempt=row.lease.attempt)
        try:
            async with asyncio.timeout(self.rules.run_timeout_s) as deadline:
                await _Attempt(self, row).execute()
        except _LeaseLostError:
            told.info("export run stopped: it ended or was taken over")
        except (BucketError, BadRequestError, InvalidRequestError, DestinationGoneError) as error:
            await self._refused(row, error)
        except UnavailableError as error:
            await self._store_failed(row, error)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                await self._retry(row, "The run took longer than a run may take")
            else:
                told.error("export run failed", exc_info=error)
                await self._retry(row, _shown(error))
        else:
            told.info("export run complete")
        self.wake_exports()
        return True

    async def _refused(self, row: LeasedExportRun, error: MoorageError) -> None:
        """Fail the run at once if only a change by somebody can help; else retry it."""
        if not isinstance(error, BucketError):
            await self._fail(row, str(error))
        elif error.fault.stays:
            await self._fail(row, text_of(error))
        else:
            await self._retry(row, text_of(error))

    async def _store_failed(self, row: LeasedExportRun, error: UnavailableError) -> None:
        """Postpone the run, without using up an attempt, if the engine is away; retry if it reports an error."""
        if _engine_code(error) is None:
            log.warning("export run waits for an engine", export_run_id=str(row.lease.key), error=str(error))
            await self.runs.postpone(row.lease, _STORE_AWAY_S)
        else:
            await self._retry(row, str(error))

    async def _retry(self, row: LeasedExportRun, error: str) -> None:
        rules = self.rules
        log.warning("export run failed, will be tried again", export_run_id=str(row.lease.key), error=error)
        if not await self.runs.retry(row.lease, error, delay_s=rules.retry_delay_s, retries_max=rules.retries_max):
            await self._fail(row, error)

    async def _fail(self, row: LeasedExportRun, error: str) -> None:
        if await self.runs.fail(row.lease, error):
            log.error("export failed", export_id=str(row.run.export_id), export_run_id=str(row.lease.key), error=error)


class _LeaseLostError(Exception):
    """The run has another holder, or has ended: this attempt must stop."""


class _Attempt:
    """Attempt at one run."""

    def __init__(self, queue: PartitionQueue, row: LeasedExportRun) -> None:
        self._queue = queue
        self._row = row
        chosen = row.export_fields or EXPORT_FIELDS
        self._fields = [name for name in EXPORT_FIELDS if name in chosen]  # columns keep the order of EXPORT_FIELDS
        condition = export_condition(row.filter) if row.filter is not None else None
        window = row.run.window
        self._selection = ExportSelection(
            row.workspace_id, row.run.session_id, window.start_at, window.end_at, row.cutoff_at, condition
        )
        self._folder = partition_folder(
            row.place,
            row.format_version,
            export_id=row.run.export_id,
            tenant_id=row.workspace_id,
            session_id=row.run.session_id,
            day=row.run.window.start_at,
        )

    async def execute(self) -> None:
        row, queue = self._row, self._queue
        destination = await queue.destinations.open(row.workspace_id, row.destination_id)
        cursor, number = row.run.cursor, len(row.run.files)
        if row.run.pending is not None:
            cursor = await self._take_up(row.run.pending, destination)
            number += 1
        while page := await self._next_page(cursor, queue.rules.part_bytes_max):
            key = self._folder + part_name(number, row.lease.key)
            page = await self._write_part_in_memory(page, key, destination)
            if page.is_last:
                break
            cursor, number = ExportCursor(*page.last), number + 1
        if not await queue.runs.complete(row.lease):
            raise _LeaseLostError

    async def _next_page(self, cursor: tuple[datetime, UUID] | None, bytes_max: int) -> ExportPage | None:
        return await self._queue.pages.next_page(self._selection, cursor, self._fields, bytes_max)

    async def _write_part_in_memory(self, page: ExportPage, key: str, destination: OpenDestination) -> ExportPage:
        """Write a part; returns the written page, which is smaller if the engine lacks the memory for all of it."""
        while True:
            try:
                await self._write_part(page, key, destination)
            except UnavailableError as error:
                if not _lacks_memory(error) or page.bytes < _PART_BYTES_MIN:
                    raise
                smaller = await self._next_page(page.after, page.bytes // 2)
                if smaller is None:
                    raise
                log.info("a part is made smaller, since the trace store lacks memory", payload_bytes=page.bytes)
                page = smaller
            else:
                return page

    async def _take_up(self, pending: PendingPart, destination: OpenDestination) -> ExportCursor:
        """Make a pending part of an earlier attempt again, and upload it unless it is already there."""
        cursor = ExportCursor.parse(pending["cursor"])
        page = ExportPage(
            after=self._row.run.cursor,
            last=cursor,
            rows=pending["rows"],
            bytes=pending["payload_bytes"],
            first_at=datetime.fromisoformat(pending["first_at"]),
            usage_until=datetime.fromisoformat(pending["usage_until"]),
        )
        await self._write_part(page, pending["key"], destination, may_be_there=True)
        return cursor

    async def _write_part(
        self, page: ExportPage, key: str, destination: OpenDestination, *, may_be_there: bool = False
    ) -> None:
        with spool_file(self._queue.spool) as file:
            await self._encode(page, file)
            pending = await self._intent(page, key, path_of(file))
            has_destination = await self._queue.runs.set_pending(self._row.lease, pending, self._row.destination_id)
            if has_destination is None:
                raise _LeaseLostError
            if not has_destination:
                raise DestinationGoneError("The destination was deleted; make it again and export once more")
            if not (may_be_there and await self._is_there(pending, path_of(file), destination)):
                await self._upload(pending, path_of(file), destination)
        await self._advance(pending, ExportCursor(*page.last))

    async def _upload(self, part: PendingPart, file: Path, destination: OpenDestination) -> None:
        await destination.bucket.put_file(part["key"], file)
        if destination.permissions["get_object"]:
            found = await destination.bucket.head(part["key"])
            if found is None or found.size_bytes != part["bytes"]:
                raise BucketError(BucketFault.TRANSIENT, "an uploaded file is not there, or not whole")

    async def _encode(self, page: ExportPage, file: IO[bytes]) -> None:
        pages, row = self._queue.pages, self._row
        await pages.write_parquet(
            self._selection, page, self._fields, file, version=row.format_version, compression=row.compression
        )
        if row.format_version is FormatVersion.V1:
            await asyncio.to_thread(drop_zones, file, len(EXPORT_TIME_FIELDS.intersection(self._fields)))

    async def _intent(self, page: ExportPage, key: str, file: Path) -> PendingPart:
        found = await asyncio.to_thread(fingerprint, file)
        return {
            "key": key,
            "rows": found.rows,
            "bytes": found.size_bytes,
            "sha256": found.sha256,
            "first_at": page.first_at.isoformat(),
            "last_at": page.last[0].isoformat(),
            "cursor": str(ExportCursor(*page.last)),
            "payload_bytes": page.bytes,
            "usage_until": page.usage_until.isoformat(),
        }

    async def _is_there(self, part: PendingPart, file: Path, destination: OpenDestination) -> bool:
        """Return True if the part was already uploaded, and False if the bucket cannot prove it."""
        if not destination.permissions["get_object"] or not destination.permissions["md5_etags"]:
            return False
        found = await destination.bucket.head(part["key"])
        if found is None or found.size_bytes != part["bytes"]:
            return False
        return is_etag(found.etag, await asyncio.to_thread(md5_etag, file)) is True

    async def _advance(self, part: PendingPart, cursor: ExportCursor) -> None:
        file: WrittenFile = {
            "key": part["key"],
            "rows": part["rows"],
            "bytes": part["bytes"],
            "sha256": part["sha256"],
            "first_at": part["first_at"],
            "last_at": part["last_at"],
        }
        if not await self._queue.runs.advance(self._row.lease, file, cursor):
            raise _LeaseLostError


def _engine_code(error: UnavailableError) -> int | None:
    """Return the engine's error code; None if it did not answer at all."""
    code = getattr(error.__cause__, "code", None)
    return code if isinstance(code, int) else None


def _lacks_memory(error: UnavailableError) -> bool:
    return _engine_code(error) == _MEMORY_LIMIT_EXCEEDED


def _shown(error: Exception) -> str:
    """Describe an unexpected failure for people: its type, and for errors of the disk also the message."""
    detail = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return f"Writing failed: {type(error).__name__}{f' ({detail})' if detail else ''}"
