"""Use of a home's engine, recorded by two locks that the kernel releases when their holder dies in any way:

- `in-use.lock`: held shared by every process that uses the engine. A process that can take it alone is the last one.
- `engine.lock`: held alone while a process starts or stops the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moorage.embedded.processes import FileLock


class EngineUse:
    """One process's use of an engine. `name` is for messages; `bound_s` limits how long others may start or stop it."""

    def __init__(self, directory: Path, name: str, bound_s: float, stop_engine: Callable[[], None]) -> None:
        self._directory = directory
        self._name = name
        self._bound_s = bound_s
        self._stop_engine = stop_engine
        self._use: FileLock | None = None

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Keep others out while the engine is started, and begin to use it. Idempotent. If the start fails, the use
        ends.
        """
        with self._serialised():
            self._begin()
            try:
                yield
            except BaseException:
                self._end()
                raise

    def end(self) -> None:
        """End this use, and stop the engine when no live process uses it."""
        with self._serialised():
            self._end()

    def _serialised(self) -> FileLock:
        busy = f"Another process keeps starting or stopping {self._name} of {self._directory}; try again later."
        return FileLock.taken(self._directory / "engine.lock", self._bound_s, busy)

    def _begin(self) -> None:
        if self._use is None:
            self._use = FileLock(self._directory / "in-use.lock")
            # Taken alone only under engine.lock, which we hold, and released before it.
            self._use.try_take(shared=True)

    def _end(self) -> None:
        use = self._use or FileLock(self._directory / "in-use.lock")
        self._use = None
        with use:
            if use.try_take():
                self._stop_engine()
