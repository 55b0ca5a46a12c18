"""Fixtures that more than one room uses."""

from __future__ import annotations

import gc
import signal
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from tests import durations
from tests.serving import EXAMPLES, Server, make_server

# Each client would load the same certificates, which takes longer than most of its requests.
httpx._transports.default.create_ssl_context = cache(httpx._transports.default.create_ssl_context)


# Files of long tests that share nothing with their neighbours.
APART = (
    "tests/faults/test_faults.py",
    "tests/faults/test_trace_faults.py",
    "tests/contract/test_fuzz.py",
    "tests/test_cli.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together with `-n`, since they share servers. Only the tests of long files go one by one
    to any free process.
    """
    from xdist.scheduler import LoadScopeScheduling  # the hook is only called where pytest-xdist is installed

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file in APART else file

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    durations.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.record_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the long files when `-n` is given, so that none of them is left for the end.

    Files that start platforms and browsers take turns with files that mostly wait, so that the processors are neither
    overloaded nor idle.
    """
    if config.option.quick:
        durations.deselect_slow(config, items)
    if hasattr(config, "workerinput"):
        durations.put_in_turns(items)


def pytest_collection_finish() -> None:
    """Exempt collected objects from garbage collection. Four thousand tests and all modules live until the end, and
    looking at them again and again takes a tenth of all CPU.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _hear_ctrl_c() -> None:
    """Unblock Ctrl-C. Programs inherit ignored and blocked signals, so an earlier test of this process must not make
    commands ignore it.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start one server on `tests/project` for the whole session. Tests that stop or kill a server make their own."""
    # Not pytest's tmp_path, which is closed to the user that the embedded database runs as under root.
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder))
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a directory for a server of this test alone."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Return a plain HTTP client of the shared server."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="session")
def examples_server() -> Iterator[Server]:
    """Start one server on `examples` for the whole session."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), EXAMPLES)
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def own_users_server() -> Iterator[Server]:
    """Start one server on `examples/own_users` for the whole session."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), EXAMPLES.parent / "own_users" / "langgraph.json")
        running.start()
        yield running
        assert running.stop() == 0
