"""The long-term store: it behaves like LangGraph's own store in memory; over HTTP, in graphs, by meaning, and with
expiry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph_sdk.client import LangGraphClient

from moorage.agents.items import LongTermStore
from moorage.kernel.errors import BadRequestError, InvalidRequestError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from tests.agents.embeddings import DIMS
from tests.agents.test_graphs import write_project
from tests.serving import Server, make_server

pytest_plugins = ("tests.kernel.fixtures", "tests.agents.item_stores")

# --- as the store in memory -------------------------------------------------------------------------------------------

LABELS = st.sampled_from(["a", "ab", "b", "ü", "a-", "A"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
SCALARS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["x", "y", "é", ""]), st.sampled_from([0.5, 2.5]))
VALUES = st.fixed_dictionaries(
    {}, optional={"n": SCALARS, "t": SCALARS, "o": st.fixed_dictionaries({}, optional={"n": SCALARS, "p": SCALARS})}
)
CONDITIONS = st.one_of(
    SCALARS,
    SCALARS.map(lambda value: {"$eq": value}),
    SCALARS.map(lambda value: {"$ne": value}),
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "n": CONDITIONS,
        "t": CONDITIONS,
        "o": st.fixed_dictionaries({}, optional={"n": CONDITIONS}),
    },
)
PATHS = st.lists(st.one_of(LABELS, st.just("*")), min_size=1, max_size=3).map(tuple)
MATCHES = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["prefix", "suffix"]), PATHS).map(lambda match: (MatchCondition(*match),)),
)
OPERATIONS = st.one_of(
    st.tuples(NAMESPACES, st.sampled_from("kl"), st.one_of(st.none(), VALUES)).map(lambda made: PutOp(*made)),
    st.tuples(NAMESPACES, st.sampled_from("kl")).map(lambda made: GetOp(*made)),
    st.tuples(st.one_of(st.just(()), NAMESPACES), st.one_of(st.none(), FILTERS), st.just(100)).map(
        lambda made: SearchOp(*made)
    ),
    st.tuples(MATCHES, st.sampled_from([None, 1, 2])).map(lambda made: ListNamespacesOp(*made)),
)


def essence(result: Any) -> Any:
    """Return a result without times, and without an order that nobody promises."""
    if isinstance(result, list):
        return sorted((essence(each) for each in result), key=repr)
    if hasattr(result, "value"):
        return result.namespace, result.key, result.value
    return result


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=12))
async def test_it_answers_as_the_store_in_memory_does(
    store: LongTermStore, agents_postgres: Postgres, batches: list[Any]
):
    await agents_postgres.execute("TRUNCATE items CASCADE")
    model = InMemoryStore()
    for batch in batches:
        expected, found = await model.abatch(batch), await store.abatch(batch)
        # The store in memory lists namespaces whose items are gone; ours does not.
        for operation, one, other in zip(batch, expected, found, strict=True):
            if isinstance(operation, ListNamespacesOp):
                assert set(other) <= set(one)
            else:
                assert essence(one) == essence(other)


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({"n": {"$gt": 1}}, {"two", "ten"}),
        ({"n": {"$gte": 2, "$lt": 10}}, {"two"}),
        ({"n": {"$lte": 1.5}}, {"one"}),
        ({"t": {"$gt": "b"}}, {"text"}),
        ({"n": {"$gt": 10**30}}, set()),
        ({"o": {"deep": {"$eq": [1, {"x": 2}]}}}, {"deep"}),
        ({"t'; DROP TABLE items; --": 1}, set()),
    ],
)
async def test_operators_compare_numbers_and_texts(store: LongTermStore, wanted: dict[str, Any], keys: set[str]):
    for key, value in {
        "one": {"n": 1},
        "two": {"n": 2},
        "ten": {"n": 10},
        "text": {"n": "5", "t": "c"},
        "deep": {"o": {"deep": [1, {"x": 2}]}},
    }.items():
        await store.aput(("filters",), key, value)
    assert {item.key for item in await store.asearch(("filters",), filter=wanted)} == keys


@pytest.mark.parametrize(
    "wanted", [{"n": {"$regex": "."}}, {"n": {"$gt": None}}, {"n": {"$lt": [1]}}, {f"f{n}": n for n in range(300)}]
)
async def test_a_filter_that_is_none_is_refused(store: LongTermStore, wanted: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        await store.asearch(("filters",), filter=wanted)


async def test_a_filter_of_a_thousand_levels_is_refused(store: LongTermStore):
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"a": deep}
    with pytest.raises(InvalidRequestError):
        await store.asearch(("filters",), filter=deep)


@pytest.mark.parametrize(
    ("namespace", "key", "error"),
    [
        ((), "k", BadRequestError),
        (("langgraph", "x"), "k", BadRequestError),
        (("a.b",), "k", InvalidRequestError),
        (("",), "k", InvalidRequestError),
        (("a",) * 1000, "k", InvalidRequestError),
        (("a" * 3000,), "k", InvalidRequestError),
        (("a",), "k" * 3000, InvalidRequestError),
        (("a\0b",), "k", InvalidRequestError),
        (("a",), "k\0", InvalidRequestError),
    ],
)
async def test_an_address_that_is_none_is_refused(
    store: LongTermStore, namespace: Any, key: str, error: type[Exception]
):
    with pytest.raises(error):
        await store.abatch([PutOp(("good",), "k", {}), PutOp(namespace, key, {})])
    assert await store.aget(("good",), "k") is None


# --- for a time -------------------------------------------------------------------------------------------------------


async def age(postgres: Postgres, minutes: float) -> None:
    await postgres.execute("UPDATE items SET expires_at = expires_at - %s * interval '1 minute'", (minutes,))


async def test_an_item_goes_when_its_time_is_over_and_a_read_lets_it_begin_anew(
    store: LongTermStore, agents_postgres: Postgres
):
    await store.aput(("ttl",), "short", {"n": 1}, ttl=10)
    await store.aput(("ttl",), "kept", {"n": 2})
    await age(agents_postgres, 9)
    assert await store.aget(("ttl",), "short", refresh_ttl=True)
    await age(agents_postgres, 9)
    assert await store.aget(("ttl",), "short", refresh_ttl=False)
    assert len(await store.asearch(("ttl",), refresh_ttl=True)) == 2
    await age(agents_postgres, 11)
    assert await store.aget(("ttl",), "short") is None
    assert [item.key for item in await store.asearch(("ttl",))] == ["kept"]
    await store.sweep()
    assert await agents_postgres.fetch("SELECT key FROM items") == [{"key": "kept"}]


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan"), 1e12])
async def test_a_time_that_is_none_is_refused(store: LongTermStore, ttl: float):
    with pytest.raises(InvalidRequestError):
        await store.aput(("ttl",), "k", {}, ttl=ttl)


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def test_the_client_puts_gets_searches_and_deletes(client: LangGraphClient):
    root = str(uuid7())
    await client.store.put_item([root, "users"], "ada", {"age": 36, "born": {"year": 1815}})
    await client.store.put_item([root, "users"], "alan", {"age": 41}, ttl=60)
    item = await client.store.get_item([root, "users"], "ada")
    assert item["namespace"] == [root, "users"]
    assert (item["key"], item["value"]) == ("ada", {"age": 36, "born": {"year": 1815}})
    found = await client.store.search_items([root], filter={"age": {"$gt": 40}})
    assert [item["key"] for item in found["items"]] == ["alan"]
    assert found["items"][0]["score"] is None
    listed = await client.store.list_namespaces(prefix=[root], max_depth=1)
    assert listed["namespaces"] == [[root]]
    await client.store.delete_item([root, "users"], "ada")
    await client.store.delete_item([root, "users"], "ada")
    assert await client.store.get_item([root, "users"], "ada") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/store/items", {"namespace": ["a.b"], "key": "k", "value": {}}, 422),
        ("PUT", "/store/items", {"namespace": [], "key": "k", "value": {}}, 400),
        ("PUT", "/store/items", {"namespace": ["langgraph"], "key": "k", "value": {}}, 400),
        ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": []}, 422),
        ("PUT", "/store/items", {"namespace": ["a"], "key": "", "value": {}}, 422),
        ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl": -1}, 422),
        ("PUT", "/store/items", {"namespace": ["a\0"], "key": "k", "value": {}}, 422),
        ("DELETE", "/store/items", {"namespace": [], "key": "k"}, 400),
        ("GET", "/store/items?namespace=a", None, 400),
        ("POST", "/store/items/search", {"limit": 0}, 422),
        ("POST", "/store/items/search", {"filter": {"a": {"$where": "1"}}}, 422),
        ("POST", "/store/namespaces", {"prefix": ["a"] * 1000}, 422),
        ("POST", "/store/namespaces", {"max_depth": 0}, 422),
    ],
)
async def test_bad_requests_are_refused(server: Server, method: str, path: str, body: Any, status: int):
    async with httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == status
        assert isinstance(answer.json()["detail"], str)


# --- inside graphs ----------------------------------------------------------------------------------------------------

AGENT = """
import asyncio
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    name: str
    seen: list

