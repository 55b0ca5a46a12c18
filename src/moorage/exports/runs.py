"""Export runs as callers see them, with progress and errors."""

from __future__ import annotations

from uuid import UUID

from moorage.exports.partitions import partition_folder
from moorage.exports.records.exports import Export
from moorage.exports.records.runs import ExportLocation, ExportRun, ExportRunStatus, RunProgress
from moorage.exports.store.exports import ExportStore
from moorage.exports.store.runs import ExportRunRow, ExportRunStore
from moorage.kernel.access import Caller
from moorage.kernel.errors import NotFoundError


class ExportRuns:
    def __init__(self, store: ExportRunStore, exports: ExportStore) -> None:
        self._store = store
        self._exports = exports

    async def get(self, caller: Caller, export_id: UUID, run_id: UUID) -> ExportRun:
        export = await self._export(caller, export_id)
        run = await self._store.read(caller.workspace_id, export_id, run_id)
        if run is None:
            raise NotFoundError(f"Run {run_id} of bulk export {export_id} not found")
        return _shown(run, export, await self._place(caller, export_id))

    async def _export(self, caller: Caller, export_id: UUID) -> Export:
        found = await self._exports.read(caller.workspace_id, export_id)
        if found is None:
            raise NotFoundError(f"Bulk export {export_id} not found")
        return found

    async def _place(self, caller: Caller, export_id: UUID) -> ExportLocation:
        place = await self._exports.read_place(caller.workspace_id, export_id)
        assert place is not None
        return place

    async def list_of_schedule(
        self, caller: Caller, source_export_id: UUID, *, limit: int, offset: int
    ) -> list[ExportRun]:
        """List the runs of all exports that the schedule has spawned."""
        schedule = await self._export(caller, source_export_id)
        place = await self._place(caller, source_export_id)
        runs = await self._store.page_of_schedule(caller.workspace_id, source_export_id, limit=limit, offset=offset)
        return [_shown(run, schedule, place) for run in runs]

    async def list(self, caller: Caller, export_id: UUID, *, limit: int, offset: int) -> list[ExportRun]:
        export = await self._export(caller, export_id)
        runs = await self._store.read_all(caller.workspace_id, export_id)
        place = await self._place(caller, export_id)
        return [_shown(run, export, place) for run in runs[offset : offset + limit]]


def _shown(run: ExportRunRow, export: Export, place: ExportLocation) -> ExportRun:
    return {
        "id": run.id,
        "bulk_export_id": run.export_id,
        "session_id": run.session_id,
        "status": ExportRunStatus(run.status),
        "retry_number": run.retry_number,
        "errors": run.errors,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "finished_at": run.finished_at,
        "start_time": run.window.start_at,
        "end_time": run.window.end_at,
        "metadata": {
            "prefix": place.root.rstrip("/"),
            "start_time": run.window.start_at,
            "end_time": run.window.end_at,
            "execution_backend": "clickhouse",
            "result": _progress(run, export, place),
        },
    }


def _progress(run: ExportRunRow, export: Export, place: ExportLocation) -> RunProgress | None:
    """Return the progress of a run; None until it begins."""
    if run.status == ExportRunStatus.CREATED:
        return None
    folder = partition_folder(
        place,
        export["format_version"],
        export_id=run.export_id,
        tenant_id=export["tenant_id"],
        session_id=run.session_id,
        day=run.window.start_at,
    )
    pending = run.pending
    return {
        "rows_written": run.rows_written,
        "exported_files": [place.reported(file["key"]) for file in run.files],
        "export_path": place.reported(folder.rstrip("/")),
        "latest_cursor": None if run.cursor is None else str(run.cursor),
        "pending_upload": None
        if pending is None
        else {
            "target_cursor": pending["cursor"],
            "file_path": place.reported(pending["key"]),
            "rows_count": pending["rows"],
        },
        "bytes_written": run.bytes_written,
    }
