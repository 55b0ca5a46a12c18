"""Items that are found by their meaning: vectors, embedding functions, dimensions."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.store.base import PutOp

from moorage.agents.embeddings import Embedder
from moorage.agents.items import LongTermStore
from moorage.agents.langgraph_json import StoreConfig, StoreIndex
from moorage.agents.store.items import ItemStore
from moorage.kernel.errors import EmbeddingError, StartupError
from moorage.kernel.postgres import Postgres
from tests.agents.embeddings import DIMS, Embedding, embed

pytest_plugins = ("tests.kernel.fixtures", "tests.agents.item_stores")


async def test_items_are_found_by_what_they_mean_nearest_first(index: LongTermStore):
    await index.aput(("docs",), "cats", {"text": "cats purr softly"})
    await index.aput(("docs",), "dogs", {"text": "dogs bark loudly"})
    await index.aput(("docs",), "silent", {"text": "cats purr softly"}, index=False)
    await index.aput(("other",), "cats", {"text": "cats purr softly"})
    found = await index.asearch(("docs",), query="cats purr")
    assert [item.key for item in found] == ["cats", "dogs", "silent"]
    assert found[0].score is not None
    assert found[1].score is not None
    assert found[0].score > 0.7 > found[1].score
    assert found[2].score is None
    [second] = await index.asearch(("docs",), query="cats purr", limit=1, offset=1)
    assert second.key == "dogs"


async def test_a_value_that_changes_is_found_by_its_new_text_only(index: LongTermStore):
    await index.aput(("docs",), "k", {"text": "old words", "notes": [{"text": "first"}, {"text": "second"}]})
    await index.aput(("docs",), "k", {"text": "new words"})
    [found] = await index.asearch(("docs",), query="second")
    assert found.score is not None
    assert found.score < 0.3


async def test_an_item_with_many_vectors_leaves_room_for_others(index: LongTermStore):
    await index.aput(("docs",), "many", {"notes": [{"text": f"apple pie {number}"} for number in range(50)]})
    await index.aput(("docs",), "one", {"text": "apple tree"})
    assert [item.key for item in await index.asearch(("docs",), query="apple pie", limit=2)] == ["many", "one"]


async def test_filters_and_namespaces_hold_among_thousands(index: LongTermStore):
    ops = [
        PutOp(("big", str(number % 50)), str(number), {"text": f"word{number}", "n": number}) for number in range(2000)
    ]
    await index.abatch(ops)
    found = await index.asearch(("big", "7"), query="word7", filter={"n": {"$lt": 1000}}, limit=20)
    assert len(found) == 20
    assert found[0].key == "7"
    assert all(item.namespace == ("big", "7") and item.value["n"] < 1000 for item in found)


async def test_a_function_that_fails_or_changes_its_dimensions_stores_nothing(
    index: LongTermStore, embedding: Embedding
):
    embedding.broken = ValueError("a secret")
    with pytest.raises(EmbeddingError, match="ValueError") as failure:
        await index.aput(("docs",), "k", {"text": "x"})
    assert "secret" not in str(failure.value)
    embedding.broken, embedding.dims = None, DIMS - 1
    with pytest.raises(EmbeddingError, match="31 dimensions"):
        await index.aput(("docs",), "k", {"text": "x"})
    assert await index.aget(("docs",), "k") is None
    with pytest.raises(EmbeddingError):
        await index.asearch(("docs",), query="x")


async def test_a_function_that_hangs_is_given_up(
    index: LongTermStore, agents_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    async def hang(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(3600)
        return []

    monkeypatch.setattr("moorage.agents.embeddings._TIMEOUT_S", 0.2)
    config = StoreConfig(index=StoreIndex(dims=DIMS, embed="a.module:embed"))
    assert config.index is not None
    store = LongTermStore(ItemStore(agents_postgres, DIMS), config, Embedder(config.index, lambda path: hang))
    with pytest.raises(EmbeddingError, match="longer than"):
        await store.aput(("docs",), "k", {"text": "x"})


async def test_other_dimensions_than_the_stored_ones_stop_the_start(index: LongTermStore, agents_postgres: Postgres):
    with pytest.raises(StartupError, match=r"dims is 8, and the stored vectors have 32"):
        await ItemStore(agents_postgres, 8).prepare()
    await ItemStore(agents_postgres, DIMS).prepare()


@pytest.mark.parametrize("dims", [2500, 5000])
async def test_vectors_of_any_size_that_the_database_takes_are_found(agents_conninfo: str, dims: int):
    async def long(texts: list[str]) -> list[list[float]]:
        return [[*vector, *[0.0] * (dims - DIMS)] for vector in embed(texts)]

    postgres = Postgres(agents_conninfo, pool_max=2)
    await postgres.open()
    config = StoreConfig(index=StoreIndex(dims=dims, embed="a.module:embed", fields=["text"]))
    assert config.index is not None
    items = ItemStore(postgres, dims)
    await items.prepare()
    try:
        store = LongTermStore(items, config, Embedder(config.index, lambda path: long))
        await store.aput(("long",), "cats", {"text": "cats purr"})
        await store.aput(("long",), "dogs", {"text": "dogs bark"})
        assert (await store.asearch(("long",), query="dogs bark"))[0].key == "dogs"
    finally:
        await postgres.execute("DROP TABLE item_vectors")
        await postgres.close()
