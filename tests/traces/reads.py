"""Runs to read, and helpers that read their pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.reading import Reading
from moorage.traces.records.runs import RunsFilter

NOW = datetime.now(UTC)
FIELDS = ("name",)
WHOLE = ("name", "inputs", "metadata_json", "total_tokens")


async def pages_of(reading: Reading, tenant: UUID, search: RunsFilter, fields=FIELDS, **how) -> list[list[UUID]]:
    pages, cursor = [], None
    while True:
        found = await reading.query(tenant, search, fields=fields, cursor=cursor, **how)
        pages.append([row["id"] for row in found.runs])
        cursor = found.next
        if cursor is None:
            return pages


async def hide(clickhouse, run):
    await clickhouse.insert(
        "trace_run_rows",
        {
            "tenant_id": ("UUID", [run.tenant_id]),
            "session_id": ("UUID", [run.session_id]),
            "start_time": ("DateTime64(6, 'UTC')", [run.start_time]),
            "id": ("UUID", [run.id]),
            "deleted_at": ("Nullable(DateTime64(6, 'UTC'))", [NOW]),
        },
    )


def id_made(at: datetime) -> UUID:
    """Return an id that contains this time."""
    other = uuid4().int & (1 << 80) - 1
    return UUID(int=int(at.timestamp() * 1000) << 80 | other & ~(0xF << 76) | 7 << 76)


async def patch_alone(clickhouse: ClickHouse, run: Any, inputs: str) -> None:
    """Insert an update that lacks the run's place in its trace."""
    key = {"tenant_id": "UUID", "session_id": "UUID", "start_time": "DateTime64(6, 'UTC')", "id": "UUID"}
    columns = {name: (kind, [getattr(run, name)]) for name, kind in key.items()}
    await clickhouse.insert("trace_run_rows", columns | {"patched_inputs": ("Nullable(String)", [inputs])})


async def paged(reading, tenant_id, search, fields, limit, order="desc"):
    cursor, more = None, True
    while more:
        found = await reading.query(tenant_id, search, fields=fields, limit=limit, cursor=cursor, order=order)
        for row in found.runs:
            yield row
        cursor, more = found.next, found.next is not None
