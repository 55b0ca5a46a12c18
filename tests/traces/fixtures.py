"""A real trace store for tests: one chDB process for the session, and a database with the schema for each module.

A test module in any folder uses it with `pytest_plugins = "tests.traces.fixtures"`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.reading import Reading
from moorage.traces.store.feedback import FeedbackStore

_NUMBERS = count()


@pytest.fixture(scope="session")
def trace_store_url() -> Iterator[str]:
    """Return the URL of the store, without a database."""
    # Not pytest's tmp_path, which is closed to the user that the store runs as under root.
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        store = EmbeddedClickHouse(Path(name) / "home")
        yield store.start()
        store.stop()


@pytest.fixture(scope="module")
def clickhouse_url(trace_store_url: str) -> Iterator[str]:
    """Create a database for the module, with the schema and no rows."""
    url = asyncio.run(make_database(trace_store_url))
    yield url
    asyncio.run(_drop_database(trace_store_url, url))


@pytest.fixture
async def clickhouse(clickhouse_url: str) -> AsyncIterator[ClickHouse]:
    """Return a client of the module's database."""
    client = ClickHouse(clickhouse_url)
    yield client
    await client.close()


@pytest.fixture
async def reading(clickhouse: ClickHouse) -> Reading:
    return Reading(clickhouse, FeedbackStore(clickhouse))


@pytest.fixture
def empty_clickhouse_url(trace_store_url: str) -> str:
    """Create a database without a schema for the test."""
    return asyncio.run(make_database(trace_store_url, schema=False))


async def _drop_database(store_url: str, url: str) -> None:
    """Drop the database. The engine also works for the tables of unused databases: twenty take 2 seconds of CPU a
    minute.
    """
    client = ClickHouse(store_url)
    await client.command(f"DROP DATABASE {url.rpartition('/')[2]}")
    await client.close()


async def make_database(store_url: str, *, schema: bool = True) -> str:
    """Create a database, and return its URL."""
    name = f"test_{next(_NUMBERS)}"
    url = f"{store_url.rpartition('/')[0]}/{name}"
    client = ClickHouse(store_url)
    await client.command(f"CREATE DATABASE {name}")
    await client.close()
    if schema:
        client = ClickHouse(url)
        await client.migrate()
        await client.close()
    return url
