"""Exports made directly in the database, for tests of what happens to them there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from moorage.exports.partitions import partitions_of
from moorage.exports.records.exports import Compression, Export, FormatVersion
from moorage.exports.records.runs import ExportLocation, Window
from moorage.exports.store.exports import ExportStore, NewExport
from moorage.kernel.ids import uuid7

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def new_export(workspace_id: UUID, days: int = 3, **changes: object) -> NewExport:
    session_id = uuid4()
    window = Window(SINCE, SINCE + timedelta(days=days))
    order = NewExport(
        id=uuid7(),
        workspace_id=workspace_id,
        destination_id=uuid4(),
        place=ExportLocation("bucket", "prefix/"),
        session_id=session_id,
        window=window,
        start_at=window.start_at,
        filter=None,
        format_version=FormatVersion.V1,
        compression=Compression.ZSTANDARD,
        export_fields=None,
        changed_since=None,
        interval_hours=None,
        webhook_url=None,
        webhook_secret=None,
        actor="test",
        partitions=partitions_of(window, [session_id]),
    )
    return replace(order, **changes)  # type: ignore[arg-type]


async def insert_export(store: ExportStore, workspace_id: UUID, days: int = 3, **changes: object) -> Export:
    return await store.insert(new_export(workspace_id, days, **changes))
