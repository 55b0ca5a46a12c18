"""The manifest: the last object of an export. It lists all written files, so that they can be verified. Pure functions.

It is stored outside of the Hive tree, and its key contains the id of its export.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from typing_extensions import TypedDict

from moorage.exports.records.exports import Export
from moorage.exports.records.runs import ExportLocation, WrittenFile
from moorage.kernel.encoding import decode, encode
from moorage.traces.records.run_catalogue import EXPORT_FIELDS

_VERSION = 1


class ManifestFile(TypedDict):
    """File in a manifest. `path` is its path on the wire, `key` its key within the bucket."""

    path: str
    key: str
    export_run_id: str
    rows: int
    bytes: int
    sha256: str
    start_time_min: str
    start_time_max: str


class Manifest(TypedDict):
    manifest_version: int
    export_id: str
    tenant_id: str
    session_id: str | None
    source_bulk_export_id: str | None
    start_time: str
    end_time: str
    cutoff_at: str
    changed_since: str | None
    filter: str | None
    export_fields: list[str]
    format_version: str
    compression: str
    rows: int
    bytes: int
    files: list[ManifestFile]


def manifest_of(export: Export, place: ExportLocation, files: Sequence[tuple[UUID, WrittenFile]]) -> Manifest:
    """Make the manifest of an export whose runs are all complete. `files` are (id of the run, file)."""
    listed = [_file(place, run_id, file) for run_id, file in files]
    return {
        "manifest_version": _VERSION,
        "export_id": str(export["id"]),
        "tenant_id": str(export["tenant_id"]),
        "session_id": _text(export["session_id"]),
        "source_bulk_export_id": _text(export["source_bulk_export_id"]),
        "start_time": export["start_time"].isoformat(),
        "end_time": _moment(export["end_time"]) or "",
        "cutoff_at": _moment(export["cutoff_at"]) or "",
        "changed_since": _moment(export["changed_since"]),
        "filter": export["filter"],
        "export_fields": export["export_fields"] or list(EXPORT_FIELDS),
        "format_version": export["format_version"],
        "compression": export["compression"],
        "rows": sum(file["rows"] for file in listed),
        "bytes": sum(file["bytes"] for file in listed),
        "files": listed,
    }


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest; equal manifests give equal bytes."""
    return encode(manifest) + b"\n"


def decode_manifest(data: bytes) -> Manifest | None:
    """Decode a manifest; None for anything else, or for a newer version."""
    try:
        found: Any = decode(data)
    except ValueError:
        return None
    known = (
        isinstance(found, dict) and found.get("manifest_version") == _VERSION and isinstance(found.get("files"), list)
    )
    return found if known and all(isinstance(file, dict) for file in found["files"]) else None


def is_same(stored: Manifest | None, manifest: Manifest) -> bool:
    """Compare two manifests without their paths, which follow from the keys and differ in older versions."""
    return stored is not None and _without_paths(stored) == _without_paths(manifest)


def _without_paths(manifest: Manifest) -> dict[str, Any]:
    files = [{name: value for name, value in file.items() if name != "path"} for file in manifest["files"]]
    return {**manifest, "files": files}


def _file(place: ExportLocation, run_id: UUID, file: WrittenFile) -> ManifestFile:
    return {
        "path": place.reported(file["key"]),
        "key": file["key"],
        "export_run_id": str(run_id),
        "rows": file["rows"],
        "bytes": file["bytes"],
        "sha256": file["sha256"],
        "start_time_min": file["first_at"],
        "start_time_max": file["last_at"],
    }


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
