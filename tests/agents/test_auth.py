"""Users of a project with authentication of its own, through the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from langgraph_sdk import Auth
from psycopg.types.json import Jsonb

from moorage.agents.auth import CustomAuth, load_auth
from moorage.agents.records.filters import AnyOf, read_filter
from moorage.agents.records.users import user_of
from moorage.agents.store.visible import visible
from moorage.kernel.errors import StartupError
from moorage.kernel.postgres import Postgres
from tests.agents.guarded import GUARDED, client_of, credentials, http_of
from tests.serving import Server, make_server

pytest_plugins = "tests.kernel.fixtures"


def status_of(error: pytest.ExceptionInfo[httpx.HTTPStatusError]) -> tuple[int, str]:
    return error.value.response.status_code, error.value.response.json()["detail"]


async def test_a_user_sees_their_own_threads_and_nobody_elses(guarded: Server) -> None:
    async with client_of(guarded, "ada") as ada, client_of(guarded, "bob") as bob:
        thread = await ada.threads.create(metadata={"colour": "red", "owner": "bob"})
        assert thread["metadata"] == {"colour": "red", "owner": "ada"}
        assert (await ada.threads.get(thread["thread_id"]))["metadata"]["owner"] == "ada"
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await bob.threads.get(thread["thread_id"])
        assert status_of(refused)[0] == 404
        found = await ada.threads.search(metadata={"colour": "red"})
        assert thread["thread_id"] in [each["thread_id"] for each in found]
        assert thread["thread_id"] not in [each["thread_id"] for each in await bob.threads.search(limit=1000)]


async def test_nobody_is_let_in_without_a_token(guarded: Server) -> None:
    async with client_of(guarded, None) as nobody:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await nobody.threads.create()
    assert status_of(refused) == (401, "Who are you?")
    assert refused.value.response.headers["x-why"] == "token"


async def test_refusals_have_the_words_of_the_handler(guarded: Server) -> None:
    async with client_of(guarded, "guest") as guest:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await guest.runs.create(None, "whoami")
        assert status_of(refused) == (403, "Guests only read.")
        thread = await guest.threads.create()
        with pytest.raises(httpx.HTTPStatusError) as denied:
            await guest.threads.delete(thread["thread_id"])
        assert status_of(denied) == (403, "Forbidden")
        with pytest.raises(httpx.HTTPStatusError) as asserted:
            await guest.crons.delete(thread["thread_id"])
        assert status_of(asserted) == (403, "Crons stay.")


FORGED = {"langgraph_auth_user": {"identity": "root"}, "langgraph_auth_user_id": "root", "user_id": "root"}


@pytest.mark.parametrize(
    "given", [{}, {"config": {"configurable": FORGED}}, {"context": {"langgraph_auth_user_id": "root"}}]
)
@pytest.mark.parametrize("after_seconds", [None, 0.1])  # the row is claimed by a process, or its run starts at once
async def test_the_user_reaches_the_graph_and_cannot_be_forged(
    guarded: Server, given: dict[str, Any], after_seconds: float | None
) -> None:
    async with client_of(guarded, "ada") as ada:
        thread = await ada.threads.create()
        run = await ada.runs.create(thread["thread_id"], "whoami", input={}, after_seconds=after_seconds, **given)  # type: ignore[arg-type]
        told = (await ada.runs.join(thread["thread_id"], run["run_id"]))["told"]  # type: ignore[call-overload,index]
        assert told["user"]["org"] == "engines"
        assert "session" not in told["user"]
        assert told["by_attribute"] == told["user_id"] == told["server_info"] == told["context"] == "ada"
        assert told["permissions"] == ["runs:create", "crons:delete"]
        assert run["metadata"]["owner"] == "ada"


async def test_a_factory_is_told_the_user_for_runs_and_for_reads(guarded: Server) -> None:
    async with client_of(guarded, "ada") as ada:
        thread = await ada.threads.create()
        await ada.runs.wait(thread["thread_id"], "factory", input={})
        assert (await ada.threads.get_state(thread["thread_id"]))["values"]["told"]["user_id"] == "ada"
        assistant = (await ada.assistants.create("factory"))["assistant_id"]
        assert "ada" in [node["id"] for node in (await ada.assistants.get_graph(assistant))["nodes"]]


def test_no_frame_of_a_stream_shows_what_the_handlers_know_of_the_user(guarded: Server) -> None:
    modes = ["values", "updates", "debug", "checkpoints", "tasks", "events"]
    with http_of(guarded, "bob") as bob:
        stream = bob.post("/runs/stream", json={"assistant_id": "slow", "input": {"text": "0"}, "stream_mode": modes})
    assert "event: checkpoints" in stream.text
    assert "engines" not in stream.text


async def test_a_row_shared_by_a_list_can_be_read_and_nothing_else(guarded: Server) -> None:
    async with client_of(guarded, "ada") as ada, client_of(guarded, "bob") as bob:
        thread_id = (await ada.threads.create(metadata={"shared": ["carl", "bob"]}))["thread_id"]
        assert (await bob.threads.get(thread_id))["metadata"]["owner"] == "ada"
        assert await bob.threads.get_history(thread_id) == []
        for attempt in (
            bob.runs.create(thread_id, "whoami"),
            bob.runs.create(thread_id, "whoami", if_not_exists="create"),
            bob.threads.update(thread_id, metadata={"owner": "bob"}),
            bob.threads.delete(thread_id),
        ):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await attempt
            assert status_of(refused)[0] == 404


async def test_a_running_run_is_followed_and_stopped_by_its_owner_alone(guarded: Server) -> None:
    async with client_of(guarded, "ada") as ada, client_of(guarded, "bob") as bob:
        thread_id = (await ada.threads.create())["thread_id"]
        run = await ada.runs.create(thread_id, "slow", input={"text": "60"})
        hidden = await ada.runs.create(None, "slow", input={"text": "60"})
        for place in (thread_id, hidden["thread_id"]):
            run_id = run["run_id"] if place == thread_id else hidden["run_id"]
            assert [part.event async for part in bob.runs.join_stream(place, run_id)] == ["error"]
            assert "__error__" in await bob.runs.join(place, run_id)
            for attempt in (
                bob.runs.cancel(place, run_id),
                bob.runs.delete(place, run_id),
                bob.runs.get(place, run_id),
            ):
                with pytest.raises(httpx.HTTPStatusError) as refused:
                    await attempt
                assert status_of(refused)[0] == 404
        with pytest.raises(httpx.HTTPStatusError):
            await bob.runs.cancel_many(status="all")
        assert (await ada.runs.get(thread_id, run["run_id"]))["status"] in ("pending", "running")
        await ada.runs.cancel_many(status="all")
        ended = await ada.runs.join(thread_id, run["run_id"])
        assert ended is not None
        assert (await ada.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"


def test_the_document_says_how_callers_authenticate(guarded: Server) -> None:
    document = httpx.get(f"{guarded.url}/openapi.json").json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["security"] == [{"token": []}]
    assert document["paths"]["/info"]["get"]["security"] == []


# --- filters --------------------------------------------------------------------------------------------------------

ROWS = [
    {"owner": "ada"},
    {"owner": "bob", "team": ["ada", "bob"]},
    {"owner": ["ada"]},
    {"owner": {"name": "ada"}},
    {"owner": {"name": "ada", "more": 1}},
    {"owner": None},
    {"team": "ada"},
    {"team": ["ada"]},
    {"owner": "a\"' $1 %s", "level": 5},
    {},
]
FILTERS: list[tuple[dict[str, Any], set[int]]] = [
    ({"owner": "ada"}, {0}),
    ({"owner": {"$eq": "ada"}}, {0}),
    ({"owner": None}, {5}),
    ({"owner": {"name": "ada"}}, {3}),
    ({"owner": ["ada"]}, {2}),
    ({"team": {"$contains": "ada"}}, {1, 7}),
    ({"team": {"$contains": ["ada", "bob"]}}, {1}),
    ({"owner": {"$contains": "ada"}}, {2}),
    ({"owner": "bob", "team": {"$contains": "ada"}}, {1}),
    ({"$or": [{"owner": "ada"}, {"team": {"$contains": "ada"}}]}, {0, 1, 7}),
    ({"$and": [{"owner": "bob"}, {"$or": [{"team": {"$contains": "ada"}}, {"level": 5}]}]}, {1}),
    ({"owner": "a\"' $1 %s"}, {8}),
    ({"level": 5}, {8}),
    ({"level": "5"}, set()),
    ({"nothing": "x"}, set()),
    ({}, set(range(len(ROWS)))),
]


@pytest.mark.parametrize(("given", "expected"), FILTERS, ids=str)
async def test_a_filter_means_the_same_in_sql(
    agents_postgres: Postgres, given: dict[str, Any], expected: set[int]
) -> None:
    condition, values = visible(read_filter(given), "metadata")
    rows = [(number, Jsonb(row)) for number, row in enumerate(ROWS)]
    table = ", ".join(f"(%(n{number})s::int, %(m{number})s::jsonb)" for number, _ in rows)
    bound = {f"n{number}": number for number, _ in rows} | {f"m{number}": row for number, row in rows}
    sql = f"SELECT number FROM (VALUES {table}) AS rows (number, metadata) WHERE {condition}"
    found = await agents_postgres.fetch(sql, {**bound, **values})
    assert {row["number"] for row in found} == expected


@pytest.mark.parametrize(
    "given",
    [5, "owner", [], {"a": {"$gt": 1}}, {"$or": []}, {"$or": {"a": 1}}, {"$not": [{}]}, {"a": object()}, {1: "a"},
     {"a": {"$contains": []}}, {"a": {"$contains": {"b": 1}}}, {"a": {"$eq": 1, "b": 2}}],
)  # fmt: skip
def test_what_is_no_filter_lets_nobody_in(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_filter(given)


def test_an_empty_choice_is_never_everything() -> None:
    assert visible(AnyOf(()), "metadata")[0] == "FALSE"


# --- handlers -------------------------------------------------------------------------------------------------------


async def test_the_most_specific_handler_decides() -> None:
    auth, called = Auth(), list[str]()

    def handler(name: str) -> Any:
        async def decide(ctx: Any, value: Any) -> None:
            called.append(name)

        return decide

    auth.authenticate(lambda: "ada")  # type: ignore[type-var,arg-type]
    auth.on(handler("everything"))
    auth.on.threads(handler("threads"))
    auth.on.threads.create(handler("threads.create"))
    auth.on(actions=["read"])(handler("read"))
    custom = CustomAuth(auth, 5)
    asked: list[tuple[Any, str]] = [("threads", "create"), ("threads", "read"), ("crons", "read"), ("store", "put")]
    for resource, action in asked:
        await custom.decide(user_of("ada"), resource, action, {})
    assert called == ["threads.create", "threads", "read", "everything"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("auth = 5", "is a int, not a langgraph_sdk.Auth"),
        ("from langgraph_sdk import Auth\nauth = Auth()", "has no handler"),
        ("import nowhere", "ModuleNotFoundError"),
    ],
)
def test_authentication_that_cannot_work_stops_the_start(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "auth.py").write_text(source)
    with pytest.raises(StartupError, match=words):
        load_auth("./auth.py:auth", tmp_path)


def test_a_parameter_that_nobody_knows_stops_the_start() -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(password: str) -> str:
        return password

    with pytest.raises(StartupError, match="takes password"):
        CustomAuth(auth, 5)


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty() -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), GUARDED.with_name("faulty.json"), MOORAGE_AUTH_TIMEOUT_SECONDS="1")
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture
def api(faulty: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=faulty.url, timeout=60) as client:
        yield client


FAILED = "The authentication of this application failed; its log says why"


@pytest.mark.parametrize(
    ("does", "status", "detail"),
    [
        ("raise", 500, FAILED),
        ("number", 500, FAILED),
        ("empty", 500, FAILED),
        ("permissions", 500, FAILED),
        ("hang", 503, "The authentication of this application did not answer in time"),
        ("assert", 401, "not you"),
        ("none", 401, "Unauthorized"),
        ("unauthenticated", 401, "Unauthorized"),
        ("fastapi", 402, "pay first"),
    ],
)
@pytest.mark.parametrize("path", ["/threads", "/mine"])
def test_a_failing_authentication_lets_nobody_in(
    api: httpx.Client, does: str, status: int, detail: str, path: str
) -> None:
    answer = api.request("POST" if path == "/threads" else "GET", path, json={}, headers={"x-does": does})
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})


@pytest.mark.parametrize(
    ("decide", "status"),
    [("raise", 500), ("hang", 503), ("number", 500), ("operator", 500), ("or", 500), ("metadata", 500), ("block", 200)],
)
def test_a_failing_decision_changes_nothing(api: httpx.Client, decide: str, status: int) -> None:
    answer = api.post("/threads", json={"metadata": {"decide": decide}})
    assert answer.status_code == status
    assert "secret" not in answer.text
    found = api.post("/threads/search", json={"metadata": {"decide": decide}})
    assert found.status_code == (status if status != 200 else 200)


def test_a_filter_on_a_key_that_rows_do_not_have_hides_them(api: httpx.Client) -> None:
    assert api.post("/threads", json={"metadata": {"decide": "unknown"}}).status_code == 200
    assert api.post("/threads/search", json={"metadata": {"decide": "unknown"}}).json() == []


def test_a_synchronous_handler_blocks_nobody_else(faulty: Server) -> None:
    async def at_once() -> float:
        async with httpx.AsyncClient(base_url=faulty.url, timeout=60) as client:
            began_at = asyncio.get_running_loop().time()
            slow = [client.post("/threads", json={}, headers={"x-does": "sleep"}) for _ in range(8)]
            answers = await asyncio.gather(*slow)
            assert {answer.status_code for answer in answers} == {200}
            return asyncio.get_running_loop().time() - began_at

    assert asyncio.run(at_once()) < 3.5  # one after another takes 4 s


def test_a_handler_is_given_what_it_asks_for_by_name(api: httpx.Client) -> None:
    thread_id = api.post("/threads", json={}).json()["thread_id"]
    sent = {"metadata": {"decide": "user", "a": 1}}
    answer = api.patch(f"/threads/{thread_id}?q=1", json=sent, headers={"authorization": "Basic x"})
    seen = answer.json()["metadata"]["seen"]
    seen.pop("times")
    assert seen == {
        "same": True,
        "authorization": "Basic x",
        "path": f"/threads/{thread_id}",
        "method": "PATCH",
        "path_params": {"thread_id": thread_id},
        "query_params": {"q": "1"},
        "body": sent,
        "request": f"/threads/{thread_id}",
    }


def test_an_object_may_be_a_user(api: httpx.Client) -> None:
    made = api.post("/threads", json={"metadata": {"decide": "user"}}, headers={"x-does": "object"})
    assert made.json()["metadata"]["team"] == "blue"


def test_a_user_is_remembered_by_the_named_headers(api: httpx.Client) -> None:
    def times(cached: str) -> int:
        made = api.post("/threads", json={"metadata": {"decide": "user"}}, headers={"x-cached": cached})
        return int(made.json()["metadata"]["seen"]["times"])

    assert times("a") == times("a")
    assert times("b") > times("a")


def test_own_routes_ask_for_a_user_where_they_shall_and_see_who_it_is(api: httpx.Client) -> None:
    assert api.get("/mine").json() == {"user": "user"}
    assert api.get("/mine", headers={"x-does": "assert"}).status_code == 401
    assert api.get("/order").json() == {"authenticated": True}


@pytest.mark.parametrize(
    "path", ["/ok/../threads/search", "//threads/search", "/docs/../threads/search", "/ok%2f..%2fthreads"]
)
def test_no_way_of_writing_a_path_gets_around_authentication(guarded: Server, path: str) -> None:
    url = httpx.URL(guarded.url).copy_with(raw_path=path.encode())
    assert httpx.post(url, json={}).status_code in (401, 404)
    assert httpx.post(url, json={}, headers={"Cookie": "user=ada", "x-user": "ada"}).status_code in (401, 404)


def test_a_request_that_comes_around_authentication_is_nobodys(api: httpx.Client) -> None:
    assert api.post("/threads/count", json={}).status_code == 200
    assert api.post("/rewritten", json={}).status_code == 401


def test_only_a_platform_knows_developers(guarded: Server) -> None:
    headers = {"x-auth-scheme": "langsmith", "x-api-key": "anything"}
    assert httpx.post(f"{guarded.url}/threads", json={}, headers=headers).status_code == 401
    assert httpx.post(f"{guarded.url}/threads", json={}, headers={**headers, **credentials("bob")}).status_code == 200


async def test_studio_is_let_in_by_a_key_of_the_platform() -> None:
    class Platform:
        async def admit(self, api_key: str | None, bearer: str | None) -> None:
            if api_key != "good":
                raise StartupError("no")

    auth, seen = Auth(), list[Any]()
    auth.authenticate(lambda: "somebody")  # type: ignore[type-var,arg-type]

    @auth.on
    async def note(ctx: Any, value: Any) -> None:
        seen.append(ctx.user)

    headers = {"x-auth-scheme": "langsmith", "x-api-key": "good"}
    developer = await CustomAuth(auth, 5, Platform()).principal(headers, {})
    await developer.may("threads", "read", {})
    assert isinstance(seen[0], Auth.types.StudioUser)
    assert developer.user is not None
    assert json.loads(json.dumps(developer.user))["kind"] == "StudioUser"
    with pytest.raises(StartupError):
        await CustomAuth(auth, 5, Platform()).principal({**headers, "x-api-key": "bad"}, {})
    assert (await CustomAuth(auth, 5).principal(headers, {})).identity == "somebody"


async def test_metadata_of_a_thread_does_not_open_an_assistant_of_somebody_else(guarded: Server) -> None:
    """Matters because a factory makes its graph from the assistant's configuration, and callers may write a thread's
    metadata.
    """
    async with client_of(guarded, "ada") as ada:
        config = {"configurable": {"suffix": "-secret"}}
        assistant = (await ada.assistants.create("factory", config=config))["assistant_id"]
    for token, status in (("ada", 200), ("bob", 400)):
        with http_of(guarded, token) as http:
            metadata = {"graph_id": "factory", "assistant_id": assistant}
            thread = http.post("/threads", json={"metadata": metadata}).json()["thread_id"]
            update = {"values": {"text": "x"}, "as_node": f"{token}-secret"}
            assert http.post(f"/threads/{thread}/state", json=update).status_code == status
