"""Fixtures that more than one room uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.serving import EXAMPLES, Server, make_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server on `tests/project` for the whole session. Tests that stop or kill theirs make their own."""
    # Not pytest's tmp_path: that is closed to the user that the embedded database runs as under root.
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder))
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for a server of this test alone."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Plain HTTP to the shared server."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="session")
def examples_server() -> Iterator[Server]:
    """One server on `examples` for the whole session."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), EXAMPLES)
        running.start()
        yield running
        assert running.stop() == 0