def remember(state: State, *, store: BaseStore) -> State:
    store.put(("people",), state["name"], {"text": state["name"] + " likes boats"})
    return {}

async def recall(state: State, *, store: BaseStore) -> State:
    found = await store.asearch(("people",), query="boats")
    return {"seen": sorted(item.key for item in found)}

builder = StateGraph(State)
builder.add_node(remember)
builder.add_node(recall)
builder.add_edge(START, "remember")
builder.add_edge("remember", "recall")
builder.add_edge("recall", END)
graph = builder.compile()
"""
EMBED = f"""
from zlib import crc32
DIMS = {DIMS}

async def embed(texts):
    vectors = []
    for text in texts:
        vector = [0.001] * DIMS
        for word in text.lower().split():
            vector[crc32(word.encode()) % DIMS] += 1.0
        vectors.append(vector)
    return vectors
"""


@pytest.fixture(scope="module")
def remembering() -> Iterator[httpx.Client]:
    """Start a server whose graph uses the store, which has an index."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        config = write_project(
            folder / "project",
            {"agent.py": AGENT, "embedding.py": EMBED},
            graphs={"agent": "./agent.py:graph"},
            store={"index": {"dims": DIMS, "embed": "./embedding.py:embed", "fields": ["text"]}},
        )
        server = make_server(folder, config)
        server.start()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            yield http
        server.stop()


