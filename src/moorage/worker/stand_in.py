"""Beats for a worker whose event loop is blocked.

A node of a graph may block the event loop of its process, by computing or by calling a library that waits. Then the
worker cannot beat, and another process would claim rows that are still being worked on here. So a thread watches the
worker's beats, and beats in its place while they stay away. The thread needs Python's global interpreter lock: a long
call into C that does not release it still loses the leases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

# A loop that is blocked for longer is not expected to recover. Further beats would only keep other processes from
# taking over its work.
_SILENCE_S_MAX = 3600.0


class StandIn:
    """The thread that beats in place of the worker."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._beaten_at = time.monotonic()
        self._over = threading.Event()

    def start(self, beat: Callable[[], int]) -> None:
        """Start the thread. `beat` returns for how many rows it has beaten. It runs in the thread, so it may block."""
        threading.Thread(target=self._watch, args=(beat,), name="stand-in", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def note_beat(self) -> None:
        """Note that the worker has beaten by itself."""
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
    except Exception:  # the next try may succeed, and nobody else beats
        log.exception("cannot beat")
    return 0
