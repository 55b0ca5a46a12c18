"""Agents as processes of this machine: started in their own sessions, recorded in files, watched and stopped.

Each file identifies the process by its number and its start time, since the kernel reuses numbers. So a restarted
platform adopts running agents, and `moorage down` finds them without a running platform. The files are in
`agents/<number>/run`, which belongs to the platform's user: agents run as other users, and can write neither there nor
to the folder of their sockets.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from moorage.embedded import processes, processor_groups

_BACKLOG = 2048
_POLL_S = 0.02
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# The state of a connected socket in /proc/net/unix.
_CONNECTED = "03"
_SANDBOX = "bwrap"
# The exit code of a server whose workers crash again and again, so that restarting it is useless.
CRASH_LOOP = 8


@dataclass(frozen=True)
class AgentProcess:
    """A process with all its descendants, identified by its session. `socket` is the file name of its socket."""

    pid: int
    started: str
    socket: str

    @property
    def key(self) -> str:
        """Return a name that is unique on this machine until its next boot."""
        return f"{self.pid}-{self.started}"

    def is_alive(self) -> bool:
        """Return True while the process lives. Reaps it if it is a child of ours that has ended."""
        with suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                return False
        return started_at(self.pid) == self.started

    def gave_up(self) -> bool:
        """Return True if the process ended with CRASH_LOOP. Known only for our children, until `is_alive` has reaped
        them.
        """
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, CRASH_LOOP)
        return False

    def terminate(self) -> None:
        """Ask the server to end. The server asks the processes that it has started."""
        if self.is_alive():
            processes.signal_if_alive(self._server(_session(self.pid)), signal.SIGTERM)

    def _server(self, members: Mapping[int, int]) -> int:
        """Return the process to signal; in a sandbox, it is the server inside.

        The sandbox itself would end at once if told to end; it ends by itself when it is empty.
        """
        pid = self.pid
        while _name(pid) == _SANDBOX and (inner := [child for child, parent in members.items() if parent == pid]):
            pid = min(inner)  # the first: an orphan becomes its sibling
        return pid

    def pause(self) -> None:
        """Tell the server to finish its work and to accept no more."""
        self._tell(signal.SIGURG)

    def resume(self) -> None:
        self._tell(signal.SIGCONT)

    def _tell(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the session. A process without a handler for it is not harmed."""
        if self.is_alive():
            for pid in _session(self.pid):
                with suppress(PermissionError):
                    processes.signal_if_alive(pid, number)

    def kill(self) -> None:
        """Kill the process with its descendants. Without a sandbox, descendants that left its session are not found."""
        kill_all(_session(self.pid))

    def ends_within(self, bound_s: float) -> bool:
        give_up_at = time.monotonic() + bound_s
        while self.is_alive():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_POLL_S)
        return True

    def parts(self, *, has_workers: bool) -> dict[int, list[int]]:
        """Return the processes of each worker by the worker's number. All other processes are listed under `pid`;
        without workers, that is every process.
        """
        members = _session(self.pid)
        server = self._server(members)
        parts: dict[int, list[int]] = {}
        for pid in members:
            worker = _branch(pid, server, members) if has_workers else None
            parts.setdefault(worker or self.pid, []).append(pid)
        return parts


@dataclass(frozen=True)
class Launch:
    """The command and environment of an agent's process. The process reads `given` from standard input."""

    argv: list[str]
    environment: Mapping[str, str]
    folder: Path
    uid: int
    given: bytes = b""


def launch(wanted: Launch, log: int, listening: socket.socket, socket_name: str) -> AgentProcess:
    """Start an agent that outlives the platform. It inherits only its log and the socket that it accepts on."""
    owner = wanted.uid if processes.is_root() else None
    with _file_of(wanted.given) as given:
        child = subprocess.Popen(
            wanted.argv,
            env=dict(wanted.environment),
            cwd=wanted.folder,
            stdin=given,
            stdout=log,
            stderr=log,
            pass_fds=(listening.fileno(),),
            start_new_session=True,
            umask=0o077,
            user=owner,
            group=owner,
            extra_groups=None if owner is None else [],
        )
    processes.let_go(child)
    return AgentProcess(child.pid, started_at(child.pid) or "", socket_name)


