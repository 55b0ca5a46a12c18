"""Clients of the shared server, for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient

from tests.agents.guarded import GUARDED
from tests.serving import Server, make_server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url) as client:
        yield client


@pytest.fixture
def sync_client(server: Server) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=server.url) as client:
        yield client


@pytest.fixture
async def thread(client: LangGraphClient) -> str:
    """Create a thread, and return its id."""
    return (await client.threads.create())["thread_id"]


@pytest.fixture
def mark() -> dict[str, str]:
    """Return metadata that nothing else on the server has."""
    return {"mark": uuid4().hex}


@pytest.fixture(scope="session")
def guarded() -> Iterator[Server]:
    """Start one server on `tests/guarded` for the whole session."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), GUARDED)
        running.start()
        yield running
        assert running.stop() == 0
