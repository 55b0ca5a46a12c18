"""`moorage serve --workers N`: several server processes behind one listening socket.

Each accepts requests and executes runs; what one accepts another may execute, and streams and cancellations cross
between them. One that dies is started again.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Sequence

import structlog

from moorage.cli.children import start_child, stop_children

log = structlog.get_logger(__name__)

_WATCH_S = 0.5


def run_workers(count: int, arguments: Sequence[str], listening: socket.socket) -> signal.Signals | None:
    """Keep `count` processes of `moorage <arguments>` at work until a signal comes; that signal."""
    stop = threading.Event()
    received: list[signal.Signals] = []

    def on_signal(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    command, sockets = [*arguments, "--fd", str(listening.fileno())], [listening.fileno()]
    workers = [start_child(command, sockets) for _ in range(count)]
    try:
        while not stop.wait(_WATCH_S):
            for position, worker in enumerate(workers):
                if worker.poll() is not None:
                    log.error("a worker has ended and is started again", pid=worker.pid, code=worker.returncode)
                    workers[position] = start_child(command, sockets)
    finally:
        stop_children(workers)
    return received[0] if received else None
