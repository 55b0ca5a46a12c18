"""The embedded trace store: chDB, run as a process of its own by `moorage.embedded.chdb_server`.

`server.lock` contains the number of that process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from moorage.embedded import processes
from moorage.embedded.engine import STOP_BOUND_S, EmbeddedEngine, make_socket_directory, socket_directory
from moorage.embedded.processes import FileLock

DATABASE = "moorage"
ANSWER_BOUND_S = 5.0

_MODULE = "moorage.embedded.chdb_server"
_SOCKET_NAME = "clickhouse.sock"
# Nothing of our environment, since the store needs none of our secrets.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    # Memory that one statement frees is reused by the next. By default the kernel clears most of it first, which took a
    # twentieth of an export's time. The allocator's profiler is off, since nobody reads its results.
    "JE_MALLOC_CONF": "dirty_decay_ms:5000,prof:false",
}


class EmbeddedClickHouse(EmbeddedEngine):
    """One process's use of the trace store of a home."""

    name = "trace store"
    advice = "Choose another state directory with --home, or set CLICKHOUSE_URL to use a ClickHouse of your own."
    hang_bound_s = 30.0
    stop_signals = ((signal.SIGTERM, STOP_BOUND_S), (signal.SIGKILL, STOP_BOUND_S))

    def __init__(self, home: Path) -> None:
        super().__init__(home, "clickhouse", uses="clickhouse")
        self._socket = socket_directory(self._home, _SOCKET_NAME) / _SOCKET_NAME

    def _spawn(self, log: int, alive: FileLock) -> subprocess.Popen[bytes]:
        """Start the server. If we are root, it starts as root, since the engines' user may be unable to read our
        interpreter.

        It changes to that user once its code is loaded, before it touches data.
        """
        processes.make_password(self._password_file)
        for name in ("data", "spool"):
            processes.make_engine_directory(self._directory / name, 0o700)
        make_socket_directory(self._socket.parent, self._home)
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

    def _address(self) -> str:
        return f"http+unix://default:{self._password_file.read_text()}@{quote(str(self._socket), safe='')}/{DATABASE}"

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(ANSWER_BOUND_S)
            client.connect(str(self._socket))
            client.sendall(b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n")
            return client.recv(1024).startswith(b"HTTP/1.1 200 ")
        return False

    def _unblock(self, alive: FileLock) -> None:
        self._signal(signal.SIGKILL)

    def _server_pid(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int((self._directory / "server.lock").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if _MODULE.encode() in words and os.fsencode(self._directory) in words:
                return pid
        return None
