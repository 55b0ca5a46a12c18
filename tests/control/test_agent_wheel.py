from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moorage.control.agent_wheel import agent_wheel
from moorage.kernel.errors import StartupError


def test_this_installation_becomes_a_wheel_that_installs(tmp_path: Path) -> None:
    wheel = agent_wheel(None, tmp_path / "wheels")
    target = tmp_path / "target"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--target", str(target)]
    subprocess.run([*uv, str(wheel)], check=True)
    assert (target / "moorage/cli/__init__.py").exists()
    assert (target / "moorage/schema/agents/0018_agent_server.sql").exists()
    assert (target / "bin/moorage").exists()


def test_equal_code_gives_the_same_wheel_and_is_packed_once(tmp_path: Path) -> None:
    first, second = agent_wheel(None, tmp_path / "a"), agent_wheel(None, tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    made_at = first.stat().st_mtime_ns
    assert agent_wheel(None, tmp_path / "a").stat().st_mtime_ns == made_at


def test_the_wheel_says_what_it_needs_and_nothing_of_the_host(tmp_path: Path) -> None:
    with zipfile.ZipFile(agent_wheel(None, tmp_path)) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "Requires-Dist: langgraph" in metadata
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


def test_a_given_wheel_is_taken_as_it_is(tmp_path: Path) -> None:
    given = tmp_path / "moorage-9-py3-none-any.whl"
    with pytest.raises(StartupError, match="MOORAGE_AGENT_WHEEL"):
        agent_wheel(given, tmp_path)
    given.touch()
    assert agent_wheel(given, tmp_path) == given
