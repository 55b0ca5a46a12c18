"""Our store in place of LangGraph's own on PostgreSQL, for the tests that LangGraph publishes for that store.

A copy of this file is the `tests/conftest.py` beside the published tests: they import names from it, and a database
from the environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from moorage.agents.embeddings import Embedder
from moorage.agents.items import LongTermStore
from moorage.agents.langgraph_json import StoreConfig, StoreIndex, StoreTtl
from moorage.agents.store.items import ItemStore
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres

VECTOR_TYPES = ["vector"]


class AsyncPostgresStore(LongTermStore):
    """The store, with the methods that the tests use to make it and to look into it."""

    MIGRATIONS: tuple[str, ...] = ()
    _sweeping: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, conninfo: str, *, index: Any = None, ttl: Any = None, **_: Any
    ) -> AsyncIterator[AsyncPostgresStore]:
        postgres = Postgres(conninfo, pool_max=4)
        await postgres.open()
        try:
            await migrate(postgres, "agents")
            config = StoreConfig(
                index=StoreIndex(dims=index["dims"], embed="a.module:embed", fields=index.get("fields"))
                if index
                else None,
                ttl=StoreTtl(**ttl) if ttl else StoreTtl(),
            )
            items = ItemStore(postgres, index["dims"] if index else None)
            await items.prepare()
            yield cls(items, config, Embedder(config.index, lambda _: index["embed"]) if config.index else None)
        finally:
            await postgres.close()

    async def setup(self) -> None:
        """Do nothing, since migrations have already run."""

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Any]:
        class NoTable:
            async def execute(self, sql: str) -> None:
                assert sql == "DROP TABLE IF EXISTS store_migrations"

        yield NoTable()

    async def start_ttl_sweeper(self) -> None:
        async def sweep() -> None:
            while True:
                await self.sweep()
                await asyncio.sleep(1)

        self._sweeping = asyncio.create_task(sweep())

    async def stop_ttl_sweeper(self) -> None:
        assert self._sweeping is not None
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping


def _uri(conninfo: str) -> str:
    """Return the conninfo as a URL: the tests replace the database name after the last slash."""
    place = conninfo_to_dict(conninfo)
    host = str(place["host"]).replace("/", "%2F")
    return f"postgresql://{place['user']}:{place['password']}@{host}/{place['dbname']}"


if conninfo := os.environ.get("STORE_TESTS_CONNINFO"):  # beside the published tests
    DEFAULT_URI = _uri(conninfo)
    for name, members in {
        "langgraph.checkpoint.postgres": {"_ainternal": ModuleType("_ainternal")},
        "langgraph.store.postgres": {"AsyncPostgresStore": AsyncPostgresStore},
    }.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(members)
    CharacterEmbeddings = import_module("tests.embed_test_utils").CharacterEmbeddings


@pytest.fixture
def fake_embeddings() -> Any:
    return CharacterEmbeddings(dims=500)
