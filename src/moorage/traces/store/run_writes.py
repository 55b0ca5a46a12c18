"""Writes of trace runs: the columns of inserts, and lookups of stored values that a write needs."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.traces.records.run_catalogue import Role, columns_of
from moorage.traces.records.run_rows import RunRow
from moorage.traces.store.run_columns import runs_for

Names = tuple[tuple[str, str], ...]


def _names(role: Role) -> Names:
    return tuple((column.name, column.type) for column in columns_of(role))


# Columns and types in the order of the fields of a row.
_KEY, _IDENTITY, _VALUES = _names(Role.KEY), _names(Role.FIXED), _names(Role.PATCHABLE)
# A PATCH writes the twin of a column. The twin wins, whichever row arrives first.
_PATCHED: Names = tuple((column.twin, column.type) for column in columns_of(Role.PATCHABLE))
_INGESTED_AT = columns_of(Role.STAMP)[0]
_NOTHING: tuple[None, ...] = (None,) * len(_VALUES)

_INSERT_SETTINGS: Settings = {
    # A client may send a long history at once. One block may then span more months than the engine's default allows.
    "max_partitions_per_insert_block": 0,
    # The indexes of words are built by the first merge. Building them in an insert would double its cost. Unmerged
    # parts are few and small, and are read without the indexes.
    "exclude_materialize_skip_indexes_on_insert": "by_letters, by_digits",
}

# A run has one place. If an id was used in two projects, the newer run is taken.
_PLACES = """
SELECT k.id, argMax(k.session_id, k.start_time), max(k.start_time), any(k.trace_id) FROM trace_run_keys AS k
WHERE k.tenant_id = {tenant_id:UUID} AND k.id IN {ids:Array(UUID)}
GROUP BY k.id
"""
# Conditions on the key columns, so that little else is read. They are wider than the wanted keys; the ids decide.
_STORED_WHERE = """tenant_id = {tenant_id:UUID} AND session_id IN {session_ids:Array(UUID)}
    AND start_time IN {start_times:Array(DateTime64(6, 'UTC'))} AND id IN {ids:Array(UUID)}"""
_STORED_COLUMNS = "id, dotted_order, run_type, metadata_json, extra, attachments"
_STORED = f"SELECT {_STORED_COLUMNS} FROM {runs_for(_STORED_COLUMNS, where=_STORED_WHERE)}"
# Most installations have no tombstones, and then single runs need no lookup. Checked once a second. A delay does no
# harm to stored runs, which their own row hides; it only concerns runs that first arrive after their trace was deleted.
_ANY_DELETED = "SELECT count() > 0 FROM deleted_runs"
_DELETED = "SELECT tenant_id, id FROM deleted_runs WHERE (tenant_id, id) IN {pairs:Array(Tuple(UUID, UUID))}"


_ANY_DELETED_KEPT_S = 1.0


class RunLocation(NamedTuple):
    """Location of a run."""

    session_id: UUID
    start_at: datetime
    trace_id: UUID | None


class KnownRun(NamedTuple):
    """Stored values that a later write of a run, or of its child, may need. JSON is text."""

    dotted_order: str | None
    run_type: str | None
    metadata_json: str | None
    extra: str | None
    attachments: str | None


class RunWrites:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._none_deleted_until = 0.0

    async def insert(self, rows: Sequence[RunRow]) -> None:
        """Insert all rows in one block. Durable when this returns."""
        await self._clickhouse.insert("trace_run_rows", to_columns(rows, datetime.now(UTC)), _INSERT_SETTINGS)

    async def read_places(self, tenant_id: UUID, ids: Collection[str]) -> dict[str, RunLocation]:
        rows = await self._clickhouse.rows(_PLACES, {"tenant_id": tenant_id, "ids": list(ids)})
        return {str(run_id): RunLocation(*place) for run_id, *place in rows}

    async def read_stored(self, tenant_id: UUID, places: dict[str, RunLocation]) -> dict[str, KnownRun]:
        parameters = {
            "tenant_id": tenant_id,
            "session_ids": list({place.session_id for place in places.values()}),
            "start_times": list({place.start_at for place in places.values()}),
            "ids": list(places),
        }
        rows = await self._clickhouse.rows(_STORED, parameters)
        return {str(run_id): KnownRun(*stored) for run_id, *stored in rows}

    async def read_deleted(self, rows: Sequence[RunRow]) -> set[tuple[UUID, str]]:
        """Find the deleted runs, traces and projects of the rows, each with its workspace."""
        if self._none_deleted_until > time.monotonic():
            return set()
        if not await self._clickhouse.value(_ANY_DELETED):
            self._none_deleted_until = time.monotonic() + _ANY_DELETED_KEPT_S
            return set()
        pairs = {
            (row.key.tenant_id, str(found))
            for row in rows
            for found in (row.key.id, row.identity.trace_id, row.key.session_id)
            if found
        }
        deleted = await self._clickhouse.rows(_DELETED, {"pairs": list(pairs)})
        return {(tenant_id, str(found)) for tenant_id, found in deleted}


def to_columns(rows: Sequence[RunRow], ingested_at: datetime) -> dict[str, tuple[str, list[Any]]]:
    """Convert rows to columns. Columns that are NULL in all rows, which are most, are left out."""
    count = len(rows)
    columns: dict[str, tuple[str, list[Any]]] = {}

    def add(names: Sequence[tuple[str, str]], values: Sequence[tuple[Any, ...]]) -> None:
        for (name, kind), column in zip(names, zip(*values, strict=True), strict=True):
            if column.count(None) < count:
                columns[name] = (kind, list(column))

    add(_KEY, [row.key for row in rows])
    add(_IDENTITY, [row.identity for row in rows])
    add(_VALUES, [row.posted or _NOTHING for row in rows])
    add(_PATCHED, [row.patched or _NOTHING for row in rows])
    columns["ingested_at"] = (_INGESTED_AT.type, [ingested_at] * count)
    return columns
