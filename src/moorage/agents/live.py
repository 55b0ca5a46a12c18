"""Runs that execute in this process right now: how to interrupt one, and how to await its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moorage.agents.records import CancelAction, RunFailure

_STOP_S = 5


@dataclass(frozen=True)
class Outcome:
    """What `wait` and `join` answer: the last values as JSON, or the failure."""

    values: bytes
    failure: RunFailure | None = None


class LiveRuns:
    def __init__(self) -> None:
        self._tasks: dict[UUID, asyncio.Task[Any]] = {}
        self._cancelled: dict[UUID, CancelAction] = {}
        self._expected: dict[UUID, list[asyncio.Future[Outcome]]] = {}

    @contextmanager
    def executing(self, run_id: UUID) -> Iterator[None]:
        """Registers the current task as the one that executes the run."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[run_id] = task
        try:
            yield
        finally:
            del self._tasks[run_id]
            self._cancelled.pop(run_id, None)

    def is_executing(self, run_id: UUID) -> bool:
        return run_id in self._tasks

    def interrupt(self, run_id: UUID, action: CancelAction) -> bool:
        """Cancel the run if it executes here. A second request does not cancel the clean-up of the first."""
        task = self._tasks.get(run_id)
        if task is None:
            return False
        if run_id not in self._cancelled:
            self._cancelled[run_id] = action
            task.cancel()
        return True

    async def stop(self, run_ids: Iterable[UUID]) -> None:
        """Interrupt the runs that execute here, and wait (not for ever: a graph may ignore it) until they have ended."""
        tasks = [self._tasks[run_id] for run_id in run_ids if self.interrupt(run_id, "interrupt")]
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)

    def cancelled_by(self, run_id: UUID) -> CancelAction | None:
        """The user's action that cancelled the run; None when something else did (a lost lease, a stop)."""
        return self._cancelled.get(run_id)

    @contextmanager
    def expect(self, run_id: UUID) -> Iterator[asyncio.Future[Outcome]]:
        """A future that is done when the run ends in this process. Enter before the run starts."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(run_id, []).append(future)
        try:
            yield future
        finally:
            self._expected[run_id].remove(future)
            if not self._expected[run_id]:
                del self._expected[run_id]

    def settle(self, run_id: UUID, outcome: Outcome) -> None:
        for future in self._expected.get(run_id, ()):
            if not future.done():
                future.set_result(outcome)
