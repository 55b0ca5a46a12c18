"""Keeps an engine alive while it is used: restarts it when it has died."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from moorage.kernel.errors import EngineError

log = structlog.get_logger(__name__)

_WATCH_S = 2.0


class Engine(Protocol):
    def start(self) -> object:
        """Start the engine, or do nothing when it runs and answers. Raises EngineError."""


@contextmanager
def watched(engine: Engine) -> Iterator[None]:
    """Call `start` now and then in a thread: it restarts a dead engine, and takes a millisecond for a running one."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_WATCH_S):
            try:
                engine.start()
            except EngineError as error:  # it may only be slow, after a crash or on a busy machine
                log.warning("an embedded engine does not run yet; it is started again", reason=str(error))

    watcher = threading.Thread(target=watch, name="engine-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(_WATCH_S)  # it may wait in `start`, which the engine's `stop` ends
