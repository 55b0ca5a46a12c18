"""Exports and schedules: their statuses, and the requests that create and cancel them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import TypedDict

from moorage.exports.records.words import Line, Moment, StrictRequest, any_case
from moorage.kernel.crypto import SealedColumn
from moorage.traces.records.run_catalogue import EXPORT_FIELDS

SEALED_WEBHOOK_SECRET = SealedColumn("exports", "id", "webhook_secret")
SPAWN_DELAY = timedelta(minutes=10)
_CLOCKS_DIFFER = timedelta(minutes=1)  # clocks of callers, who export "until now"


class ExportStatus(StrEnum):
    CREATED = "Created"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMED_OUT = "TimedOut"
    INTERVAL_SCHEDULED = "IntervalScheduled"


EXPORT_MOVES: Mapping[ExportStatus, frozenset[ExportStatus]] = {
    ExportStatus.CREATED: frozenset({ExportStatus.RUNNING, ExportStatus.CANCELLED}),
    ExportStatus.RUNNING: frozenset(
        {ExportStatus.COMPLETED, ExportStatus.FAILED, ExportStatus.CANCELLED, ExportStatus.TIMED_OUT}
    ),
    ExportStatus.INTERVAL_SCHEDULED: frozenset({ExportStatus.CANCELLED}),
    ExportStatus.COMPLETED: frozenset(),
    ExportStatus.FAILED: frozenset(),
    ExportStatus.CANCELLED: frozenset(),
    ExportStatus.TIMED_OUT: frozenset(),
}


def origins_of(target: ExportStatus) -> str:
    """Return the statuses that may change to this one, as a list in SQL."""
    return ", ".join(f"'{status}'" for status, moves in EXPORT_MOVES.items() if target in moves)


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTANDARD = "zstandard"


class FormatVersion(StrEnum):
    V1 = "v1"
    V2_BETA = "v2_beta"


class Export(TypedDict):
    """Export as the API returns it. `cutoff_at` and all later fields are moorage's own."""

    id: UUID
    tenant_id: UUID
    bulk_export_destination_id: UUID
    session_id: UUID | None
    all_experiments: bool
    start_time: datetime
    end_time: datetime | None
    filter: str | None
    format: str
    format_version: FormatVersion
    compression: Compression
    interval_hours: int | None
    export_fields: list[str] | None
    status: ExportStatus
    source_bulk_export_id: UUID | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    cutoff_at: datetime | None
    changed_since: datetime | None
    error: str | None
    manifest: str | None
    webhook_url: str | None
    webhook_secret: NotRequired[str]
    warnings: list[str]


class PartitionEstimate(TypedDict):
    session_id: UUID
    start_time: datetime
    end_time: datetime
    rows: int


class Estimate(TypedDict):
    """Estimate of an export: the answer to a request with `dry_run`, which creates nothing."""

    dry_run: Literal[True]
    rows: int
    export_runs: int
    partitions: list[PartitionEstimate]
    warnings: list[str]


def warnings_of(end_at: datetime | None, cutoff_at: datetime) -> list[str]:
    """List warnings for the owner of an export. Runs that arrive after its cutoff are not exported."""
    if end_at is None or end_at <= cutoff_at + _CLOCKS_DIFFER:
        return []
    late = "runs that arrive after the export has begun are not exported"
    return [f"end_time {end_at.isoformat()} is in the future: {late}; export again after it, or give interval_hours"]


class WebhookGiven(StrictRequest):
    """Webhook that is called when the export has ended."""

    url: Annotated[Line, Field(min_length=1, max_length=2048)]
    secret: Annotated[Line, Field(min_length=16, max_length=255)] | None = Field(
        None,
        description="Secret that signs the webhook. Default: a new one, which only the answer to this request shows.",
    )


class ExportCreate(StrictRequest):
    bulk_export_destination_id: UUID
    session_id: UUID | None = None
    all_experiments: bool = False
    start_time: Moment
    end_time: Moment | None = None
    filter: Annotated[str, Field(max_length=65536)] | None = None
    format: Annotated[Literal["Parquet"], BeforeValidator(lambda given: "Parquet" if given == "parquet" else given)] = (
        "Parquet"
    )
    format_version: Annotated[FormatVersion, any_case(FormatVersion)] = FormatVersion.V1
    compression: Annotated[Compression, any_case(Compression)] | None = None
    # Strict, so that `true` and 1.0 are refused.
    interval_hours: Annotated[int, Field(strict=True, ge=1, le=168)] | None = None
    export_fields: Annotated[list[Literal[EXPORT_FIELDS]], Field(min_length=1)] | None = None  # type: ignore[valid-type]
    changed_since: Moment | None = Field(
        None, description="Export only the days on which runs arrived or changed since then."
    )
    webhook: WebhookGiven | None = None
    dry_run: bool = Field(False, description="Make nothing; answer how many rows would be exported.")

    @model_validator(mode="after")
    def _consistent(self) -> ExportCreate:
        if (self.session_id is None) == (not self.all_experiments):
            raise ValueError("give either session_id or all_experiments")
        if self.interval_hours is None and self.end_time is None:
            raise ValueError("end_time is required unless interval_hours is given")
        if self.interval_hours is not None and self.end_time is not None:
            raise ValueError("end_time must be omitted when interval_hours is given")
        if self.end_time is not None and self.end_time <= self.start_time:
            raise ValueError("end_time must be later than start_time")
        if self.interval_hours is not None and (self.changed_since or self.dry_run):
            raise ValueError("a scheduled export takes neither changed_since nor dry_run")
        if self.export_fields:  # each once, in the order sent, since clients compare
            self.export_fields = list(dict.fromkeys(self.export_fields))
        return self


def _cancelled(given: Any) -> Any:
    return "Cancelled" if isinstance(given, str) and given.casefold() in {"cancelled", "canceled"} else given


class ExportUpdate(StrictRequest):
    status: Annotated[Literal["Cancelled"], BeforeValidator(_cancelled)] = "Cancelled"
