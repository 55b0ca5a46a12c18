"""Load of one server process, reported to the parent process, which decides how many processes run."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Load:
    """Runs that this process executes, runs that wait in the queue of all processes, and streams that clients read
    here.
    """

    runs: int = 0
    pending: int = 0
    streams: int = 0

    def line(self) -> bytes:
        return b"%d %d %d\n" % astuple(self)


def last_load(told: bytes) -> Load | None:
    """Return the newest load among lines that a process has reported; None if there is none."""
    for line in reversed(told.split(b"\n")[:-1]):
        numbers = line.split()
        if len(numbers) == 3:
            return Load(*map(int, numbers))
    return None