@contextmanager
def _file_of(data: bytes) -> Iterator[int]:
    """Return a file in memory: secret data gets no name on a disk, and writing does not wait for a reader."""
    file = os.memfd_create("given", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def write_process(file: Path, process: AgentProcess) -> None:
    """Write the file and rename it into place: a reader sees either the old text or the new one."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(asdict(process)))
    new.replace(file)


def read_process(file: Path) -> AgentProcess | None:
    """Return the process that a file names, or None if it no longer lives."""
    with suppress(FileNotFoundError, ValueError, TypeError):
        process = AgentProcess(**json.loads(file.read_text()))
        return process if process.is_alive() else None
    return None


def stop_agents(home: Path, bound_s: float = 8.0) -> None:
    """Stop all agents of a home at once: ask first, then kill."""
    files = list((home / "agents").glob("*/run/*.pid"))
    running = [process for file in files if (process := read_process(file))]
    for process in running:
        process.terminate()
    give_up_at = time.monotonic() + bound_s
    for process in running:
        process.ends_within(max(0.0, give_up_at - time.monotonic()))
        process.kill()
    for file in files:
        file.unlink(missing_ok=True)
    processor_groups.sweep()


def started_at(pid: int) -> str | None:
    """Return a process's start time as the kernel counts it; None when it does not exist or is a zombie."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in {"Z", "X"} else fields[18]
    return None


def resident_bytes(pids: Iterable[int]) -> int:
    return sum(map(_resident_bytes, pids))


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(PermissionError):
            processes.signal_if_alive(pid, signal.SIGKILL)


def _session(leader: int) -> dict[int, int]:
    """Return the session's processes and their descendants, each with its parent.

    In a sandbox none can be missed: an orphan that left the session becomes a child of the sandbox's first process.
    """
    found = {pid: _parent_and_session(pid) for pid in processes.all_pids()}
    members = {pid for pid, (_, session) in found.items() if session == leader}
    while more := {pid for pid, (parent, _) in found.items() if parent in members} - members:
        members |= more
    return {pid: found[pid][0] for pid in members}


def _parent_and_session(pid: int) -> tuple[int, int]:
    with suppress(OSError, ValueError):
        _, parent, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(parent), int(session)
    return 0, 0


def _branch(pid: int, root: int, parents: Mapping[int, int]) -> int | None:
    """Return the child of `root` that is `pid` or an ancestor of it."""
    for _ in parents:  # at most as many steps as processes, even if they changed while they were read
        if parents.get(pid) == root:
            return pid
        pid = parents.get(pid, 0)
    return None


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


# --- sockets ---


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield the path through its open directory, since the kernel limits the length of a socket's path."""
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen_at(path: Path) -> socket.socket:
    """Listen at the path. Anyone who can enter its directory may connect."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as address:
            listening.bind(address)
        path.chmod(0o666)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def make_socket_directory(front_door: Path, number: int) -> Path:
    """Make the directory for the sockets of a deployment's revisions. It belongs to the platform's user; besides, only
    the front door may enter it.
    """
    parent = front_door / "rev"
    processes.make_directory(parent, 0o710 if processes.is_root() else 0o700)
    if processes.is_root():
        os.chown(parent, -1, processes.ENGINE_UID)
    folder = parent / str(number)
    processes.make_directory(folder, 0o711 if processes.is_root() else 0o700)
    return folder


def count_connections(name: str) -> int:
    """Count open requests at the socket with that file name. The front door keeps no idle connections."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return sum(len(row) == 8 and row[5] == _CONNECTED and row[7].endswith(f"/{name}") for row in rows)
