"""The life of an embedded engine: the first process that uses it starts it, further ones adopt it, the last one stops it.

Three locks record its whole state, and the kernel releases each lock when its holder dies in any way:

- `in-use.lock`: held shared by every process that uses the engine. A process that can take it alone is the last one.
- `engine.lock`: held alone while a process starts or stops the engine.
- `server.lock`: inherited by the engine's process and all its children. If it can be taken, none of them lives.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from moorage.embedded import processes
from moorage.embedded.engine_use import EngineUse
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import EngineError

START_BOUND_S = 120.0  # opening large data, or replaying PostgreSQL's log after a crash, takes well below this
STOP_BOUND_S = 10.0
LOG_BYTES_MAX = 10 * 2**20
SOCKET_PATH_BYTES_MAX = 100  # the kernel's limit is 107

_POLL_S = 0.01


class EmbeddedEngine(ABC):
    """One process's use of an engine of a home. Several uses share the engine, even within one process."""

    name: ClassVar[str]
    advice: ClassVar[str]
    hang_bound_s: ClassVar[float]  # a server that lives this long without answering is unblocked
    stop_signals: ClassVar[Sequence[tuple[signal.Signals, float]]]  # each with the time that it is given

    def __init__(self, home: Path, folder: str, *, uses: str = ".") -> None:
        """Make a use. `folder` of the home contains the engine's files; `uses`, a path below the home, the locks of its
        uses.
        """
        self._home = home.expanduser().resolve()
        self._directory = self._home / folder
        self._password_file = self._directory / "password"
        self._log = self._directory / "log"
        self._leaving = threading.Event()
        self._use = EngineUse(
            self._home / uses, f"the embedded {self.name}", START_BOUND_S + STOP_BOUND_S, self._stop_server
        )

    def start(self) -> str:
        """Start the server or adopt the running one, and return its URL or conninfo once it answers. Call it again to
        restart a dead server.
        """
        with processes.plain_errors(f"The embedded {self.name} cannot start in {self._home}", self.advice):
            self._leaving.clear()
            processes.make_engine_home(self._home, f"The embedded {self.name}", self.advice)
            # Owned by us and not by the engine, which then cannot replace the files beside the data (password, log,
            # locks).
            processes.make_directory(self._directory, processes.passable_mode())
            with self._use.begin():
                self._bring_up()
                return self._address()

    def stop(self) -> None:
        """End this use, and stop the server when no live process uses it any more, including a server left by a killed
        process.

        Ends a `start` that another thread is waiting in.
        """
        self._leaving.set()
        with processes.plain_errors(f"The embedded {self.name} in {self._home} cannot be stopped", ""):
            if self._directory.exists():
                self._use.end()

    # --- what each engine supplies ---

    @abstractmethod
    def _address(self) -> str:
        """Return the URL or conninfo of the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if the server accepts clients."""

    @abstractmethod
    def _spawn(self, log: int, alive: FileLock) -> subprocess.Popen[bytes]:
        """Prepare the data and start the server, which inherits the lock."""

    @abstractmethod
    def _unblock(self, alive: FileLock) -> None:
        """End processes that hold the data but will never answer."""

    @abstractmethod
    def _server_pid(self) -> int | None:
        """Return the process of the server if it runs. A number from a file is checked, since the kernel reuses
        numbers.
        """

    # --- up ---

    def _bring_up(self) -> None:
        give_up_at = time.monotonic() + START_BOUND_S
        hangs_at = time.monotonic() + self.hang_bound_s
        with self._server_lock() as alive:
            while not alive.try_take():
                if self._answers():
                    return
                now = time.monotonic()
                if now > hangs_at:
                    self._unblock(alive)
                if self._leaving.is_set() or now > give_up_at:
                    raise EngineError(
                        f"The embedded {self.name} in {self._home} runs but does not answer. Its log ends with:"
                        + processes.last_lines(self._log)
                    )
                time.sleep(_POLL_S)
            self._launch(alive)

    def _launch(self, alive: FileLock) -> None:
        log = processes.open_log(self._log, LOG_BYTES_MAX)
        try:
            log_starts_at = os.fstat(log).st_size
            server = self._spawn(log, alive)
        finally:
            os.close(log)
        try:
            self._await_answer(server, log_starts_at)
        finally:
            processes.let_go(server)

    def _await_answer(self, server: subprocess.Popen[bytes], log_starts_at: int) -> None:
        give_up_at = time.monotonic() + START_BOUND_S
        while not self._answers():
            ended = server.poll() is not None
            if ended or time.monotonic() > give_up_at:
                raise EngineError(
                    f"The embedded {self.name} in {self._home} {'ended at its start' if ended else 'does not answer'}."
                    f"{processes.space_warning(self._home)} {self.advice} Its log says:"
                    + processes.last_lines(self._log, log_starts_at)
                )
            time.sleep(_POLL_S)

    # --- down ---

    def _stop_server(self) -> None:
        pid = self._server_pid()
        with self._server_lock() as alive:
            if not (alive.try_take() or self._end_server(alive)):
                raise EngineError(f"The embedded {self.name} in {self._home} (pid {pid or 'unknown'}) does not end.")
        if pid is not None:
            processes.await_end(pid, bound_s=1.0)

    def _end_server(self, alive: FileLock) -> bool:
        """Return True if the server has ended."""
        return self._end_by_signals(alive)

    def _end_by_signals(self, alive: FileLock) -> bool:
        """Send one signal after the other until the server has ended. Returns True once it has."""
        for number, bound_s in self.stop_signals:
            self._signal(number)
            if alive.take(bound_s):
                return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        if pid := self._server_pid():
            processes.signal_if_alive(pid, number)

    def _server_lock(self) -> FileLock:
        return FileLock(self._directory / "server.lock")


def socket_directory(home: Path, socket_name: str) -> Path:
    """Return a directory in the home; or in /tmp, if the path is too long for a socket or has a comma, which separates
    hosts in a conninfo.
    """
    inside = home / "run"
    if len(os.fsencode(inside / socket_name)) <= SOCKET_PATH_BYTES_MAX and "," not in str(inside):
        return inside
    return Path(f"/tmp/moorage-{os.geteuid()}-{short_hash(home)}")  # noqa: S108  its owner is verified before use


def make_socket_directory(directory: Path, home: Path) -> None:
    """Make the directory. If it is in root's home, agents can pass through it, since they run as users of their own and
    connect to PostgreSQL, which its password protects.

    Only its owner and root can connect to the socket of the trace store.
    """
    mode = 0o711 if directory.is_relative_to(home) and processes.is_root() else 0o700
    processes.make_engine_directory(directory, mode)


def short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
