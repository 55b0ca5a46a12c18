"""The owner of a home: the one process that runs its platform. Other commands find it by a file.

A lock, which the kernel drops however its holder dies, keeps other processes out. The file names the owner by its
process number and start time: the number alone would not identify it, since the kernel reuses numbers.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from moorage.embedded import processes
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import ConflictError

_FILE = "platform.json"
_LOCK = "platform.lock"
_POLL_S = 0.05
_ADVICE = "Choose another state directory with --home."


@dataclass(frozen=True)
class Owner:
    """The process that runs a platform. `since` differs between starts, also of one process."""

    pid: int
    process_started: str
    url: str
    since: str
    serves: bool

    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.process_started

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            processes.signal_if_alive(self.pid, number)

    def ends_within(self, bound_s: float) -> bool:
        give_up_at = time.monotonic() + bound_s
        while self.is_alive():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_POLL_S)
        return True


class Ownership:
    """The lock and file that the owner holds."""

    def __init__(self, file: Path, owner: Owner) -> None:
        self._file = file
        self._owner = owner
        self._write()

    def tell_that_it_serves(self) -> None:
        self._owner = replace(self._owner, serves=True)
        self._write()

    def _write(self) -> None:
        """Write the file and rename it into place: a reader sees the old text or the new one."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self._owner)))
        new.replace(self._file)


@contextmanager
def owned(home: Path, url: str) -> Iterator[Ownership]:
    """Make this process the owner of the home. Raises ConflictError that names the current owner."""
    with processes.plain_errors(f"The platform cannot use {home}", _ADVICE):
        processes.make_directory(home, 0o711 if processes.is_root() else 0o700)
        lock = FileLock(home / _LOCK)
        if not lock.try_take():
            lock.close()
            raise ConflictError(_who_runs(home))
        since, started = datetime.now(UTC).isoformat(timespec="microseconds"), _start_of(os.getpid()) or ""
        ownership = Ownership(home / _FILE, Owner(os.getpid(), started, url, since, serves=False))
    with lock:
        try:
            yield ownership
        finally:
            (home / _FILE).unlink(missing_ok=True)


def find_owner(home: Path) -> Owner | None:
    """Return the live process that runs the platform of the home, or None."""
    with suppress(FileNotFoundError, ValueError, TypeError):
        owner = Owner(**json.loads((home / _FILE).read_text()))
        return owner if owner.is_alive() else None
    return None


def _who_runs(home: Path) -> str:
    owner = find_owner(home)
    who = f"at {owner.url} (process {owner.pid}, since {owner.since[:19]}Z)" if owner else "but is just starting"
    return f"moorage already runs for {home} {who}. `moorage down` stops it, --home chooses another state directory"


def _start_of(pid: int) -> str | None:
    """Return the process's start time as the kernel counts it, or None when there is no such
    process, or only a zombie.
    """
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in {"Z", "X"} else fields[18]
    return None
