"""Beats for a worker whose event loop is blocked.

A node of a graph may block the event loop of its process: it computes, or calls a library that waits. Nothing beats
then, and another process would take up what is still at work here. So a thread watches for the worker's beats, and
beats in its place while they stay away. It needs the interpreter for a moment: what holds that too, such as one
long call into C that does not let go of it, still loses its leases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

# Who blocks for longer does not come back, and would keep all that is at work beside it from ever ending.
_SILENCE_S_MAX = 3600.0


class StandIn:
    """The thread."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._beaten_at = time.monotonic()
        self._over = threading.Event()

    def start(self, beat: Callable[[], int]) -> None:
        """`beat` may block: only the thread calls it. It says how many rows it was for."""
        threading.Thread(target=self._watch, args=(beat,), name="stand-in", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def note_beat(self) -> None:
        """The worker has beaten by itself."""
        self._beaten_at = time.monotonic()

    def _watch(self, beat: Callable[[], int]) -> None:
        told_of = 0.0
        while not self._over.wait(self._lease_s / 6):
            beaten_at = self._beaten_at
            silent_s = time.monotonic() - beaten_at
            if self._lease_s / 2 < silent_s < _SILENCE_S_MAX and (rows := _try(beat)) and told_of != beaten_at:
                told_of = beaten_at
                log.warning(
                    "the event loop is blocked; a thread keeps its leases", silent_s=round(silent_s, 1), rows=rows
                )


def _try(beat: Callable[[], int]) -> int:
    try:
        return beat()
    except UnavailableError as error:
        log.warning("cannot beat", error=str(error))
    except Exception:  # the next try may do, and nobody else beats
        log.exception("cannot beat")
    return 0
