"""The official tracing SDK for JavaScript, unmodified, against a real platform. The checks are in `javascript/checks.mjs`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.javascript import install_packages, needs_npm
from tests.platform.serving import Platform, environment

pytest_plugins = "tests.platform.fixtures"

JAVASCRIPT = Path(__file__).parent / "javascript"
CHECKS = re.findall(r'^check\("(.+?)", ', (JAVASCRIPT / "checks.mjs").read_text(), re.MULTILINE)

pytestmark = needs_npm


@pytest.fixture(scope="module")
def failures(
    platform: Platform, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, str | None]:
    """Return the failures of each check that was run; None for a successful one."""
    folder = shutil.copytree(JAVASCRIPT, tmp_path_factory.mktemp("javascript") / "checks")
    assert pytestconfig.cache
    install_packages(pytestconfig.cache, folder)
    command = ["node", "checks.mjs", platform.url, platform.key]
    tracing = environment(LANGSMITH_TRACING="true")
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100, env=tracing)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"name"')]
    found = {line["name"]: line["failure"] for line in lines}
    return {check: found.get(check, f"not run: {ended.stderr}") for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS)
def test_the_javascript_sdk(failures: dict[str, str | None], check: str) -> None:
    assert failures[check] is None, failures[check]
