"""Writes of trace runs: the columns of inserts, and lookups of stored values that a write needs.

A PATCH writes the twin of a column. The twin wins, whichever row arrives first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.traces.records.run_catalogue import Role, columns_of
from moorage.traces.records.run_rows import Row
from moorage.traces.store.run_columns import runs_for

_PATCHABLE = columns_of(Role.PATCHABLE)
_TYPES = {column.name: column.type for column in (*columns_of(Role.KEY, Role.FIXED, Role.STAMP), *_PATCHABLE)}
_TYPES |= {column.twin: column.type for column in _PATCHABLE}

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
_STORED_COLUMNS = "id, dotted_order, run_type, metadata_json, extra_without_metadata, attachments"
_STORED = f"SELECT {_STORED_COLUMNS} FROM {runs_for(_STORED_COLUMNS, where=_STORED_WHERE)}"
# Most installations have no tombstones, and then single runs need no lookup. Checked once a second. A delay does no
# harm to stored runs, which their own row hides; it only concerns runs that first arrive after their trace was deleted.
_ANY_DELETED = "SELECT count() > 0 FROM deleted_runs"
_DELETED = "SELECT tenant_id, id FROM deleted_runs WHERE (tenant_id, id) IN {pairs:Array(Tuple(UUID, UUID))}"
_ANY_DELETED_KEPT_S = 1.0


# A workspace id, with the id of a run, trace or project in it.
Pair = tuple[UUID, str]


class RunLocation(NamedTuple):
    """Location of a run."""

    session_id: UUID
    start_at: datetime
    trace_id: UUID | None


class RunWrites:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._none_deleted_until = 0.0

    async def insert(self, rows: Sequence[Row]) -> None:
        """Insert all rows in one block. Durable when this returns."""
        await self._clickhouse.insert("trace_run_rows", to_columns(rows, datetime.now(UTC)), _INSERT_SETTINGS)

    async def read_places(self, tenant_id: UUID, ids: Collection[str]) -> dict[str, RunLocation]:
        """Find the places of runs; runs that have not arrived are left out."""
        rows = await self._clickhouse.rows(_PLACES, {"tenant_id": tenant_id, "ids": list(ids)}) if ids else ()
        return {str(run_id): RunLocation(*place) for run_id, *place in rows}

    async def read_stored(self, tenant_id: UUID, places: Mapping[str, RunLocation]) -> dict[str, Row]:
        """Read the stored columns of runs that a later write of a run, or of its child, may need. JSON is text."""
        parameters = {
            "tenant_id": tenant_id,
            "session_ids": list({place.session_id for place in places.values()}),
            "start_times": list({place.start_at for place in places.values()}),
            "ids": list(places),
        }
        stored = await self._clickhouse.dicts(_STORED, parameters) if places else ()
        return {str(row["id"]): row for row in stored}

    async def without_deleted(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Leave out rows of deleted runs, traces and projects."""
        if self._none_deleted_until > time.monotonic():
            return rows
        if not await self._clickhouse.value(_ANY_DELETED):
            self._none_deleted_until = time.monotonic() + _ANY_DELETED_KEPT_S
            return rows
        deleted = await self.deleted({pair for row in rows for pair in _deletable(row)})
        return [row for row in rows if deleted.isdisjoint(_deletable(row))]

    async def deleted(self, pairs: Collection[Pair]) -> set[Pair]:
        """Find the runs, traces and projects that were deleted."""
        rows = await self._clickhouse.rows(_DELETED, {"pairs": list(pairs)}) if pairs else ()
        return {(tenant_id, str(id_)) for tenant_id, id_ in rows}


def _deletable(row: Row) -> list[Pair]:
    """List the ids whose deletion deletes the row, each with its workspace."""
    ids = (row["id"], row.get("trace_id"), row["session_id"])
    return [(row["tenant_id"], str(found)) for found in ids if found]


def to_columns(rows: Sequence[Row], ingested_at: datetime) -> dict[str, tuple[str, list[Any]]]:
    """Convert rows to columns. Columns that no row has, which are most, are left out."""
    names = set().union(*rows)
    columns = {name: (kind, [row.get(name) for row in rows]) for name, kind in _TYPES.items() if name in names}
    columns["ingested_at"] = (_TYPES["ingested_at"], [ingested_at] * len(rows))
    return columns
