"""Processes for runs on their last attempt.

A run may crash its process, and with it all other runs there. That costs the others an attempt, but never their last
one: each run makes its last attempt in a process that executes nothing else.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

import structlog

from moorage.cli.children import start_child, stop_children

log = structlog.get_logger(__name__)

# Each process takes the memory of a server.
_PROCESSES_MAX = 4
# A process needs this time to start and to claim runs; only then is it clear whether another one is needed.
_PAUSE_S = 5
_REST_S = 5


class Apart:
    """The separate processes that one server has started for last attempts. Each ends by itself when no run is left."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._running: list[subprocess.Popen[bytes]] = []
        self._started_at = -math.inf

    def start_another(self) -> None:
        """Start another process, if there is room and enough time has passed. Call it repeatedly while runs wait."""
        self._running = [process for process in self._running if process.poll() is None]
        if len(self._running) < _PROCESSES_MAX and time.monotonic() > self._started_at + _PAUSE_S:
            log.warning("a lost run gets its last attempt in a separate process")
            self._running.append(start_child(self._arguments))
            self._started_at = time.monotonic()

    def stop(self) -> None:
        stop_children(self._running)


def unreachable_socket() -> socket.socket:
    """Return a listening socket that nobody can reach: its path is removed before this returns."""
    listening = socket.socket(socket.AF_UNIX)
    with TemporaryDirectory(prefix="moorage-") as folder:
        listening.bind(f"{folder}/apart")
    listening.listen()
    return listening


async def end_when_idle(is_idle: Callable[[], bool]) -> None:
    """End this process, as a signal would, once it has had nothing to do for a while."""
    rested_s = 0
    while rested_s < _REST_S:
        await asyncio.sleep(1)
        rested_s = rested_s + 1 if is_idle() else 0
    os.kill(os.getpid(), signal.SIGTERM)
