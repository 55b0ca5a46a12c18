"""The embedded trace store: chDB, run as a process of its own by `moorage.embedded.chdb_server`, with the same life
cycle as the embedded PostgreSQL. Three locks in its directory record its whole state, and the kernel releases each lock
when its holder dies:

- `in-use.lock`: held shared by every process that uses the store. A process that can take it alone is the last one.
- `engine.lock`: held alone while a process starts or stops the store.
- `server.lock`: inherited by the store's process, whose number is in the file. If it can be taken, no store runs.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from moorage.embedded import processes
from moorage.embedded.engine_use import EngineUse
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import EngineError

DATABASE = "moorage"
START_BOUND_S = 120.0  # opening a large store takes well under this
HANG_BOUND_S = 30.0
ANSWER_BOUND_S = 5.0
STOP_BOUND_S = 10.0
LOG_BYTES_MAX = 10 * 2**20
SOCKET_PATH_BYTES_MAX = 100  # the kernel allows 107

_POLL_S = 0.02
_MODULE = "moorage.embedded.chdb_server"
_SOCKET_NAME = "clickhouse.sock"
_ADVICE = "Choose another state directory with --home, or set CLICKHOUSE_URL to use a ClickHouse of your own."
# Nothing of our environment: the store needs none of our secrets.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    # Memory that one statement frees is reused by the next; by default the kernel clears most of it first, which took a
    # twentieth of an export's time. The allocator's profiler is off, since nobody reads it.
    "JE_MALLOC_CONF": "dirty_decay_ms:5000,prof:false",
}


class EmbeddedClickHouse:
    """One process's use of the trace store of a home. Several uses share the store, also within one process."""

    def __init__(self, home: Path) -> None:
        self._home = home.expanduser().resolve()
        self._directory = self._home / "clickhouse"
        self._password_file = self._directory / "password"
        self._log = self._directory / "log"
        self._socket = _socket_directory(self._home) / _SOCKET_NAME
        self._use = EngineUse(self._directory, "the trace store", START_BOUND_S + STOP_BOUND_S, self._stop_server)

    def start(self) -> str:
        """Start the store or adopt the running one, and return its URL once it answers. Call it again to restart a dead
        store.
        """
        with processes.plain_errors(f"The embedded trace store cannot start in {self._home}", _ADVICE):
            processes.make_engine_home(self._home, "The trace store", _ADVICE)
            # Owned by us and not by the engine, which can then not replace the files beside the data (password, log,
            # locks).
            processes.make_directory(self._directory, processes.passable_mode())
            with self._use.begin():
                self._bring_up()
                return self._url()

    def stop(self) -> None:
        """End this use, and stop the store when no live process uses it any more, including a store left by a killed
        process.
        """
        with processes.plain_errors(f"The embedded trace store in {self._home} cannot be stopped", ""):
            if self._directory.exists():
                self._use.end()

    # --- up ---

    def _bring_up(self) -> None:
        give_up_at = time.monotonic() + START_BOUND_S
        hangs_at = time.monotonic() + HANG_BOUND_S
        with FileLock(self._directory / "server.lock") as alive:
            while not alive.try_take():
                if self._answers():
                    return
                now = time.monotonic()
                if now > hangs_at:
                    self._signal(signal.SIGKILL)
                if now > give_up_at:
                    raise EngineError(
                        f"The embedded trace store in {self._home} runs but does not answer. Its log ends with:"
                        + processes.last_lines(self._log)
                    )
                time.sleep(_POLL_S)
            self._launch(alive)

    def _launch(self, alive: FileLock) -> None:
        processes.make_password(self._password_file)
        for name in ("data", "spool"):
            processes.make_engine_directory(self._directory / name, 0o700)
        # Agents pass through here to the PostgreSQL beside; the store's socket itself is open only to its owner and
        # root.
        in_home = self._socket.is_relative_to(self._home)
        mode = 0o711 if in_home and processes.is_root() else 0o700
        processes.make_engine_directory(self._socket.parent, mode)
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

    def _spawn(self, log: int, alive: FileLock) -> subprocess.Popen[bytes]:
        """Start the server. Under root it starts as root, since the engines' user may be unable to read our
        interpreter. It changes to that user once its code is loaded, before it touches data.
        """
        arguments = [str(self._directory), str(self._socket), DATABASE, str(processes.engine_uid())]
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, *arguments],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(alive.fd,),
            start_new_session=True,
            umask=0o077,
        )
        os.ftruncate(alive.fd, 0)
        os.pwrite(alive.fd, str(server.pid).encode(), 0)
        return server

    def _await_answer(self, server: subprocess.Popen[bytes], log_starts_at: int) -> None:
        give_up_at = time.monotonic() + START_BOUND_S
        while not self._answers():
            ended = server.poll() is not None
            if ended or time.monotonic() > give_up_at:
                raise EngineError(
                    f"The embedded trace store in {self._home} {'ended at its start' if ended else 'does not answer'}."
                    f"{processes.space_warning(self._home)} {_ADVICE} Its log says:"
                    + processes.last_lines(self._log, log_starts_at)
                )
            time.sleep(_POLL_S)

    # --- talking to it ---

    def _url(self) -> str:
        return f"http+unix://default:{self._password_file.read_text()}@{quote(str(self._socket), safe='')}/{DATABASE}"

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(ANSWER_BOUND_S)
            client.connect(str(self._socket))
            client.sendall(b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n")
            return client.recv(1024).startswith(b"HTTP/1.1 200 ")
        return False

    # --- down ---

    def _stop_server(self) -> None:
        pid = self._server_pid()
        with FileLock(self._directory / "server.lock") as alive:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if alive.try_take():
                    break
                self._signal(number)
                if alive.take(STOP_BOUND_S):
                    break
            else:
                raise EngineError(f"The embedded trace store in {self._home} (pid {pid or 'unknown'}) does not end.")
        if pid is not None:
            processes.await_end(pid, bound_s=1.0)

    def _signal(self, number: signal.Signals) -> None:
        if pid := self._server_pid():
            processes.signal_if_alive(pid, number)

    def _server_pid(self) -> int | None:
        """Return the process that server.lock names, if it is the store: the kernel reuses numbers."""
        with suppress(OSError, ValueError):
            pid = int((self._directory / "server.lock").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if _MODULE.encode() in words and os.fsencode(self._directory) in words:
                return pid
        return None


def _socket_directory(home: Path) -> Path:
    """Return a directory in the home, or in /tmp if the path is too long for a socket."""
    inside = home / "run"
    if len(os.fsencode(inside / _SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX:
        return inside
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:8]
    return Path(f"/tmp/moorage-{os.geteuid()}-{name}")  # noqa: S108  its owner is verified before use
