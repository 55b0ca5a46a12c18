"""Verification: compare the bucket with the manifest, byte for byte, and find what changed in the store since."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Literal
from uuid import UUID

from typing_extensions import TypedDict

from moorage.exports.destinations import DestinationGoneError, Destinations, text_of
from moorage.exports.exports import Exports
from moorage.exports.manifests import Manifest, ManifestFile, decode_manifest, encode_manifest, is_same, manifest_of
from moorage.exports.records.exports import Export, ExportStatus
from moorage.exports.records.runs import ExportLocation, Window
from moorage.exports.store.exports import ExportStore
from moorage.exports.store.runs import ExportRunRow, ExportRunStore
from moorage.kernel.access import Caller
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.buckets.faults import BucketError
from moorage.kernel.errors import BadRequestError
from moorage.traces.exported_runs import ExportedRuns, ExportSelection

# Reading files one by one is slow; reading all at once would starve the exports.
_FILES_AT_ONCE = 4
_VERIFICATIONS_AT_ONCE = 2


class Difference(TypedDict):
    """Difference between bucket and manifest. `missing`, `size`, `checksum`: a file of the manifest is missing or has
    another size or checksum. `unexpected`: a file is not in the manifest. `manifest`: the manifest itself differs.
    `unreadable`: the bucket cannot be read.
    """

    file: str
    problem: Literal["missing", "size", "checksum", "unexpected", "manifest", "unreadable"]
    expected: str | None
    found: str | None


class StaleDay(TypedDict):
    """Trace runs of a day that arrived, changed or were deleted after the export's cutoff."""

    session_id: UUID
    start_time: datetime
    end_time: datetime
    rows: int


class Verification(TypedDict):
    bulk_export_id: UUID
    verified: bool
    manifest: str | None
    files: int
    rows: int
    bytes: int
    differences: list[Difference]
    stale: list[StaleDay]


@dataclass(frozen=True)
class Verifier:
    exports: Exports
    store: ExportStore
    runs: ExportRunStore
    pages: ExportedRuns
    destinations: Destinations
    _turn: asyncio.Semaphore = field(init=False, default_factory=partial(asyncio.Semaphore, _VERIFICATIONS_AT_ONCE))

    async def check(self, caller: Caller, export_id: UUID) -> Export:
        """Check that the export can be verified. Raises NotFoundError, and BadRequestError if it is not complete."""
        export = await self.exports.get(caller, export_id)
        if export["status"] is not ExportStatus.COMPLETED:
            raise BadRequestError(
                f"Bulk export {export_id} is {export['status']}; only a completed one can be verified"
            )
        return export

    async def verify(self, caller: Caller, export: Export) -> Verification:
        """Verify an export by reading all of its files."""
        async with self._turn:
            place = await self.store.read_place(caller.workspace_id, export["id"])
            assert place is not None
            runs = await self.runs.read_all(caller.workspace_id, export["id"])
            manifest = manifest_of(export, place, [(run.id, file) for run in runs for file in run.files])
            try:
                destination = await self.destinations.open(caller.workspace_id, export["bulk_export_destination_id"])
                differences = await _differences(destination.bucket, place, export["id"], manifest)
            except (BucketError, BadRequestError, DestinationGoneError) as error:
                text = text_of(error) if isinstance(error, BucketError) else str(error)
                folder = place.reported(place.export_folder(export["id"]))
                differences = [{"file": folder, "problem": "unreadable", "expected": None, "found": text}]
        return {
            "bulk_export_id": export["id"],
            "verified": not differences,
            "manifest": export["manifest"],
            "files": len(manifest["files"]),
            "rows": manifest["rows"],
            "bytes": manifest["bytes"],
            "differences": differences,
            "stale": await self._stale(export, runs),
        }

    async def _stale(self, export: Export, runs: Sequence[ExportRunRow]) -> list[StaleDay]:
        stale: list[StaleDay] = []
        cutoff_at = export["cutoff_at"]
        assert cutoff_at is not None
        for session_id, window in _covered(runs).items():
            days = {run.window.start_at.date(): run.window for run in runs if run.session_id == session_id}
            selection = ExportSelection(export["tenant_id"], session_id, window.start_at, window.end_at, cutoff_at)
            changed = await self.pages.changed(selection, cutoff_at)
            stale += [_stale_day(session_id, days[day], rows) for day, rows in changed.items() if day in days]
        return stale


def _stale_day(session_id: UUID, day: Window, rows: int) -> StaleDay:
    return {"session_id": session_id, "start_time": day.start_at, "end_time": day.end_at, "rows": rows}


def _covered(runs: Sequence[ExportRunRow]) -> dict[UUID, Window]:
    """Find the time from the first to the last day of each project."""
    covered: dict[UUID, Window] = {}
    for run in runs:
        known = covered.get(run.session_id, run.window)
        start, end = min(known.start_at, run.window.start_at), max(known.end_at, run.window.end_at)
        covered[run.session_id] = Window(start, end)
    return covered


async def _differences(bucket: Bucket, place: ExportLocation, export_id: UUID, manifest: Manifest) -> list[Difference]:
    key = place.manifest(export_id)
    stored = await bucket.get(key)
    found: list[Difference] = []
    if stored is None:
        found.append({"file": place.reported(key), "problem": "missing", "expected": None, "found": None})
    elif stored != encode_manifest(manifest) and not is_same(decode_manifest(stored), manifest):
        found.append({"file": place.reported(key), "problem": "manifest", "expected": None, "found": None})
    at_once = asyncio.Semaphore(_FILES_AT_ONCE)

    async def one(file: ManifestFile) -> Difference | None:
        async with at_once:
            return await _difference(bucket, file)

    found += [each for each in await asyncio.gather(*map(one, manifest["files"])) if each is not None]
    known = {file["key"] for file in manifest["files"]}
    async for facts in bucket.list(place.export_folder(export_id)):
        if facts.key not in known:
            path = place.reported(facts.key)
            found.append(
                {"file": path, "problem": "unexpected", "expected": None, "found": f"{facts.size_bytes} bytes"}
            )
    return found


async def _difference(bucket: Bucket, file: ManifestFile) -> Difference | None:
    digest, size = hashlib.sha256(), 0
    async for piece in bucket.stream(file["key"]):
        size += len(piece)
        await asyncio.to_thread(digest.update, piece)
    if size == 0:
        return {"file": file["path"], "problem": "missing", "expected": f"{file['bytes']} bytes", "found": None}
    if size != file["bytes"]:
        sizes = (f"{file['bytes']} bytes", f"{size} bytes")
        return {"file": file["path"], "problem": "size", "expected": sizes[0], "found": sizes[1]}
    if digest.hexdigest() != file["sha256"]:
        return {"file": file["path"], "problem": "checksum", "expected": file["sha256"], "found": digest.hexdigest()}
    return None
