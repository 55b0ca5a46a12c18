"""The workflow of `examples/ci`, step by step: the commands of its runner, in the runner's shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.control_planes import serving
from tests.platform.serving import environment
from tests.serving import ROOT

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]

WORKFLOW = yaml.safe_load((ROOT / "examples" / "ci" / "deploy.yml").read_text())
STEPS = {step["name"]: step for step in WORKFLOW["jobs"]["deploy"]["steps"] if "run" in step}


@pytest.fixture(scope="module")
def platform(
    platform_conninfo: str, clickhouse_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    with serving(platform_conninfo, clickhouse_url, tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    (tmp_path / "agent.py").write_text("graph = None")
    return tmp_path


def run(step: str, platform: tuple[str, str], repository: Path) -> subprocess.CompletedProcess[str]:
    """Run the workflow as on a pull request with the number 7. The checkout and the command, which the first steps
    bring, exist already.
    """
    told: dict[str, Any] = {"vars.MOORAGE_URL": platform[0], "secrets.MOORAGE_API_KEY": platform[1]}
    told["github.event.number"] = 7

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ *(.+?) *\}\}", lambda found: str(told[found[1]]), text)

    variables = {name: filled(text) for name, text in WORKFLOW["env"].items()}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-e", "-o", "pipefail", "-c", filled(STEPS[step]["run"])]
    return subprocess.run(
        command, cwd=repository, env=environment(**variables), capture_output=True, text=True, timeout=100, check=False
    )


def test_each_step_of_the_workflow_does_what_it_says(platform: tuple[str, str], repository: Path) -> None:
    assert list(STEPS) == ["Install moorage", "Deploy", "Preview", "Remove the preview", "What went wrong"]
    deployed = run("Deploy", platform, repository)
    assert deployed.returncode == 0, deployed.stderr
    assert f"{platform[0]}/d/my-agent" in deployed.stdout
    preview = run("Preview", platform, repository)
    assert preview.returncode == 0, preview.stderr
    assert "my-agent-pr-7" in preview.stdout
    removed = run("Remove the preview", platform, repository)
    assert removed.returncode == 0, removed.stderr
    (repository / "broken.py").touch()
    assert run("Deploy", platform, repository).returncode == 1
    assert "no solution found" in run("What went wrong", platform, repository).stdout
