"""A client that ingests runs. A test module says `pytest_plugins = "tests.traces.ingest_clients"` to have it."""

import pytest

from tests.traces.ingest_rooms import make_sender

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    """A client of a workspace of the test's own."""
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made
