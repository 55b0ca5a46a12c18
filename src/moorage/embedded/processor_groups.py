"""Shares of the processors for agents, by control groups of the kernel (version 1 or 2). Needs root and a writable
cgroup file system.

A group holds the processes of one revision and their descendants. All groups are below one folder of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moorage.embedded import processes

_VERSION_1, _VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_FOLDER = "moorage"
_MEMBERS = "cgroup.procs"
_PERIOD_US = 100_000
_SHARES_OF_A_PROCESSOR = 1024
# The least and the most weight that the kernel accepts, and the range that version 2 uses for them.
_SHARES, _WEIGHTS = (2, 262_144), (1, 10_000)


@dataclass(frozen=True)
class ProcessorShare:
    """A share of the processors. `least` sets the weight against other groups under load; `most` is the number of
    processors that the group may use at any time.
    """

    least: float
    most: float


@cache
def are_available() -> bool:
    """Return True if groups can be made here. Tried once, with a group of our own."""
    if not processes.is_root():
        return False
    try:
        hold("probe", (), ProcessorShare(1, 1))
    except OSError:
        return False
    sweep()
    return True


def hold(name: str, pids: Iterable[int], share: ProcessorShare) -> None:
    """Put processes into the group of that name, with this share. Raises OSError when the kernel refuses the group."""
    group = _make_folder() / name
    group.mkdir(exist_ok=True)
    for file, text in _values(share).items():
        (group / file).write_text(text)
    members = (group / _MEMBERS).read_text().split()
    for pid in {str(pid) for pid in pids} - set(members):
        with suppress(ProcessLookupError):  # it has ended
            (group / _MEMBERS).write_text(pid)


def sweep() -> None:
    """Remove groups without processes. If that removes a new group before its first process came, `hold` makes it
    again.
    """
    for group in (_root() / _FOLDER).glob("*/"):
        with suppress(OSError):  # it has processes
            group.rmdir()


def _is_version_1() -> bool:
    return (_VERSION_1 / "cpu.shares").exists()


def _root() -> Path:
    return _VERSION_1 if _is_version_1() else _VERSION_2


def _make_folder() -> Path:
    folder = _root() / _FOLDER
    if not folder.exists():
        folder.mkdir()
        for parent in () if _is_version_1() else (_VERSION_2, folder):
            (parent / "cgroup.subtree_control").write_text("+cpu")
    return folder


def _values(share: ProcessorShare) -> dict[str, str]:
    """Return the files of a group with their content."""
    quota_us = max(1000, int(share.most * _PERIOD_US))
    shares = min(max(_SHARES[0], int(share.least * _SHARES_OF_A_PROCESSOR)), _SHARES[1])
    if _is_version_1():
        return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us), "cpu.shares": str(shares)}
    weight = _WEIGHTS[0] + (shares - _SHARES[0]) * (_WEIGHTS[1] - _WEIGHTS[0]) // (_SHARES[1] - _SHARES[0])
    return {"cpu.max": f"{quota_us} {_PERIOD_US}", "cpu.weight": str(weight)}
