"""Export runs: their windows, progress and statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple
from uuid import UUID

from typing_extensions import TypedDict


class ExportRunStatus(StrEnum):
    CREATED = "Created"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMED_OUT = "TimedOut"


# A run that waits for its next attempt stays Running, since it has begun. Its errors are shown.
EXPORT_RUN_MOVES: Mapping[ExportRunStatus, frozenset[ExportRunStatus]] = {
    ExportRunStatus.CREATED: frozenset({ExportRunStatus.RUNNING, ExportRunStatus.CANCELLED, ExportRunStatus.TIMED_OUT}),
    ExportRunStatus.RUNNING: frozenset(
        {ExportRunStatus.COMPLETED, ExportRunStatus.FAILED, ExportRunStatus.CANCELLED, ExportRunStatus.TIMED_OUT}
    ),
    ExportRunStatus.COMPLETED: frozenset(),
    ExportRunStatus.FAILED: frozenset(),
    ExportRunStatus.CANCELLED: frozenset(),
    ExportRunStatus.TIMED_OUT: frozenset(),
}


def origins_of(target: ExportRunStatus) -> str:
    """Return the statuses that may change to this one, as a list in SQL."""
    return ", ".join(f"'{status}'" for status, moves in EXPORT_RUN_MOVES.items() if target in moves)


@dataclass(frozen=True)
class Window:
    """Span of time. It includes its start but not its end."""

    start_at: datetime
    end_at: datetime


@dataclass(frozen=True)
class Partition:
    """Work of one export run: a project and a window."""

    id: UUID
    session_id: UUID
    window: Window


class ExportCursor(NamedTuple):
    """Start time and id of the last written trace run. Trace runs are paged in this order."""

    start_at: datetime
    run_id: UUID

    def __str__(self) -> str:
        return f"{self.start_at.isoformat(timespec='microseconds')}_{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> ExportCursor:
        start_at, _, run_id = text.rpartition("_")
        return cls(datetime.fromisoformat(start_at), UUID(run_id))


@dataclass(frozen=True)
class ExportLocation:
    """Bucket and prefix of the files of an export."""

    bucket: str | None  # None: an older version made the export, and its endpoint contains the bucket
    root: str  # prefix of every key: empty, or ends with a slash

    def reported(self, key: str) -> str:
        """Return the path that people see, `<bucket>/<key>`. Readers take its first part as the bucket."""
        return f"{self.bucket}/{key}" if self.bucket else key

    def test_file(self, file_id: UUID) -> str:
        return f"{self.root}tmp/moorage-test-{file_id}.txt"

    def manifest(self, export_id: UUID) -> str:
        """Return the manifest's key, outside of the Hive tree, so that readers of `export_id=*` do not find it."""
        return f"{self.root}_manifests/export_id={export_id}.json"

    def export_folder(self, export_id: UUID) -> str:
        return f"{self.root}export_id={export_id}/"


class WrittenFile(TypedDict):
    """A complete part in the bucket. `first_at` and `last_at` are the start times of its first and last trace run."""

    key: str
    rows: int
    bytes: int
    sha256: str
    first_at: str
    last_at: str


class PendingPart(WrittenFile):
    """A part whose upload was not confirmed yet: its expected file, and what is needed to make it again."""

    cursor: str
    payload_bytes: int  # before compression
    usage_until: str


class PendingUpload(TypedDict):
    target_cursor: str
    file_path: str
    rows_count: int


class RunProgress(TypedDict):
    """Progress of an export run. `bytes_written` is moorage's own."""

    rows_written: int
    exported_files: list[str]
    export_path: str
    latest_cursor: str | None
    pending_upload: PendingUpload | None
    bytes_written: int


class RunMetadata(TypedDict):
    prefix: str
    start_time: datetime
    end_time: datetime
    execution_backend: Literal["clickhouse"]
    result: RunProgress | None


class ExportRun(TypedDict):
    id: UUID
    bulk_export_id: UUID
    session_id: UUID
    status: ExportRunStatus
    retry_number: int
    errors: dict[str, str] | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    start_time: datetime
    end_time: datetime
    metadata: RunMetadata
