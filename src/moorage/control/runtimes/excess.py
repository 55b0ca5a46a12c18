"""Checks of a deployment's processes and disk usage, since deployments share the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moorage.control.places import Place
from moorage.embedded import users

_GIBIBYTE = 2**30
# The kernel refuses processes above the limit. An agent this near to the limit does little but start processes.
_PROCESSES_SHARE = 0.9


def processes_excess(place: Place, processes_max: int) -> str | None:
    """Return a message if the deployment's user runs nearly as many processes as it may, else None."""
    count = len(users.processes_of(place.uid))
    if count < processes_max * _PROCESSES_SHARE:
        return None
    return f"too many processes: the agent runs {count}, and {processes_max} are its limit"


def disk_limit_bytes(spec: dict[str, Any], default_bytes: int) -> int:
    """Return how many bytes of disk a deployment with this resource_spec may take; 0 for no limit."""
    return int(spec.get("db_storage_gi") or 0) * _GIBIBYTE or default_bytes


def disk_excess(place: Place, database_bytes: int, limit_bytes: int) -> str | None:
    """Return a message if the deployment's files and database take more disk than allowed, else None."""
    used_bytes = database_bytes + folder_bytes(place.root)
    if used_bytes <= limit_bytes:
        return None
    return (
        f"out of disk: the deployment takes {used_bytes / _GIBIBYTE:.1f} GiB ({database_bytes / _GIBIBYTE:.1f} of them in its "
        f"database), and {limit_bytes / _GIBIBYTE:.1f} are its limit. Raise db_storage_gi of its resource_spec, or delete files "
        "and threads"
    )


def folder_bytes(folder: Path) -> int:
    """Return how many bytes of disk the files below a folder take. A file with several links counts once; links are not
    followed.
    """
    seen: set[tuple[int, int]] = set()
    return sum(_new_bytes(entry, seen) for entry in _entries(folder))


def _new_bytes(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> int:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:  # removed meanwhile
        return 0
    if found.st_nlink > 1:
        if (found.st_dev, found.st_ino) in seen:
            return 0
        seen.add((found.st_dev, found.st_ino))
    return found.st_blocks * 512


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    folders = [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # removed meanwhile
            continue
