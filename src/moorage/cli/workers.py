"""`moorage serve --workers N --workers-max M`: several server processes behind one listening socket.

Each process accepts requests and executes runs. A run that one process accepts may be executed by another; streams and
cancellations work across processes. The first process shows whether the server can be started at all; then the others
follow. A process that dies is restarted, after longer and longer pauses. If the processes in one place keep ending, the
server ends, with an exit code for that.

Above N, the number of processes follows the load that they report. A surplus process leaves: it accepts no more
requests or runs, and ends when it has finished its own. Until then it counts as one of the M.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import structlog
import typer

from moorage.cli.children import LEAVE, start_child, stop_children
from moorage.cli.errors import FAILED
from moorage.cli.scaling import Scale, Scaler
from moorage.embedded.agents import CRASH_LOOP
from moorage.kernel.load import Load, last_load

log = structlog.get_logger(__name__)

_PIPE_BYTES = 65_536
_WATCH_S = 0.5
_START_WATCH_S = 0.05
_ENDS_MAX = 5
_ENDS_WITHIN_S = 60.0
_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0)

# The platform's signals to a replaced revision, and to one that is wanted again: see `cli.agent_server`.
_PAUSE, _RESUME = signal.SIGURG, signal.SIGCONT
_STOPS = (signal.SIGTERM, signal.SIGINT)


def run_workers(scale: Scale, arguments: Sequence[str], listening: socket.socket) -> signal.Signals:
    """Keep processes of `moorage <arguments>` running until a signal ends it; return that signal.

    Raises typer.Exit if the first process does not start, or if a process keeps ending.
    """
    command, sockets = [*arguments, "--fd", str(listening.fileno())], [listening.fileno()]
    places = [_Worker(command, sockets, number, follows=scale.follows_load) for number in range(scale.workers_max)]
    crew = _Crew(places, Scaler(scale))
    # A handler may interrupt any code, even another handler. If the lock of an event or a queue were then held by this
    # very thread, it would deadlock; `SimpleQueue.put` is reentrant.
    received = SimpleQueue[signal.Signals]()
    for number in (*_STOPS, _PAUSE, _RESUME, signal.SIGCHLD):
        signal.signal(number, lambda number, _: received.put(signal.Signals(number)))
    try:
        crew.tend()
        while (signaled := _next(received, crew.watch_s)) not in _STOPS:
            if signaled == _PAUSE:
                crew.pause()
            elif signaled == _RESUME:
                crew.resume()
            crew.tend()
        return signaled
    finally:
        crew.stop()


def _next(received: SimpleQueue[signal.Signals], within_s: float) -> signal.Signals | None:
    try:
        return received.get(timeout=within_s)
    except Empty:
        return None


class _Worker:
    """A place for one process: the process that works in it, and when earlier ones have ended."""

    def __init__(self, command: Sequence[str], sockets: Sequence[int], number: int, *, follows: bool) -> None:
        self._command = command
        self._variables = {"MOORAGE_WORKER": str(number), "MOORAGE_WORKERS_MAX": "1"}
        self._follows = follows
        self._sockets = sockets
        self._ended_at: deque[float] = deque(maxlen=_ENDS_MAX)
        self._told: int | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.load = Load()
        self.serves = False
        self.leaves = False
        self.has_served = False

    def start(self) -> None:
        told, tell = os.pipe()
        os.set_blocking(told, False)
        self._told = told
        try:
            self.process = start_child(self._command, self._sockets, tell, self._variables)
        finally:
            os.close(tell)

    def look(self) -> int | None:
        """Return the exit code of a process that has ended since the last call, and free its place."""
        if self.process is None:
            return None
        self._hear()
        code = self.process.poll()
        if code is not None:
            if self.leaves:
                self._clear()
                return None
            self._ended_at.append(time.monotonic())
            self._clear()
        return code

    def _hear(self) -> None:
        """Read the load of the process. A process that does not follow its load closes the pipe and reports no more."""
        if self._told is None:
            return
        with suppress(BlockingIOError):
            if not (told := os.read(self._told, _PIPE_BYTES)):
                return
            self.serves = self.has_served = True
            self.load = last_load(told) or self.load
            if not self._follows:
                self._let_go()

    def _let_go(self) -> None:
        if self._told is not None:
            os.close(self._told)
        self._told = None

    @property
    def recent_ends(self) -> int:
        return sum(time.monotonic() - ended_at < _ENDS_WITHIN_S for ended_at in self._ended_at)

    @property
    def is_due(self) -> bool:
        """Return True if a new process should be started in this place."""
        if self.process is not None or not self._ended_at:
            return self.process is None
        return time.monotonic() >= self._ended_at[-1] + _BACK_OFF_S[max(self.recent_ends, 1) - 1]

    def tell(self, number: signal.Signals) -> None:
        if self.process is not None and self.serves:
            self.process.send_signal(number)

    def leave(self) -> None:
        self.leaves = True
        self.tell(LEAVE)

    def end(self) -> None:
        if self.process is not None:
            stop_children([self.process])
            self._clear()

    def _clear(self) -> None:
        if self.process is not None and self.process.stdin:
            self.process.stdin.close()
        self._let_go()
        self.process, self.serves, self.leaves, self.load = None, False, False, Load()


class _Crew:
    """All workers, and the reaction to workers that end."""

    def __init__(self, workers: Sequence[_Worker], scaler: Scaler) -> None:
        self._workers = workers
        self._scaler = scaler
        self._count = 0
        self._is_paused = False

    @property
    def _has_served(self) -> bool:
        return any(worker.has_served for worker in self._workers)

    @property
    def watch_s(self) -> float:
        """Return the seconds until the next check, if no signal comes earlier."""
        starts = any(worker.process is not None and not worker.serves for worker in self._workers)
        return _START_WATCH_S if starts else _WATCH_S

    def tend(self) -> None:
        """Check all workers once. Raises typer.Exit when continuing is useless."""
        for worker in self._workers:
            process = worker.process
            if process is not None and (code := worker.look()) is not None:
                self._judge(worker, process.pid, code)
        if self._is_paused:
            return
        if self._has_served:
            self._fill(self._wanted())
        else:
            self._fill(1)

    def _wanted(self) -> int:
        loads = [worker.load for worker in self._workers if worker.serves and not worker.leaves]
        count = self._scaler.count(time.monotonic(), loads)
        if self._count not in {0, count}:
            log.info("the load changes the number of workers", workers=count, before=self._count)
        self._count = count
        return count

    def _fill(self, count: int) -> None:
        """Start or dismiss workers to reach the count. A place whose process keeps ending is not
        replaced by another.
        """
        stay = [worker for worker in self._workers if worker.process is not None and not worker.leaves]
        empty = [worker for worker in self._workers if worker.process is None]
        for worker in empty[: max(0, count - len(stay))]:
            if worker.is_due:
                worker.start()
        idlest = sorted((worker for worker in stay if worker.serves), key=lambda worker: worker.load.runs)
        for worker in idlest[: max(0, len(stay) - count)]:
            worker.leave()

    def _judge(self, worker: _Worker, pid: int, code: int) -> None:
        if not self._has_served:  # the process has already reported the reason
            raise typer.Exit(max(code, FAILED))
        if worker.recent_ends == _ENDS_MAX:
            log.critical("a worker keeps ending", times=_ENDS_MAX, within_s=_ENDS_WITHIN_S, code=code)
            raise typer.Exit(CRASH_LOOP)
        log.error("a worker has ended and is started again", pid=pid, code=code)

    def pause(self) -> None:
        """Make the serving workers take no more runs, and start no others.

        A worker that is still starting cannot receive the signal and would take runs, so it is ended.
        """
        self._is_paused = True
        self.tend()
        for worker in self._workers:
            if worker.serves:
                worker.tell(_PAUSE)
            else:
                worker.end()

    def resume(self) -> None:
        self._is_paused = False
        for worker in self._workers:
            worker.tell(_RESUME)

    def stop(self) -> None:
        stop_children([worker.process for worker in self._workers if worker.process is not None])
