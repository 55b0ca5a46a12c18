"""Archive of a folder for the upload: its files, without generated files and secrets."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType

from moorage.kernel.errors import InvalidRequestError

# Entries of a folder without git that are never uploaded. In a repository git knows what to ignore.
LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".venv",
        "venv",
        "node_modules",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".langgraph_api",
        ".moorage",
    }
)


@contextmanager
def archived(
    folder: Path, config: str, emptied: frozenset[str], more: Mapping[str, bytes] = MappingProxyType({})
) -> Iterator[Path]:
    """Yield a temporary tar.gz of the folder.

    Files in `emptied` are empty in it, since their contents are sent another way. `more` adds files, or replaces files
    of the folder. Raises InvalidRequestError when the configuration is not among the files.
    """
    with NamedTemporaryFile(suffix=".tar.gz") as file:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            names = sorted({*_names(folder), *(name for name in emptied if (folder / name).is_file())})
            if config not in names:
                raise InvalidRequestError(f"{folder} has no {config} to upload; name it with --config")
            for name, data in more.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for name in (each for each in names if each not in more):
                _add(tar, folder, name, is_empty=name in emptied)
        file.flush()
        yield Path(file.name)


def _add(tar: tarfile.TarFile, folder: Path, name: str, *, is_empty: bool) -> None:
    info = tar.gettarinfo(folder / name, arcname=name)
    # Owners of files here mean nothing on the platform.
    info.uid, info.gid, info.uname, info.gname = 0, 0, "", ""
    if is_empty:
        info.size = 0
        tar.addfile(info, io.BytesIO())
    elif info.isreg():
        with (folder / name).open("rb") as source:
            tar.addfile(info, source)


def _names(folder: Path) -> Iterator[str]:
    """Return the files below the folder, by their path in it. Leaves out links, since the platform accepts none."""
    listed = _listed_by_git(folder)
    names = _walked(folder) if listed is None else listed
    for name in names:
        path = folder / name
        if path.is_file() and not path.is_symlink() and not LEFT_OUT & set(Path(name).parts):
            yield name


def _listed_by_git(folder: Path) -> list[str] | None:
    """Return the files that are tracked or new, but not ignored; None when the folder is in no repository."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if listed.returncode else [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]


def _walked(folder: Path) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            yield Path(root, name).relative_to(folder).as_posix()
