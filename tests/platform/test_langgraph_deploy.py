"""`langgraph deploy` of PyPI's `langgraph-cli`, unmodified: all that it needs of a platform is the address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import httpx
import pytest

from tests.platform.callers import source, version
from tests.platform.serving import Platform, environment
from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"
# An agent's first start compiles everything that it imports: seconds of CPU time, or minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)

Langgraph = Callable[..., CompletedProcess[str]]
CONFIG = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], "env": ".env"}
LOCKED = """
[project]
name = "locked-agent"
version = "1"
requires-python = ">=3.11"
dependencies = ["sniffio<1.3.1"]
[tool.setuptools]
py-modules = ["agent"]
"""
# Its version tells what was installed.
NAMES_SNIFFIO = ': int(importlib.metadata.version("sniffio").replace(".", ""))}'


def bin_of_this_environment(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with a requirements.txt, which is no package."""
    folder = tmp_path_factory.mktemp("langgraph") / "from-cli"
    folder.mkdir()
    (folder / "langgraph.json").write_text(json.dumps(CONFIG))
    (folder / "agent.py").write_text(
        source(1).replace("import asyncio", "import asyncio, importlib.metadata").replace(": 1}", NAMES_SNIFFIO)
    )
    (folder / "requirements.txt").write_text("sniffio==1.2.0\n")
    (folder / ".env").write_text("SOME_SECRET=1\n")
    return folder


@pytest.fixture(scope="module")
def langgraph(platform: Platform, project: Path) -> Langgraph:
    """Run the command in the project, as the official instructions say."""

    def run(*arguments: str, key: str = platform.key) -> CompletedProcess[str]:
        told = {"LANGGRAPH_HOST_URL": platform.url, "LANGSMITH_API_KEY": key, "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
        return subprocess.run(
            [bin_of_this_environment("langgraph"), "deploy", *arguments],
            cwd=project,
            env=environment(**told),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture(scope="module")
def deployed(platform: Platform, langgraph: Langgraph) -> Iterator[dict[str, str]]:
    """Deploy for the first time, and return the output for programs."""
    told = result(langgraph("--remote", "--name", "from-cli", "--json", "--no-input"))
    yield told
    with platform.client() as client:
        client.delete(f"/v2/deployments/{told['deployment_id']}")


def result(ended: CompletedProcess[str]) -> dict[str, str]:
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    found = [line for line in lines if line.get("event", line.get("type")) == "result" or "deployment_id" in line]
    assert found, ended.stdout + ended.stderr
    return found[-1]


def test_a_folder_with_requirements_is_built_here_and_runs(
    platform: Platform, api: httpx.Client, deployed: dict[str, str]
) -> None:
    assert deployed["status"] == "succeeded"
    assert deployed["url"] == f"{platform.url}/d/from-cli"
    assert version(api, deployed["url"]) == 120
    secrets = api.get(f"/v2/deployments/{deployed['deployment_id']}").json()["secrets"]
    assert [secret["name"] for secret in secrets] == ["SOME_SECRET"]


def test_the_next_time_it_makes_a_revision_from_what_uv_has_locked(
    api: httpx.Client, langgraph: Langgraph, deployed: dict[str, str], project: Path
) -> None:
    (project / "requirements.txt").unlink()
    (project / "pyproject.toml").write_text(LOCKED)
    subprocess.run(
        [bin_of_this_environment("uv"), "lock", "--quiet"], cwd=project, check=True, timeout=60, env=dict(os.environ)
    )
    again = result(langgraph("--remote", "--name", "from-cli", "--json", "--no-input"))
    assert (again["status"], again["deployment_id"]) == ("succeeded", deployed["deployment_id"])
    assert version(api, deployed["url"]) == 130
    listed = langgraph("revisions", "list", deployed["deployment_id"])
    assert listed.returncode == 0, listed.stderr
    assert "REPLACED" in listed.stdout, "its own word for a revision that served before"


def test_it_lists_deployments_and_shows_what_they_print(langgraph: Langgraph, deployed: dict[str, str]) -> None:
    listed = json.loads(langgraph("list", "--json").stdout)
    assert {"id": deployed["deployment_id"], "name": "from-cli"} in listed
    wait_until(lambda: "serves agent" in langgraph("logs", "--name", "from-cli").stdout)
    assert "Making an environment" in langgraph("logs", "--name", "from-cli", "--type", "build").stdout


def test_a_build_that_fails_is_its_failure_and_changes_nothing(
    api: httpx.Client, langgraph: Langgraph, deployed: dict[str, str], project: Path
) -> None:
    (project / "pyproject.toml").write_text(LOCKED.replace("sniffio<1.3.1", "sniffio<1"))  # and the lock says 1.3.0
    try:
        failed = langgraph("--remote", "--name", "from-cli", "--no-input")
    finally:
        (project / "pyproject.toml").write_text(LOCKED)
    assert failed.returncode == 1, failed.stdout
    [newest] = api.get(f"/v2/deployments/{deployed['deployment_id']}/revisions?limit=1").json()["resources"]
    assert (newest["status"], "sniffio" in newest["status_message"]) == ("BUILD_FAILED", True)
    assert version(api, deployed["url"]) == 130


def test_a_wrong_key_is_told(langgraph: Langgraph) -> None:
    refused = langgraph("list", key="lsv2_pt_invented")
    assert refused.returncode != 0
    assert "401" in refused.stdout + refused.stderr


def test_it_deletes(api: httpx.Client, langgraph: Langgraph, deployed: dict[str, str]) -> None:
    assert langgraph("delete", "--force", deployed["deployment_id"]).returncode == 0
    assert api.get(f"/v2/deployments/{deployed['deployment_id']}").status_code == 404
