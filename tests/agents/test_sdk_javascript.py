"""The official JavaScript clients, unmodified, against a real server: two generations of the SDK, and of `useStream` in React.

The checks are in `javascript/checks.mjs` and `javascript/react.mjs`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.javascript import install_packages, needs_npm
from tests.serving import Server

JAVASCRIPT = Path(__file__).parent / "javascript"
CHECK = re.compile(r'^ *check\((?:name\()?"(.+?)"', re.MULTILINE)
SDKS = ("@langchain/langgraph-sdk", "earlier-langgraph-sdk")

pytestmark = needs_npm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Return the folder where the clients are installed."""
    made = shutil.copytree(JAVASCRIPT, tmp_path_factory.mktemp("javascript") / "checks")
    assert pytestconfig.cache
    return install_packages(pytestconfig.cache, made)


def failures(folder: Path, *command: str) -> Iterator[str]:
    """Return the failures of a program's checks, and the checks that did not run."""
    ended = subprocess.run(["node", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=110)
    found = {line["name"]: line["failure"] for line in map(json.loads, ended.stdout.splitlines())}
    yield from (f"{name}: {failure}" for name, failure in found.items() if failure)
    written = CHECK.findall((folder / command[0]).read_text())
    assert len(written) >= 9
    missing = [name for name in written if not any(run.endswith(name) for run in found)]
    yield from (f"{name}: not run: {ended.stderr}" for name in missing)


@pytest.mark.parametrize("sdk", SDKS)
def test_the_javascript_sdk(server: Server, folder: Path, sdk: str) -> None:
    assert list(failures(folder, "checks.mjs", server.url, sdk)) == []


def test_pages_in_react_follow_their_threads(server: Server, folder: Path) -> None:
    assert list(failures(folder, "react.mjs", server.url)) == []
