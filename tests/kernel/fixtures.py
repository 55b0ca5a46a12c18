"""A real PostgreSQL for tests: one server for the session, and a database for each module that asks for one.

A test module in any folder uses it with `pytest_plugins = "tests.kernel.fixtures"`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from psycopg.conninfo import conninfo_to_dict

from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from tests.kernel.databases import Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    # Not pytest's tmp_path, which is closed to the user that the database runs as under root.
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        running = Engine(Path(name) / "home")
        yield running
        running.stop()


@pytest.fixture(scope="module")
def conninfo(engine: Engine) -> str:
    """Create an empty database for the module. Its tests share it, since creating one takes a while."""
    return engine.make_database()


@pytest.fixture
async def postgres(conninfo: str) -> AsyncIterator[Postgres]:
    """Open a pool on the module's database."""
    pool = Postgres(conninfo, pool_max=4)
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture(scope="session")
def agents_template(engine: Engine) -> str:
    """Return the name of a database with the schema of the agent server, to be copied."""
    conninfo = engine.make_database()
    asyncio.run(_migrated(conninfo))
    return conninfo_to_dict(conninfo)["dbname"]


async def _migrated(conninfo: str) -> None:
    pool = Postgres(conninfo, pool_max=2)
    await pool.open()
    await migrate(pool, "agents")
    await pool.close()


@pytest.fixture(scope="module")
def agents_conninfo(engine: Engine, agents_template: str) -> str:
    """Create a database for the module, with the schema of the agent server and no rows."""
    return engine.make_database(agents_template)


@pytest.fixture
async def agents_postgres(agents_conninfo: str) -> AsyncIterator[Postgres]:
    pool = Postgres(agents_conninfo, pool_max=8)
    await pool.open()
    yield pool
    await pool.close()
