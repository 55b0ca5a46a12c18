"""Clients of the shared server, for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient

from tests.serving import Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url) as client:
        yield client


@pytest.fixture
def sync_client(server: Server) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=server.url) as client:
        yield client
