"""Databases with the platform's schema.

A test module uses them with `pytest_plugins = "tests.accounts.fixtures"`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
import uvicorn
from fastapi import FastAPI
from psycopg.conninfo import conninfo_to_dict

from moorage.accounts.workspaces import FirstStart
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from tests.accounts.houses import House, make_house
from tests.kernel.databases import Engine

pytest_plugins = "tests.kernel.fixtures"


@pytest.fixture(scope="session")
def platform_template(engine: Engine) -> str:
    """Return the name of a database with the schema of the platform, to be copied."""
    conninfo = engine.make_database()
    asyncio.run(_migrated(conninfo))
    return conninfo_to_dict(conninfo)["dbname"]


async def _migrated(conninfo: str) -> None:
    pool = Postgres(conninfo, pool_max=2)
    await pool.open()
    await migrate(pool, "platform")
    await pool.close()


@pytest.fixture(scope="module")
def platform_conninfo(engine: Engine, platform_template: str) -> str:
    """Return the module's own database, with the schema of the platform and no rows."""
    return engine.make_database(platform_template)


@pytest.fixture
async def platform_postgres(platform_conninfo: str) -> AsyncIterator[Postgres]:
    pool = Postgres(platform_conninfo, pool_max=8)
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture
def house(platform_postgres: Postgres) -> House:
    """Return the room of accounts, served. A test that needs other settings makes its own."""
    return make_house(platform_postgres)


@dataclass(frozen=True)
class Served:
    """The room of accounts behind a port, with its first workspace and key."""

    url: str
    first: FirstStart


class _Server(uvicorn.Server):
    """A server whose port is known as soon as it listens."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none"))
        self.port: Future[int] = Future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.port.set_result(self.servers[0].sockets[0].getsockname()[1])


@pytest.fixture(scope="module")
def served(platform_conninfo: str) -> Iterator[Served]:
    """Serve the room of accounts in a thread with its own event loop, for clients that bring their own HTTP."""
    ready: Future[tuple[_Server, FirstStart]] = Future()

    async def serve() -> None:
        postgres = Postgres(platform_conninfo, pool_max=4)
        await postgres.open()
        house = make_house(postgres)
        server = _Server(house.app)
        ready.set_result((server, await house.accounts.workspaces.ensure_first(None, None)))
        await server.serve()
        await postgres.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    server, first = ready.result(20)
    yield Served(f"http://127.0.0.1:{server.port.result(20)}", first)
    server.should_exit = True
    thread.join(20)
