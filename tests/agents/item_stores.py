"""Stores of items, with and without vectors.

A test module uses them with `pytest_plugins = "tests.agents.item_stores"`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moorage.agents.embeddings import Embedder
from moorage.agents.items import LongTermStore
from moorage.agents.langgraph_json import StoreConfig, StoreIndex
from moorage.agents.store.items import ItemStore
from moorage.kernel.postgres import Postgres
from tests.agents.embeddings import DIMS, Embedding


@pytest.fixture
async def store(agents_postgres: Postgres) -> LongTermStore:
    await agents_postgres.execute("TRUNCATE items CASCADE")
    return LongTermStore(ItemStore(agents_postgres, None), StoreConfig(), None)


@pytest.fixture
def embedding() -> Embedding:
    return Embedding()


@pytest.fixture
async def index(agents_postgres: Postgres, embedding: Embedding) -> AsyncIterator[LongTermStore]:
    config = StoreConfig(index=StoreIndex(dims=DIMS, embed="a.module:embed", fields=["text", "notes[*].text"]))
    assert config.index is not None
    items = ItemStore(agents_postgres, DIMS)
    await items.prepare()
    await agents_postgres.execute("TRUNCATE items CASCADE")
    yield LongTermStore(items, config, Embedder(config.index, lambda path: embedding))
    await agents_postgres.execute("DROP TABLE item_vectors")
