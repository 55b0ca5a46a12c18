"""Operating system functions that every embedded engine needs: a user to run as, files that this user can reach, a
session of its own, and locks that the kernel releases when their holder dies in any way.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from moorage.kernel.errors import EngineError

# Engines never run as root: PostgreSQL refuses to, and the others should not. Their user is a bare number, so that no
# user has to be added to the system. systemd leaves 60706..61183 unassigned, adduser stops at 59999, no Debian package
# has this number, and it is below 65536, so user namespaces that map 16 bits have it.
ENGINE_UID = 60990

_POLL_S = 0.01
# Enough for PostgreSQL's first write-ahead log and its tables. With less free space, a failure is most likely caused by
# the disk.
_SCARCE_BYTES = 64 * 2**20


def is_root() -> bool:
    return os.geteuid() == 0


def engine_uid() -> int:
    """Return the user that engines run as: if we are root, a user of their own; otherwise our user."""
    return ENGINE_UID if is_root() else os.geteuid()


class FileLock:
    """A lock on a file, shared or exclusive. It lasts as long as any process has the descriptor open. A server and its
    children inherit it, so the lock proves that one of them still runs.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def try_take(self, *, shared: bool = False) -> bool:
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take(self, bound_s: float, *, shared: bool = False) -> bool:
        give_up_at = time.monotonic() + bound_s
        while not self.try_take(shared=shared):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_POLL_S)
        return True

    @classmethod
    def taken(cls, path: Path, bound_s: float, busy: str) -> Self:
        """Take the lock. Raises EngineError with the text `busy` when others hold it for longer than the time limit."""
        lock = cls(path)
        if not lock.take(bound_s):
            lock.close()
            raise EngineError(busy)
        return lock

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def plain_errors(doing: str, advice: str) -> Iterator[None]:
    """Turn errors of the operating system into messages for the person at the terminal."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error.errno or 0)
        raise EngineError(f"{doing}: {reason}{where}. {advice}") from error


def space_warning(path: Path) -> str:
    free_bytes = shutil.disk_usage(path).free
    return f" Only {free_bytes // 2**20} MB are free on the disk of {path}." if free_bytes < _SCARCE_BYTES else ""


def closed_directory(path: Path) -> Path | None:
    """Return the topmost directory of `path`, itself included, that other users cannot pass through."""
    for directory in reversed([path, *path.parents]):
        with suppress(FileNotFoundError):
            mode = directory.stat().st_mode
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                return directory
    return None


def make_directory(path: Path, mode: int) -> None:
    """Make missing directories.

    As root, the engines' user can pass through the parents, whatever the umask is. Existing directories are never
    changed, since they may not be ours.
    """
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            _make_with_mode(directory, mode if directory == path or not is_root() else 0o755)


def passable_mode() -> int:
    """Return the mode of our directories above an engine's files. The engines' user, if there is one, must pass through
    them.
    """
    return 0o711 if is_root() else 0o700


def make_engine_home(home: Path, name: str, advice: str) -> None:
    """Make the home of engines. Raises EngineError when the engines' user cannot reach it."""
    make_directory(home, passable_mode())
    if is_root() and (closed := closed_directory(home)):
        raise EngineError(
            f"{name} does not run as root but as uid {ENGINE_UID}, which cannot pass through {closed} to reach {home}. {advice}"
        )


def write_private(file: Path, data: bytes) -> None:
    """Replace a file that only its owner may read, atomically and durably."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    output = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(output, data)
        os.fsync(output)
    finally:
        os.close(output)
    new.replace(file)


def make_password(file: Path) -> str:
    """Return the password in a file. If the file is missing, make it durably, readable only for its owner."""
    if not file.exists():
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as output:
            output.write(secrets.token_urlsafe(32))
            output.flush()
            os.fsync(output.fileno())
        new.replace(file)
    return file.read_text()


def _make_with_mode(directory: Path, mode: int) -> None:
    """Make a directory under another name and rename it, so that no process ever sees it closed, not even after a kill.

    If two processes make it at once, the later rename replaces the earlier directory while that is empty.
    """
    new = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        new.chmod(mode)
        new.rename(directory)
    except OSError:
        new.rmdir()
        if not directory.is_dir():  # otherwise another process was first
            raise


def make_engine_directory(path: Path, mode: int) -> None:
    """Make a directory that belongs to the engines' user. An existing one is checked first: in /tmp anyone could have
    made it.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
        path.chmod(mode)
        os.chown(path, engine_uid(), engine_uid() if is_root() else -1, follow_symlinks=False)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != engine_uid() or found.st_mode & 0o022:
        raise EngineError(
            f"{path} is not a directory that only uid {engine_uid()} can write to, as it must be: someone else made it. "
            "Remove it, or choose another state directory with --home."
        )


