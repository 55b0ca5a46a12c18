"""Operating system functions of the engines, used by several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from moorage.embedded import processes

FORK = multiprocessing.get_context("fork")
STARTERS = 4
DIRECTORIES = 1000


def test_a_directory_is_never_found_with_another_mode_than_it_was_made_with(tmp_path: Path) -> None:
    """Several processes make the same directories at the same instant, under a strict umask."""
    ready = FORK.Barrier(STARTERS)
    with_wrong_mode = FORK.SimpleQueue()

    def start() -> None:
        os.umask(0o077)
        ready.wait(30)
        found = 0
        for number in range(DIRECTORIES):
            directory = tmp_path / str(number)
            processes.make_directory(directory, 0o711)
            found += stat.S_IMODE(directory.stat().st_mode) != 0o711
        with_wrong_mode.put(found)

    starters = [FORK.Process(target=start) for _ in range(STARTERS)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
        assert starter.exitcode == 0
    assert [with_wrong_mode.get() for _ in starters] == [0] * STARTERS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(DIRECTORIES)))


def test_a_directory_cannot_be_made_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        processes.make_directory(tmp_path / "file" / "home", 0o700)


def test_what_is_there_already_keeps_its_mode_and_what_is_in_it(tmp_path: Path) -> None:
    kept = tmp_path / "home"
    kept.mkdir(0o750)
    (kept / "file").touch()
    processes.make_directory(kept, 0o711)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o750
    assert (kept / "file").exists()
