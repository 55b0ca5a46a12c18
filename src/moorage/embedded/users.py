"""Operating-system users of agents. One register per machine assigns them, whatever home a deployment is in.

/var/lib/moorage/users/lock     held alone while the register is read or changed; the kernel releases it
/var/lib/moorage/users/<uid>    the folder of the deployment that has this user
<folder>/run/user               the deployment's own note of its user

An entry is valid only while the note agrees with it. So a deleted home frees its users, a moved home keeps them, and a copy
of a home gets other users.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from moorage.embedded import processes
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import EngineError

# systemd and Debian leave these unassigned, and user namespaces that map 16 bits have them.
AGENT_UIDS = tuple(uid for uid in range(60706, 61184) if uid != processes.ENGINE_UID)
_LOCK_S = 60.0
_END_S = 20.0
_POLL_S = 0.02


class Users:
    """The register of users, in a folder that belongs to root; by default the machine's own register."""

    def __init__(self, register: Path = Path("/var/lib/moorage/users")) -> None:
        self._register = register

    def claim(self, folder: Path) -> int:
        """Return the user of the deployment in this folder; no other deployment of the machine has the same user.
        Idempotent.

        The deployment's files are given to that user. Raises EngineError when every user is taken.
        """
        folder = folder.resolve()
        with self._locked():
            before = _noted(folder) or _owner(folder)
            uid = before if before and self._holder(before) in {None, folder} else self._find_free()
            if self._holder(uid) != folder:
                _write(self._register / str(uid), str(folder))
                if before and before != uid:
                    _give_away(folder, uid)
                _write(_note(folder), str(uid))
        return uid

    def free(self, uid: int, folder: Path) -> None:
        """Free the user of a removed folder. None of its processes may run any more."""
        with self._locked():
            if self._holder(uid) in {None, folder.resolve()}:
                (self._register / str(uid)).unlink(missing_ok=True)

    def _find_free(self) -> int:
        for uid in AGENT_UIDS:
            is_ours = (self._register / str(uid)).exists()
            if self._holder(uid) is None and (is_ours or not processes_of(uid)):
                if is_ours:  # left by a deleted home: its processes belong to nobody
                    end_all(uid)
                return uid
        raise EngineError(
            f"All {len(AGENT_UIDS)} operating-system users for deployments are taken on this machine: delete a deployment."
        )

    def _holder(self, uid: int) -> Path | None:
        with suppress(FileNotFoundError):
            folder = Path((self._register / str(uid)).read_text())
            return folder if _noted(folder) == uid else None
        return None

    def _locked(self) -> FileLock:
        processes.make_directory(self._register, 0o700)
        lock = FileLock(self._register / "lock")
        if not lock.take(_LOCK_S):
            lock.close()
            raise EngineError(f"Another process holds {self._register}/lock; try again later.")
        return lock


def user_of(folder: Path) -> int:
    """Return the user that a deployment has claimed; our own user if we are not root.

    Raises EngineError when it has claimed none.
    """
    if not processes.is_root():
        return os.geteuid()
    if uid := _noted(folder):
        return uid
    raise EngineError(f"The deployment in {folder} has no operating-system user.")


def processes_of(uid: int) -> list[int]:
    """Return live processes of a user, in any session, and in any namespace of pids below ours."""
    return [pid for pid in processes.all_pids() if _runs_as(pid, uid)]


def end_all(uid: int) -> None:
    """End every process of an agents' user.

    A process of that user sends one signal to all of them at once: a loop over their numbers would lose against a
    process that keeps forking. Raises EngineError when some are left.
    """
    if uid not in AGENT_UIDS:
        raise ValueError(f"{uid} is no agents' user")
    give_up_at = time.monotonic() + _END_S
    while processes_of(uid):
        if time.monotonic() > give_up_at:
            raise EngineError(f"Processes of uid {uid} do not end.")
        subprocess.run(
            ["/bin/sh", "-c", "kill -9 -1"],
            check=False,
            cwd="/",
            env={},
            capture_output=True,
            user=uid,
            group=uid,
            extra_groups=[],
        )
        time.sleep(_POLL_S)


def _runs_as(pid: int, uid: int) -> bool:
    with suppress(OSError):
        if Path(f"/proc/{pid}").stat().st_uid == uid:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state not in {"Z", "X"}
    return False


def _note(folder: Path) -> Path:
    return folder / "run" / "user"


def _noted(folder: Path) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        uid = int(_note(folder).read_text())
        return uid if uid in AGENT_UIDS else None
    return None


def _owner(folder: Path) -> int | None:
    """Return the user of a deployment that an earlier version made, and that has no note yet."""
    with suppress(FileNotFoundError):
        uid = (folder / "home").lstat().st_uid
        return uid if uid in AGENT_UIDS else None
    return None


def _give_away(folder: Path, uid: int) -> None:
    """Give files below the folder that belong to an agents' user to another user. Follows no link."""
    for _, _, files, directory_fd in os.fwalk(folder):
        if os.fstat(directory_fd).st_uid in AGENT_UIDS:
            os.fchown(directory_fd, uid, uid)
        for name in files:
            if os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_uid in AGENT_UIDS:
                os.chown(name, uid, uid, dir_fd=directory_fd, follow_symlinks=False)


def _write(file: Path, text: str) -> None:
    """Write the file to the disk and rename it into place: readers see all of it or nothing."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    new.replace(file)
