"""The tests that LangGraph publishes for its store on PostgreSQL, run on our store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.agents import langgraph_store
from tests.kernel.databases import Engine

pytest_plugins = "tests.kernel.fixtures"

# The release that these tests come from.
PUBLISHED = "langgraph-checkpoint-postgres==3.2.0"
# Tests that do not test what a store does, or that expect something that ours omits on purpose.
DIFFER = {
    "test_abatch_uses_single_pool_checkout": "counts the calls of an inner function of that store",
    "test_vector_store_initialization": "reads an attribute of that store",
    "test_omit_expired": "an option of that store to show items whose time is over; ours never shows them",
    "test_large_batches": "60,000 calls at once, which ours refuses as more than the database can take",
}
# Its own ways to connect, distances other than the cosine, and vectors of less precision.
CHOSEN = "not pipe and not pool and not l2 and not inner_product and not bit"


def test_the_published_tests_of_the_store_pass(engine: Engine, tmp_path: Path) -> None:
    _fetch(tmp_path)
    chosen = " and ".join([CHOSEN, *(f"not {name}" for name in DIFFER)])
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/test_async_store.py", "-k", chosen],
        cwd=tmp_path,
        env={**os.environ, "STORE_TESTS_CONNINFO": engine.make_database(), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]
    told = re.search(r"(\d+) passed, \d+ deselected in", ended.stdout)  # and no test was skipped
    assert told is not None, ended.stdout[-1000:]
    assert int(told[1]) >= 20


def _fetch(folder: Path) -> None:
    """Unpack the published tests, with a conftest that puts our store in place of theirs."""
    source = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "langgraph-checkpoint-postgres",
        PUBLISHED,
    ]
    subprocess.run([*source, "-d", folder], check=True, timeout=300)
    [archive] = folder.glob("*.tar.gz")
    tests = folder / "tests"
    tests.mkdir()
    with tarfile.open(archive) as found:
        for member in found.getmembers():
            if Path(member.name).name in {"test_async_store.py", "embed_test_utils.py"}:
                member.name = Path(member.name).name
                found.extract(member, tests, filter="data")
    shutil.copy(langgraph_store.__file__, tests / "conftest.py")
    (tests / "__init__.py").touch()
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
