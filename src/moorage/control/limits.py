"""Limits of the kernel on an agent's processes, as a command line that sets them before anything else runs."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MEGABYTE = 2**20
_FILE_BYTES = 10 * 2**30
_FILES = 65_536
# Threads count too. Two revisions and a build may run at the same time.
_PROCESSES, _PROCESSES_PER_WORKER = 1024, 512
# The platform ends an agent above its memory_limit_mb within a second or two. Above this factor of the limit, the
# kernel refuses memory at once.
_DATA_FACTOR, _DATA_MORE_BYTES = 2, 2 * 2**30
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of each process, except `processes`, which counts all processes of its user. None: the platform sets no
    limit.
    """

    files: int
    file_bytes: int
    data_bytes: int | None
    processes: int | None

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` within the limits. If a limit cannot be set, the command does not
        run.
        """
        steps = ["ulimit -c 0", f"ulimit -n {self.files}", f"ulimit -f {self.file_bytes // _BLOCK_BYTES}"]
        if self.data_bytes is not None:
            steps.append(f"ulimit -d {self.data_bytes // 1024}")
        if self.processes is not None:  # dash and busybox say -p, bash says -u
            steps.append(f"{{ ulimit -p {self.processes} 2>/dev/null || ulimit -u {self.processes}; }}")
        return ["/bin/sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh", *argv]


def limits_of(spec: Mapping[str, Any], workers: int, *, own_user: bool) -> ProcessLimits:
    """Return the limits of a revision with this `resource_spec`, never above the platform's own limits."""
    memory_mb = spec.get("memory_limit_mb")
    data = memory_mb * _MEGABYTE * _DATA_FACTOR + _DATA_MORE_BYTES if memory_mb else None
    most = _PROCESSES + _PROCESSES_PER_WORKER * workers
    return ProcessLimits(
        files=_within(_FILES, resource.RLIMIT_NOFILE),
        file_bytes=_within(_FILE_BYTES, resource.RLIMIT_FSIZE),
        data_bytes=None if data is None else _within(data, resource.RLIMIT_DATA),
        processes=_within(most, resource.RLIMIT_NPROC) if own_user else None,
    )


def _within(wanted: int, kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