def test_a_graph_remembers_across_threads_in_sync_and_async_nodes(remembering: httpx.Client):
    for name in ("ada", "alan"):
        result = remembering.post("/runs/wait", json={"assistant_id": "agent", "input": {"name": name}}).json()
    assert result["seen"] == ["ada", "alan"]
    item = remembering.get("/store/items", params={"namespace": "people", "key": "ada"}).json()
    assert item["value"] == {"text": "ada likes boats"}
    found = remembering.post("/store/items/search", json={"query": "likes boats"}).json()["items"]
    assert found[0]["score"] > 0.5


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"dims": DIMS, "embed": "./nowhere.py:embed"}, "store.index.embed"),
        ({"dims": 0, "embed": "./embedding.py:embed"}, "store.index.dims"),
        ({"dims": DIMS, "embed": "nobody:no-model"}, "store.index.embed"),
    ],
)
def test_an_index_that_cannot_be_made_stops_the_start(tmp_path_factory: Any, index: dict[str, Any], said: str):
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        config = write_project(
            folder / "project",
            {"agent.py": AGENT, "embedding.py": EMBED},
            graphs={"agent": "./agent.py:graph"},
            store={"index": index},
        )
        with pytest.raises(AssertionError, match=said):
            make_server(folder, config).start()


# --- users of a project -----------------------------------------------------------------------------------------------

USERS = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def authenticate(authorization: str | None):
    return (authorization or "nobody").removeprefix("Bearer ")

@auth.on
async def own(ctx, value):
    return {"owner": ctx.user.identity}
"""
STORE_OF_USERS = """
@auth.on.store
async def scoped(ctx, value):
    namespace = tuple(value["namespace"] or ())
    value["namespace"] = namespace if namespace[:1] == (ctx.user.identity,) else (ctx.user.identity, *namespace)
"""


def serve_users(folder: Path, auth: str) -> Server:
    folder.chmod(0o755)
    files = {"agent.py": AGENT, "auth.py": auth}
    config = write_project(folder / "project", files, auth={"path": "./auth.py:auth"})
    server = make_server(folder, config)
    server.start()
    return server


def test_a_handler_keeps_the_items_of_users_apart():
    with TemporaryDirectory(prefix="moorage-test-") as name:
        server = serve_users(Path(name), USERS + STORE_OF_USERS)
        with client_of(server, "ada") as ada, client_of(server, "bob") as bob:
            keeps_apart(ada, bob)
        server.stop()


def client_of(server: Server, who: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": who}, timeout=30)


def keeps_apart(ada: httpx.Client, bob: httpx.Client) -> None:
    assert ada.put("/store/items", json={"namespace": ["notes"], "key": "k", "value": {"n": 1}}).status_code == 204
    assert ada.get("/store/items?namespace=notes&key=k").json()["namespace"] == ["ada", "notes"]
    for path in ("notes", "ada.notes"):
        assert bob.get("/store/items", params={"namespace": path, "key": "k"}).json() is None
        bob.request("DELETE", "/store/items", json={"namespace": path.split("."), "key": "k"})
    assert bob.post("/store/items/search", json={"namespace_prefix": ["ada"]}).json() == {"items": []}
    assert bob.post("/store/items/search", json={}).json() == {"items": []}
    assert bob.post("/store/namespaces", json={}).json() == {"namespaces": []}
    assert ada.post("/store/namespaces", json={}).json() == {"namespaces": [["ada", "notes"]]}
    assert ada.get("/store/items?namespace=notes&key=k").json()["value"] == {"n": 1}


def test_a_filter_that_items_cannot_be_held_against_lets_nobody_in():
    with TemporaryDirectory(prefix="moorage-test-") as name:
        server = serve_users(Path(name), USERS)
        with client_of(server, "ada") as ada:
            answer = ada.put("/store/items", json={"namespace": ["notes"], "key": "k", "value": {}})
            assert answer.status_code == 403
            assert "value['namespace']" in answer.json()["detail"]
        server.stop()
