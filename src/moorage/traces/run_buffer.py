"""Group commit of trace runs.

Rows of one run in the same group are merged into one row, so most runs are one row in the store. A group that the
engine refuses is halved until the bad row is alone, so that it does not fail the other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import structlog

from moorage.kernel.errors import MoorageError, UnavailableError
from moorage.kernel.gathering import Gathering
from moorage.traces.records.run_catalogue import Role, columns_of
from moorage.traces.records.run_rows import Row
from moorage.traces.store.run_writes import RunWrites

log = structlog.get_logger(__name__)

# Limits of one insert. Smaller inserts cost the engine more per row; larger ones delay the next requests too long.
ROWS_MAX = 3_000
INSERT_BYTES_MAX = 8 * 2**20
_STOP_S = 20.0

_key_of = itemgetter(*(column.name for column in columns_of(Role.KEY)))
# A PATCH replaces the value of the POST in all columns but attachments, which readers see of both.
_REPLACED = {column.twin: column.name for column in columns_of(Role.PATCHABLE) if column.name != "attachments"}


class UnstorableRunsError(MoorageError):
    """The engine refused some rows even when each was inserted alone; all other rows are durable."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__("The trace store cannot take: " + ", ".join(f"run {row['id']}" for row in rows[:10]))


@dataclass
class Counts:
    """Counters since the process started."""

    writes: int = 0
    refused: int = 0
    size_bytes: int = 0
    inserts: int = 0


@dataclass(eq=False)
class _Member:
    """The rows of one request, and those that the engine refused."""

    rows: Sequence[Row]
    size_bytes: int
    refused: Sequence[Row] = ()


class RunBuffer:
    def __init__(self, writes: RunWrites) -> None:
        self.counts = Counts()
        self._writes = writes
        self._groups = Gathering[_Member](
            self._write,
            (lambda member: len(member.rows), ROWS_MAX),
            (lambda member: member.size_bytes, INSERT_BYTES_MAX),
        )

    async def add(self, rows: Sequence[Row], size_bytes: int) -> None:
        """Return when the rows are durable. Raises UnavailableError, and UnstorableRunsError for rows that fail alone.

        Cancelling the caller drops rows that still wait. Rows whose insert has begun are written anyway.
        """
        if not rows:
            return
        member = _Member(rows, size_bytes)
        try:
            await self._groups.add(member)
        except asyncio.CancelledError:
            self._groups.withdraw(member)
            raise
        if member.refused:
            raise UnstorableRunsError(member.refused)

    async def stop(self) -> None:
        """Write the waiting rows."""
        await self._groups.finish(_STOP_S)

    async def _write(self, group: Sequence[_Member]) -> None:
        rows = await self._writes.without_deleted(_merged(group))
        refused = {_key_of(row) for row in await self._insert(rows)} if rows else set()
        for member in group:
            member.refused = [row for row in member.rows if _key_of(row) in refused] if refused else ()
        self.counts.writes += sum(len(member.rows) for member in group)
        self.counts.size_bytes += sum(member.size_bytes for member in group)
        self.counts.refused += len(refused)
        self.counts.inserts += 1

    async def _insert(self, rows: Sequence[Row]) -> list[Row]:
        """Insert the rows; returns those that the engine refuses even alone."""
        try:
            await self._writes.insert(rows)
        except UnavailableError:
            raise
        except Exception as error:
            if len(rows) == 1:
                log.error("the trace store refuses a run", run_id=rows[0]["id"], error=str(error)[:500])
                return [rows[0]]
            log.warning("an insert of traces failed, trying its halves", rows=len(rows), error=str(error)[:500])
            middle = len(rows) // 2
            return await self._insert(rows[:middle]) + await self._insert(rows[middle:])
        return []


def _merged(group: Sequence[_Member]) -> list[Row]:
    """Merge the rows of each run. Within the group, later rows are newer."""
    merged: dict[tuple[object, ...], Row] = {}
    for row in (row for member in group for row in member.rows):
        key = _key_of(row)
        merged[key] = _joined(merged[key], row) if key in merged else row
    return list(merged.values())


def _joined(older: Row, newer: Row) -> Row:
    """Join two rows of a run, without the columns of POSTs that PATCHes replace: nobody would read them."""
    joined = older | newer
    for twin in _REPLACED.keys() & joined.keys():
        joined.pop(_REPLACED[twin], None)
    return joined
