"""Partitions of an export: the days of a window, folders and names. Pure functions.

Names depend only on the export, its run and the number of the part. So a part that is written again replaces itself,
and nothing is lost or duplicated.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from moorage.exports.records.destinations import DestinationConfig
from moorage.exports.records.exports import FormatVersion
from moorage.exports.records.runs import ExportLocation, Partition, Window
from moorage.kernel.ids import uuid7


def days_of(window: Window) -> list[Window]:
    """Cut a window at each midnight of UTC, so that no partition belongs to two folders."""
    days = []
    start = window.start_at
    while start < window.end_at:
        midnight = datetime(start.year, start.month, start.day, tzinfo=UTC) + timedelta(days=1)
        end = min(midnight, window.end_at)
        days.append(Window(start, end))
        start = end
    return days


def partitions_of(window: Window, sessions: Iterable[UUID]) -> list[Partition]:
    """Cut a window into the partitions of an export's runs: each day of each project."""
    days = days_of(window)
    return [Partition(uuid7(), session_id, day) for session_id in sessions for day in days]


def bucket_of(config: DestinationConfig) -> str:
    """Find the bucket's name: as configured, else the end of the endpoint's path, else the first label of its host."""
    if config["bucket_name"]:
        return config["bucket_name"]
    parts = urlsplit(config["endpoint_url"] or "")
    return parts.path.strip("/").rpartition("/")[2] or (parts.hostname or "").partition(".")[0]


def place_of(config: DestinationConfig) -> ExportLocation:
    bucket, prefix = bucket_of(config), config["prefix"]
    held = bucket in prefix.split("/") or bucket in _words_of(config["endpoint_url"] or "")
    parts = [bucket] if config["include_bucket_in_prefix"] and not held else []
    root = "/".join([*parts, *([prefix] if prefix else [])])
    return ExportLocation(bucket, f"{root}/" if root else "")


def _words_of(endpoint_url: str) -> set[str]:
    """List the parts of an endpoint that may be a bucket's name: the first label of the host, and the parts of the
    path.
    """
    _, _, rest = endpoint_url.partition("://")
    host, *path = rest.split("/")
    return {host.partition(".")[0], *path}


def partition_folder(
    place: ExportLocation, version: FormatVersion, *, export_id: UUID, tenant_id: UUID, session_id: UUID, day: datetime
) -> str:
    """Return the folder, with a final slash. Month and day have no zero padding, as readers of this layout expect."""
    resource = "runs" if version is FormatVersion.V1 else "resource=runs"
    return (
        f"{place.export_folder(export_id)}tenant_id={tenant_id}/session_id={session_id}/{resource}/"
        f"year={day.year}/month={day.month}/day={day.day}/"
    )


def part_name(number: int, export_run_id: UUID) -> str:
    return f"part-{number:05}-{export_run_id}.parquet"