def give_tree(root: Path, uid: int) -> None:
    """Give a tree to another user. Hard links are refused: as the user who built the tree, someone could have linked in
    a file of another owner.
    """
    for _, _, files, directory_fd in os.fwalk(root):
        os.fchown(directory_fd, uid, uid)
        for name in files:
            if os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_nlink > 1:
                raise EngineError(f"{name} in {root} has more than one name; remove {root} and start again.")
            os.chown(name, uid, uid, dir_fd=directory_fd, follow_symlinks=False)


def open_to_all(trees: Sequence[Path]) -> bool:
    """Return True if every user can read these trees. Checks one file of each directory."""
    samples = [next((path for path in tree.rglob("*") if path.is_file()), tree) for tree in trees]
    return all(closed_directory(path.parent) is None and path.stat().st_mode & stat.S_IROTH for path in samples)


def open_copy(trees: Sequence[Path], target: Path) -> Path:
    """Copy programs, once, to a place where the engines' user can run them, instead of opening others' directories."""
    if target.exists():
        return target
    make_directory(target.parent, 0o755)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=target.parent))
    try:
        for tree in trees:
            shutil.copytree(tree, building / tree.name, ignore=shutil.ignore_patterns("include", "*.a", "__pycache__"))
        # Under a strict umask, installed files are closed to other users: give all users the rights of the owner.
        for path in (building, *building.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)
        building.rename(target)
    except OSError:
        if not target.exists():  # otherwise another process was first
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def open_log(path: Path, size_bytes_max: int) -> int:
    """Return a descriptor that appends to the log. Engines keep the log open, so it is rotated only before a start."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > size_bytes_max:
            path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def last_lines(path: Path, since_bytes: int = 0, count: int = 8) -> str:
    with path.open("rb") as log:
        log.seek(since_bytes)
        lines = log.read(2**20).decode(errors="replace").splitlines()
    return "".join(f"\n  {line}" for line in lines[-count:])


def spawn(
    argv: Sequence[str], environment: dict[str, str], log: int, keep: Sequence[int], directory: Path = Path("/")
) -> subprocess.Popen[bytes]:
    """Start an engine that outlives us, in its own session, where no Ctrl-C of our terminal reaches it.

    It inherits only its log and the locks or sockets in `keep`.
    """
    return subprocess.Popen(
        argv,
        env=environment,
        cwd=directory,  # never our current directory, which the engines' user may be unable to enter
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=keep,
        start_new_session=True,
        umask=0o077,
        user=ENGINE_UID if is_root() else None,
        group=ENGINE_UID if is_root() else None,
        extra_groups=[] if is_root() else None,
    )


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Forget the process, which is meant to outlive this object: Popen would warn that it has no exit status.

    `await_end` reaps the process.
    """
    process.returncode = 0


def command_line(pid: int) -> list[str]:
    """Return the command line of a process of the engines' user, or an empty list.

    This works in containers too, where root may not follow /proc/<pid>/cwd and exe of other users' processes.
    """
    with suppress(OSError):
        if Path(f"/proc/{pid}").stat().st_uid == engine_uid():
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    return []


def kill_mentioning(path: Path) -> None:
    """Kill processes whose command line names the path or a path below it: tools that a killed platform started."""
    for pid in all_pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            if any(word == str(path) or word.startswith(f"{path}/") for word in words):
                os.kill(pid, signal.SIGKILL)


def all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def signal_if_alive(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def await_end(pid: int, bound_s: float) -> None:
    """Wait until the process has ended. Reaps it if it is our child; another zombie is reaped by its own parent."""
    give_up_at = time.monotonic() + bound_s
    while time.monotonic() < give_up_at:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:
            if command_line(pid) in ([], [""]):
                return
        time.sleep(_POLL_S)
