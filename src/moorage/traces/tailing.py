"""The live tail of a search: new and changed runs, as they arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import TooManyRequestsError
from moorage.traces.reading import Reading
from moorage.traces.records.runs import RunsFilter
from moorage.traces.searches import selection_of
from moorage.traces.store.run_reads import FoundRun, Place, Row, RunReads
from moorage.traces.store.selections import Selection

TailedRuns = AsyncGenerator[Sequence[tuple[datetime, Row]], None]

_LOOK_S = 1.0
# Each poll covers runs that began lately. Every tenth poll also covers older runs, which may still end.
_LATELY, _LONG_AGO, _LONG_AGO_TURNS = timedelta(minutes=10), timedelta(days=1), 10
# A row gets its time before it is written, so it becomes visible only some time later.
_WRITTEN_WITHIN = timedelta(seconds=10)
# More than the rows of one insert, which share one time: a poll that ended among them could not continue.
_ARRIVALS_AT_ONCE = 5_000
_READ_AT_ONCE = 100
_TAILS_MAX, _RETRY_S = 32, 10


class Tailing:
    """Live tails of this process. Each polls the newest arrivals once a second."""

    def __init__(self, clickhouse: ClickHouse, reading: Reading) -> None:
        self._runs = RunReads(clickhouse)
        self._reading = reading
        self._open: Counter[UUID] = Counter()

    def follow(
        self, workspace_id: UUID, search: RunsFilter, *, fields: Collection[str], since: datetime | None = None
    ) -> TailedRuns:
        """Yield runs of which a row arrived after `since` (default: now), in the order of arrival, each with its
        arrival time. Each poll ends with an empty sequence.

        Runs are whole, and are yielded again when they change. Runs that arrived in the ten seconds before `since` may
        be yielded twice. Runs that began more than a day ago are left out. A search that names no project follows all
        of them. Raises at once the errors of `selection_of`, and TooManyRequestsError when the workspace is at its
        limit of tails.
        """
        selection = selection_of(workspace_id, search, anywhere=True)
        if self._open[workspace_id] >= _TAILS_MAX:
            raise TooManyRequestsError(f"This workspace has {_TAILS_MAX} live tails open; close one of them", _RETRY_S)
        return self._follow(selection, fields, since or datetime.now(UTC))

    async def _follow(self, selection: Selection, fields: Collection[str], since: datetime) -> TailedRuns:
        told: dict[Place, datetime] = {}
        looked_at = looked_far_at = since
        self._open[selection.workspace_id] += 1
        try:
            for turn in itertools.count():
                now, is_far = datetime.now(UTC), turn % _LONG_AGO_TURNS == 0
                window = replace(selection, since=max(selection.since, now - (_LONG_AGO if is_far else _LATELY)))
                async for arrivals in self._since(window, (looked_far_at if is_far else looked_at) - _WRITTEN_WITHIN):
                    fresh = [run for run in arrivals if told.get(run.key.place) != run.row["arrived_at"]]
                    told |= {run.key.place: run.row["arrived_at"] for run in fresh}
                    for begin in range(0, len(fresh), _READ_AT_ONCE):
                        yield await self._read(selection, fresh[begin : begin + _READ_AT_ONCE], fields)
                looked_at, looked_far_at = now, now if is_far else looked_far_at
                told = {place: at for place, at in told.items() if at >= looked_far_at - _WRITTEN_WITHIN}
                yield []
                await asyncio.sleep(_LOOK_S)
        finally:
            self._open[selection.workspace_id] -= 1

    async def _since(self, window: Selection, at: datetime) -> AsyncGenerator[list[FoundRun], None]:
        is_last = False
        while not is_last:
            arrivals = await self._runs.arrivals(window, at, _ARRIVALS_AT_ONCE)
            yield arrivals
            is_last = len(arrivals) < _ARRIVALS_AT_ONCE
            at = arrivals[-1].row["arrived_at"] if arrivals else at

    async def _read(
        self, selection: Selection, arrivals: Sequence[FoundRun], fields: Collection[str]
    ) -> Sequence[tuple[datetime, Row]]:
        """Read the arrived runs that meet the condition of the selection."""
        times = {run.key.place: run.row["arrived_at"] for run in arrivals}
        matching = await self._runs.matching(selection, [run.key for run in arrivals])
        keys = sorted((run.key for run in matching), key=lambda key: times[key.place])
        rows = await self._reading.read(selection.workspace_id, keys, fields)
        return [(times[row["session_id"], row["start_time"], row["id"]], row) for row in rows]
