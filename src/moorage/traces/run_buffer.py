"""Group commit of trace runs.

Rows of one run in the same group are merged into one row, so most runs are one row in the store. A group that the
engine refuses is halved until the bad row is alone, so that it does not fail the other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from moorage.kernel.errors import MoorageError, UnavailableError
from moorage.kernel.gathering import Gathering
from moorage.traces.records.run_rows import RowKey, RunRow
from moorage.traces.store.run_writes import RunWrites

log = structlog.get_logger(__name__)

# Limits of one insert. Smaller inserts cost the engine more per row; larger ones delay the next requests too long.
ROWS_MAX = 3_000
INSERT_BYTES_MAX = 8 * 2**20
_STOP_S = 20.0


class UnstorableRunsError(MoorageError):
    """The engine refused some rows even when each was inserted alone; all other rows are durable."""

    def __init__(self, keys: Sequence[RowKey]) -> None:
        super().__init__("The trace store cannot take: " + ", ".join(f"run {key.id}" for key in keys[:10]))


@dataclass
class Counts:
    """Counters since the process started."""

    writes: int = 0
    refused: int = 0
    size_bytes: int = 0
    inserts: int = 0


@dataclass(eq=False)
class _Member:
    """The rows of one request, and why they were not written."""

    rows: Sequence[RunRow]
    size_bytes: int
    error: Exception | None = None


class RunBuffer:
    def __init__(self, writes: RunWrites) -> None:
        self.counts = Counts()
        self._writes = writes
        self._groups = Gathering[_Member](
            self._write,
            (lambda member: len(member.rows), ROWS_MAX),
            (lambda member: member.size_bytes, INSERT_BYTES_MAX),
        )

    async def add(self, rows: Sequence[RunRow], size_bytes: int) -> None:
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
        if member.error is not None:
            raise member.error

    async def stop(self) -> None:
        """Write the waiting rows."""
        await self._groups.finish(_STOP_S)

    async def _write(self, group: Sequence[_Member]) -> None:
        """Raises UnavailableError only: merging changes the rows, so the members cannot be tried again one by one."""
        try:
            rows = _merged(group)
            if deleted := await self._writes.read_deleted(rows):
                rows = [row for row in rows if not _is_among(deleted, row)]
            refused = await self._insert(rows) if rows else set()
        except UnavailableError:
            raise
        except Exception as error:
            log.exception("traces were not written", members=len(group))
            for member in group:
                member.error = error
            return
        self._count(group, refused)
        for member in group:
            if own := [row.key for row in member.rows if row.key in refused] if refused else []:
                member.error = UnstorableRunsError(own)

    def _count(self, group: Sequence[_Member], refused: set[RowKey]) -> None:
        self.counts.writes += sum(len(member.rows) for member in group)
        self.counts.size_bytes += sum(member.size_bytes for member in group)
        self.counts.refused += len(refused)
        self.counts.inserts += 1

    async def _insert(self, rows: Sequence[RunRow]) -> set[RowKey]:
        """Insert the rows; returns the keys of rows that the engine refuses even alone."""
        try:
            await self._writes.insert(rows)
        except UnavailableError:
            raise
        except Exception as error:
            if len(rows) == 1:
                log.error("the trace store refuses a run", run_id=rows[0].key.id, error=str(error)[:500])
                return {rows[0].key}
            log.warning("an insert of traces failed, trying its halves", rows=len(rows), error=str(error)[:500])
            middle = len(rows) // 2
            return await self._insert(rows[:middle]) | await self._insert(rows[middle:])
        return set()


def _merged(group: Sequence[_Member]) -> list[RunRow]:
    """Merge the rows of each run. Within the group, later rows are newer."""
    merged: dict[RowKey, RunRow] = {}
    for member in group:
        for row in member.rows:
            found = merged.setdefault(row.key, row)
            if found is not row:
                found.merge(row)
    rows = list(merged.values())
    for row in rows:
        row.settle()
    return rows


def _is_among(deleted: set[tuple[UUID, str]], row: RunRow) -> bool:
    """Tell whether the run, its trace or its project was deleted."""
    ids = (row.key.id, row.identity.trace_id, str(row.key.session_id))
    return any((row.key.tenant_id, found) in deleted for found in ids if found)
