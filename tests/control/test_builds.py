"""Builds without a platform: their input, their results, and their failures. tests/platform covers the whole way."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moorage.control.builds import BuildError, BuildRules, Builds
from moorage.control.checkouts import FetchError, GitPolicy
from moorage.control.isolation import find_isolation
from moorage.control.places import Place
from moorage.control.records.orders import Order
from moorage.control.records.states import RevisionStatus, Source
from moorage.embedded import processes
from moorage.kernel.errors import InvalidRequestError
from moorage.kernel.ids import uuid7
from tests.control.repositories import git_server, make_repository
from tests.faults.full_disk import can_mount, small_file_system
from tests.platform.serving import make_folder

# Stands in for uv: makes the files that it is asked for, and prints its environment.
_UV = """#!/bin/sh
env
id -u
case "$1" in
  venv) eval "folder=\\${$#}"; mkdir -p "$folder/bin"; touch "$folder/bin/python";;
  pip) printf '%s ' "$@"; echo; case "$*" in *broken*) echo "error: no such package as broken"; exit 1;; *slow*) sleep 60;; *full*) cat "$0" > /dev/full;; esac;;
esac
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with make_folder() as folder:
        processes.make_directory(folder / "home" / "front-door", 0o711)
        program = folder / "uv"
        program.write_text(_UV)
        program.chmod(0o755)
        (folder / "moorage-1-py3-none-any.whl").touch()
        for name, dependency in (("good", "."), ("broken", "broken"), ("slow", "slow"), ("full", "full")):
            config = {"graphs": {"a": "./a.py:graph"}, "dependencies": [dependency]}
            make_repository(folder / "repos" / name, {"langgraph.json": json.dumps(config), "a.py": "graph = 1"})
        yield folder / "home"


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    with git_server(home.parent / "repos") as address:
        yield address


def builds(home: Path, timeout_s: float = 30, program: Path | None = None) -> Builds:
    async def fetch(path: str, into: Path) -> None:
        raise AssertionError("nothing was uploaded")

    rules = BuildRules(
        home,
        (program or home.parent) / "uv",
        (program or home.parent) / "moorage-1-py3-none-any.whl",
        find_isolation(),
        GitPolicy(("http",), private_addresses=True),
        timeout_s,
    )

    async def no_credential(workspace_id: UUID, source_config: Mapping[str, Any]) -> None:
        return None

    return Builds(rules, fetch, no_credential)


def order(url: str, config: str = "langgraph.json") -> Order:
    return Order(
        uuid7(),
        uuid7(),
        uuid7(),
        "agent",
        7,
        1,
        RevisionStatus.BUILDING,
        Source.GITHUB,
        {"repo_url": url},
        {"repo_ref": "main", "langgraph_config_path": config},
        None,
        None,
        False,
        None,
    )


