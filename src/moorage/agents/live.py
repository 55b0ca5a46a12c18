"""Runs that execute in this process now, and ways to interrupt them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from moorage.agents.records.runs import CancelAction

_STOP_S = 5


class LiveRuns:
    def __init__(self) -> None:
        self._tasks: dict[UUID, asyncio.Task[Any]] = {}
        self._cancelled: dict[UUID, CancelAction] = {}

    @contextmanager
    def executing(self, run_id: UUID) -> Iterator[None]:
        """Register the current task as the one that executes the run."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[run_id] = task
        try:
            yield
        finally:
            if self._tasks.get(run_id) is task:  # another attempt may have begun here after this one lost its lease
                del self._tasks[run_id]
                self._cancelled.pop(run_id, None)

    async def stop_all(self) -> None:
        await self.stop(list(self._tasks))

    def is_executing(self, run_id: UUID) -> bool:
        return run_id in self._tasks

    def interrupt(self, run_id: UUID, action: CancelAction) -> bool:
        """Cancel the run if it executes here. A second request does not interrupt the clean-up that the first one
        started.
        """
        task = self._tasks.get(run_id)
        if task is None:
            return False
        if run_id not in self._cancelled:
            self._cancelled[run_id] = action
            task.cancel()
        return True

    async def stop(self, run_ids: Iterable[UUID]) -> None:
        """Interrupt the runs that execute here, and wait until they have ended. The wait is limited: a graph may ignore
        it.
        """
        await self.wait([run_id for run_id in run_ids if self.interrupt(run_id, "interrupt")], _STOP_S)

    async def wait(self, run_ids: Iterable[UUID], timeout_s: float) -> None:
        """Wait until the runs have ended, as far as they execute in this process. Returns after the timeout in any case."""
        tasks = [self._tasks[run_id] for run_id in run_ids if run_id in self._tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def cancelled_by(self, run_id: UUID) -> CancelAction | None:
        """Return the user's action that cancelled the run; None for another cause, such as a lost lease or a server
        stop.
        """
        return self._cancelled.get(run_id)
