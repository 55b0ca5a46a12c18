"""A client that ingests runs.

A test module uses it with `pytest_plugins = "tests.traces.ingest_clients"`.
"""

import pytest

from tests.traces.ingest_rooms import make_sender

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    """Return a client with a workspace for this test."""
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made