async def test_a_build_gets_package_indexes_and_nothing_else_of_secrets_and_platform(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORAGE_SECRET_KEY", "the-master-key")
    wanted, lines = order(f"{url}/good/.git"), []
    secrets = {"OPENAI_API_KEY": "sk-1", "UV_DEFAULT_INDEX": "https://index.example.test/simple"}
    built = await builds(home).build(wanted, secrets, lines.append)
    assert "UV_DEFAULT_INDEX=https://index.example.test/simple" in lines
    assert not [line for line in lines if "sk-1" in line or "the-master-key" in line]
    if processes.is_root():
        assert str(Place(home, 7).uid) in lines
    assert built.config_file.read_text()
    assert built.commit
    again: list[str] = []
    assert await builds(home).build(wanted, {}, again.append) == built
    assert again == [], "what is complete is not built again"


@pytest.mark.parametrize(
    ("repository", "config", "error", "reason"),
    [
        ("broken", "langgraph.json", BuildError, "no such package as broken"),
        ("full", "langgraph.json", BuildError, "No space left on device"),
        ("good", "elsewhere.json", InvalidRequestError, "There is no elsewhere.json"),
        ("good", "../../x.json", InvalidRequestError, "leaves the source"),
        ("nowhere", "langgraph.json", FetchError, "git"),
    ],
)
async def test_a_failed_build_says_why_and_leaves_nothing(
    home: Path, url: str, repository: str, config: str, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        await builds(home).build(order(f"{url}/{repository}/.git", config), {}, lambda _: None)
    assert list(Place(home, 7).builds.iterdir()) == []


async def test_the_next_build_begins_with_what_the_last_has_installed_and_compiled(home: Path, url: str) -> None:
    first = await builds(home).build(order(f"{url}/good/.git"), {}, lambda _: None)
    compiled = first.python.parent / "compiled.pyc"
    compiled.touch()
    if processes.is_root():
        os.chown(compiled, Place(home, 7).uid, -1)
    second = await builds(home).build(order(f"{url}/good/.git"), {}, lambda _: None)
    assert (second.python.parent / "compiled.pyc").stat().st_ino == compiled.stat().st_ino
    assert second.python.parent.stat().st_ino != first.python.parent.stat().st_ino
    lines: list[str] = []
    shutil.rmtree(first.folder)
    shutil.rmtree(second.folder)
    third = await builds(home).build(order(f"{url}/good/.git"), {}, lines.append)
    assert third.python.exists(), "without one it makes its own"
    assert any(line.startswith("pip install --exact --upgrade --python") for line in lines)


@pytest.mark.skipif(not can_mount(), reason="a small file system can be mounted by root only")
async def test_a_full_disk_fails_the_build_and_nothing_else(home: Path, url: str) -> None:
    large = {"langgraph.json": "{}", "data": random.Random(1).randbytes(4_000_000).hex()}
    make_repository(home.parent / "repos" / "large", large)
    with small_file_system(home.parent / "small", 3) as small:
        processes.make_directory(small / "front-door", 0o711)
        with pytest.raises((FetchError, OSError), match=r"No space left on device|Errno 28"):
            await builds(small, program=home.parent).build(order(f"{url}/large/.git"), {}, lambda _: None)
        assert list(Place(small, 7).builds.iterdir()) == []


async def test_a_build_ends_with_its_time_or_its_interruption(home: Path, url: str) -> None:
    with pytest.raises(BuildError, match="longer than 3 s"):
        await builds(home, timeout_s=3).build(order(f"{url}/slow/.git"), {}, lambda _: None)
    at_work = asyncio.Event()
    task = asyncio.create_task(
        builds(home).build(order(f"{url}/slow/.git"), {}, lambda line: at_work.set() if "environment" in line else None)
    )
    await at_work.wait()
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(Place(home, 7).builds.iterdir()) == []


def test_what_a_killed_build_has_left_goes_with_the_tools_that_still_run_in_it(home: Path) -> None:
    place, finished = Place(home, 8), uuid7()
    place.make()
    for name in (f"{finished}.x", f"{uuid7()}.y"):
        (place.builds / name).mkdir()
    (place.run / f"{finished}.build").write_text(json.dumps({"folder": f"{finished}.x", "config": "", "commit": None}))
    (place.run / f"{uuid7()}.tar.gz").touch()
    left = next(path for path in place.builds.iterdir() if path.suffix == ".y")
    tool = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(left / "environment")])
    place.remove_unfinished()
    assert tool.wait(20) == -signal.SIGKILL
    assert [path.name for path in place.builds.iterdir()] == [f"{finished}.x"]
    assert not list(place.run.glob("*.tar.gz"))


def test_builds_that_nobody_needs_are_swept(home: Path) -> None:
    place, kept, other = Place(home, 7), uuid7(), uuid7()
    place.make()
    for build_id in (kept, other):
        (place.builds / f"{build_id}.x").mkdir()
        (place.run / f"{build_id}.build").write_text("{}")
    young = place.builds / f"{uuid7()}.x"
    young.mkdir()
    os.utime(place.builds / f"{other}.x", (0, 0))
    place.remove_builds([kept])
    assert {path.name for path in place.builds.iterdir()} == {f"{kept}.x", young.name}
    assert [path.stem for path in place.run.glob("*.build")] == [str(kept)]
