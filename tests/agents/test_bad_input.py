"""What the server answers to requests that are wrong, and how a graph that fails is told from one that works.

The first table is section (e) of the wire page: every refusal that clients meet, with its whole body.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid5

import httpx
import pytest

from tests.serving import PROJECT, ROOT, Server, make_server

NOBODY = "00000000-0000-4000-8000-000000000000"
# Made by `_furnished` before the first test.
NEW_THREAD = "00000000-0000-4000-8000-0000000000a1"
USED_THREAD = "00000000-0000-4000-8000-0000000000a2"
BUSY_THREAD = "00000000-0000-4000-8000-0000000000a3"
ASSISTANT = "00000000-0000-4000-8000-0000000000b1"
SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
GRAPHS = sorted(json.loads(PROJECT.read_text())["graphs"])

SECRET = "hunter2"
HOST_PATH = str(ROOT)


def system(graph: str) -> UUID:
    """The id of the graph's own assistant."""
    return uuid5(SYSTEM_NAMESPACE, graph)


@pytest.fixture(scope="module", autouse=True)
def _furnished(server: Server) -> Iterator[None]:
    """A thread without runs, one with an ended run, one with a run under way; an assistant."""
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for thread_id in (NEW_THREAD, USED_THREAD, BUSY_THREAD):
            assert http.post("/threads", json={"thread_id": thread_id}).is_success
        assert http.post("/assistants", json={"assistant_id": ASSISTANT, "graph_id": "echo"}).is_success
        run = {"assistant_id": "echo", "input": {"text": "x"}}
        assert http.post(f"/threads/{USED_THREAD}/runs/wait", json=run).is_success
        long = {"assistant_id": "slow", "input": {"seconds": 600}}
        under_way = http.post(f"/threads/{BUSY_THREAD}/runs", json=long).json()["run_id"]
        yield
        http.post(f"/threads/{BUSY_THREAD}/runs/{under_way}/cancel?wait=1")
        for thread_id in (NEW_THREAD, USED_THREAD, BUSY_THREAD):
            assert http.delete(f"/threads/{thread_id}").is_success
        assert http.delete(f"/assistants/{ASSISTANT}").is_success


def schema(sentence: str, keyword: str, instance: str) -> str:
    return f'{sentence}\n\nFailed validating "{keyword}" in schema\n\nOn instance:\n    {instance}'


NO_JSON = "Invalid JSON in request body"
UNKNOWN_GRAPH = f"Graph 'nope' not found. Expected one of: {GRAPHS}"
INVALID_ASSISTANT = (
    "Invalid assistant: 'nope'. Must be either:\n- A valid assistant UUID, or\n"
    f"- One of the registered graphs: {', '.join(GRAPHS)}"
)
BOTH_CONTEXTS = (
    "Cannot specify both configurable and context. Prefer setting context alone. Context was introduced in LangGraph "
    "0.6.0 and is the long term planned replacement for configurable."
)
BOTH = {"config": {"configurable": {"a": 1}}, "context": {"b": 2}}
BUSY = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
NO_GRAPH = (
    f"Thread '{NEW_THREAD}' has no assigned graph ID. This usually occurs when no runs have been made on this "
    "particular thread. This operation requires a graph ID. Please ensure a run has been made for the thread or "
    "manually update the thread metadata (by setting the 'graph_id' field)."
)
RUN = {"assistant_id": "echo"}
NOT_A_UUID = "not-a-uuid"
BLOCKED = "Webhook host blocked: loopback IP range"

# Section (e): case, request, body, status, detail.
REFUSALS: list[tuple[str, str, Any, int, str]] = [
    # schema violation
    ("POST /runs", "", {}, 422, schema('"assistant_id" is a required property', "required", "{}")),
    ("POST /runs/wait", "", {}, 422, schema('"assistant_id" is a required property', "required", "{}")),
    ("POST /runs/stream", "", {}, 422, schema('"assistant_id" is a required property', "required", "{}")),
    ("POST /assistants", "", {"name": "a"}, 422, schema('"graph_id" is a required property', "required", '{"name":"a"}')),
    # bad JSON or empty body
    ("POST /runs/wait", "bad JSON", b"{", 422, NO_JSON),
    ("POST /runs/wait", "empty body", b"", 422, NO_JSON),
    ("POST /threads", "empty body", b"", 422, NO_JSON),
    ("POST /assistants/search", "empty body", b"", 422, NO_JSON),
    # non-UUID
    (f"GET /threads/{NOT_A_UUID}", "", None, 422, "Invalid thread ID: must be a UUID"),
    (f"POST /threads/{NOT_A_UUID}/runs", "", RUN, 422, "Invalid thread ID"),
    (f"GET /assistants/{NOT_A_UUID}", "", None, 422, "Invalid assistant ID: must be a UUID"),
    ("GET /assistants/echo", "a graph is no assistant here", None, 422, "Invalid assistant ID: must be a UUID"),
    # unknown graph name in a run
    ("POST /runs/wait", "unknown graph", {"assistant_id": "nope"}, 422, INVALID_ASSISTANT),
    (f"POST /threads/{NEW_THREAD}/runs", "unknown graph", {"assistant_id": "nope"}, 422, INVALID_ASSISTANT),
    # same in an assistant
    ("POST /assistants", "unknown graph", {"graph_id": "nope"}, 404, UNKNOWN_GRAPH),
    (f"PATCH /assistants/{ASSISTANT}", "unknown graph", {"graph_id": "nope"}, 404, UNKNOWN_GRAPH),
    ("POST /assistants/search", "unknown graph", {"graph_id": "nope"}, 404, UNKNOWN_GRAPH),
    # webhook policy; the rest of it is in test_webhooks.py
    ("POST /runs/wait", "webhook", {**RUN, "webhook": "http://example.com/"}, 422, "Webhook must use https"),
    ("POST /runs", "webhook", {**RUN, "webhook": "https://127.0.0.1/"}, 422, BLOCKED),
    # run on unknown thread or assistant
    (f"POST /threads/{NOBODY}/runs", "", RUN, 404, "Thread or assistant not found."),
    (f"POST /threads/{NOBODY}/runs/stream", "", RUN, 404, "Thread or assistant not found."),
    (f"POST /threads/{NOBODY}/runs/wait", "", RUN, 404, "Thread or assistant not found."),
    (f"POST /threads/{NEW_THREAD}/runs", "", {"assistant_id": NOBODY}, 404, "Thread or assistant not found."),
    ("POST /runs/wait", "", {"assistant_id": NOBODY}, 404, "Thread or assistant not found."),
    # thread missing
    (f"GET /threads/{NOBODY}", "", None, 404, f"Thread with ID {NOBODY} not found"),
    (f"PATCH /threads/{NOBODY}", "", {"metadata": {}}, 404, "Not Found"),
    (f"DELETE /threads/{NOBODY}", "", None, 404, f"Thread with ID {NOBODY} not found"),
    (f"GET /threads/{NOBODY}/state", "", None, 404, f"Thread with ID {NOBODY} not found"),
    (f"POST /threads/{NOBODY}/state", "", {"values": {}}, 404, f"Thread with ID {NOBODY} not found"),
    (f"GET /threads/{NOBODY}/history", "", None, 404, f"Thread with ID {NOBODY} not found"),
    (f"GET /threads/{NOBODY}/runs", "", None, 404, f"Thread with ID {NOBODY} not found"),
    (f"POST /threads/{NOBODY}/copy", "", None, 409, "Conflict"),
    # run missing
    (f"GET /threads/{NEW_THREAD}/runs/{NOBODY}", "", None, 404, "Not Found"),
    (f"DELETE /threads/{NEW_THREAD}/runs/{NOBODY}", "", None, 404, "Run not found"),
    # assistant missing
    (f"GET /assistants/{NOBODY}", "", None, 404, "Not Found"),
    (f"PATCH /assistants/{NOBODY}", "", {"name": "a"}, 404, f"Assistant {NOBODY} not found"),
    (f"DELETE /assistants/{NOBODY}", "", None, 404, f"Assistant with ID {NOBODY} not found"),
    (f"GET /assistants/{NOBODY}/graph", "", None, 404, "Not Found"),
    (f"GET /assistants/{NOBODY}/schemas", "", None, 404, "Not Found"),
    (f"POST /assistants/{NOBODY}/versions", "", {}, 404, "Not Found"),
    (f"POST /assistants/{NOBODY}/latest", "", {"version": 1}, 404, "Not Found"),
    # assistant or thread exists
    ("POST /assistants", "exists", {"assistant_id": ASSISTANT, "graph_id": "echo"}, 409, f"Assistant {ASSISTANT} already exists"),
    ("POST /threads", "exists", {"thread_id": NEW_THREAD}, 409, f"Thread with ID {NEW_THREAD} already exists"),
    # busy + reject
    (f"POST /threads/{BUSY_THREAD}/runs", "busy", {**RUN, "multitask_strategy": "reject"}, 409, BUSY),
    (f"POST /threads/{BUSY_THREAD}/runs/wait", "busy", {**RUN, "multitask_strategy": "reject"}, 409, BUSY),
    # configurable and context both
    ("POST /runs/wait", "both contexts", {**RUN, **BOTH}, 400, BOTH_CONTEXTS),
    (f"POST /threads/{NEW_THREAD}/runs", "both contexts", {**RUN, **BOTH}, 400, BOTH_CONTEXTS),
    ("POST /assistants", "both contexts", {"graph_id": "echo", **BOTH}, 400, BOTH_CONTEXTS),
    # no graph on thread; unknown as_node
    (f"POST /threads/{NEW_THREAD}/state", "no graph", {"values": {}}, 400, NO_GRAPH),
    (f"POST /threads/{USED_THREAD}/state", "no node", {"values": {}, "as_node": "zzz"}, 400, "Node zzz does not exist"),
    # nothing to cancel
    (f"POST /threads/{NEW_THREAD}/runs/{NOBODY}/cancel", "", None, 404, "No runs found to cancel."),
    ("POST /runs/cancel", "", {"thread_id": NEW_THREAD, "run_ids": [NOBODY]}, 404, "No matching runs to cancel. They may not exist, or have ended already."),
    # no such place, or no such method there
    ("GET /nowhere", "", None, 404, "Not Found"),
    ("PUT /assistants", "", None, 405, "Method Not Allowed"),
    # 64 bit, and what the database cannot hold
    ("POST /threads", "over 64 bit", {"metadata": {"n": 2**64}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    ("POST /runs/wait", "over 64 bit", {**RUN, "input": {"items": [2**64]}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    (f"POST /threads/{USED_THREAD}/state", "over 64 bit", {"values": {"text": 2**64}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    # what is not JSON after all
    ("POST /threads", "NaN", b'{"metadata":{"n":NaN}}', 422, NO_JSON),
    ("POST /runs/wait", "NaN", b'{"assistant_id":"echo","input":{"items":[NaN]}}', 422, NO_JSON),
    ("POST /runs/wait", "Infinity", b'{"assistant_id":"echo","input":{"items":[-Infinity]}}', 422, NO_JSON),
    ("POST /threads", "lone surrogate", b'{"metadata":{"s":"\\ud800"}}', 422, NO_JSON),
    ("POST /runs/wait", "lone surrogate", b'{"assistant_id":"echo","input":{"text":"\\udc00"}}', 422, NO_JSON),
    ("POST /threads", "no UTF-8", b'{"metadata":{"s":"\xff"}}', 422, NO_JSON),
    ("POST /threads", "an array", [], 422, schema("Input should be an object", "type", "[]")),
]  # fmt: skip


@pytest.mark.parametrize(
    "request_line, case, body, status, detail", REFUSALS, ids=[f"{line} {case}" for line, case, *_ in REFUSALS]
)
async def test_a_wrong_request_is_refused_in_words(http, request_line, case, body, status, detail):
    before = await counts(http)
    answer = await send(http, request_line, body)
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})
    assert await counts(http) == before


async def send(http: httpx.AsyncClient, request_line: str, body: Any = None) -> httpx.Response:
    """`body`: bytes as they are, None for none, anything else as JSON."""
    method, path = request_line.split(" ")
    if isinstance(body, bytes) or body is None:
        return await http.request(method, path, content=body)
    return await http.request(method, path, content=json.dumps(body))


async def counts(http: httpx.AsyncClient) -> dict[str, Any]:
    """How much there is of everything that a wrong request could have made."""
    return {
        "assistants": (await http.post("/assistants/count", json={})).json(),
        "threads": (await http.post("/threads/count", json={})).json(),
        **{
            thread_id: len((await http.get(f"/threads/{thread_id}/runs?limit=1000")).json())
            for thread_id in (NEW_THREAD, USED_THREAD, BUSY_THREAD)
        },
        "assistant": (await http.get(f"/assistants/{ASSISTANT}")).json(),
    }


async def test_a_state_update_while_busy_names_the_runs_and_nothing_else(http):
    (run,) = (await http.get(f"/threads/{BUSY_THREAD}/runs")).json()
    answer = await http.post(f"/threads/{BUSY_THREAD}/state", json={"values": {}})
    detail = f"Thread {BUSY_THREAD} has in-flight runs: [{run['run_id']}]"
    assert (answer.status_code, answer.json()) == (409, {"detail": detail})


async def test_an_ended_run_cannot_be_cancelled(http):
    (run,) = (await http.get(f"/threads/{USED_THREAD}/runs")).json()
    answer = await http.post(f"/threads/{USED_THREAD}/runs/{run['run_id']}/cancel")
    assert (answer.status_code, answer.json()) == (404, {"detail": "No runs found to cancel."})


async def test_a_crash_says_nothing_about_itself(http):
    """Here the factory of a graph breaks down while its schemas are read."""
    answer = await http.get(f"/assistants/{system('factory_fails')}/schemas")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert answer.headers["content-type"].startswith("text/plain")


# --- identifiers --------------------------------------------------------------------------------------------------

# Enough for every operation that reads its body before its path.
ANY_BODY = {"assistant_id": "echo", "graph_id": "echo", "version": 1, "checkpoint": {}, "values": {}}
IDS = {"{thread_id}": NEW_THREAD, "{run_id}": NOBODY, "{assistant_id}": ASSISTANT}


async def test_every_identifier_of_every_operation_must_be_a_uuid(http):
    paths = (await http.get("/openapi.json")).json()["paths"]
    asked = 0
    for path, operations in paths.items():
        for name in (name for name in IDS if name in path):
            wrong = path.replace(name, NOT_A_UUID)
            for other, known in {**IDS, "{checkpoint_id}": NOBODY, "{namespace}": "a"}.items():
                wrong = wrong.replace(other, known)
            for method in operations:
                answer = await http.request(method, wrong, json=None if method in ("get", "delete") else ANY_BODY)
                assert answer.status_code == 422, f"{method} {wrong}: {answer.text}"
                assert NAMED[name] in answer.json()["detail"], f"{method} {wrong}: {answer.text}"
                asked += 1
    assert asked > 30


NAMED = {"{thread_id}": "Invalid thread ID", "{run_id}": "Invalid run ID", "{assistant_id}": "Invalid assistant ID"}


@pytest.mark.parametrize("xray", ["0", "-1", "deep", "1.5", "²", ""])
async def test_xray_is_a_flag_or_a_depth(http, xray):
    answer = await http.get(f"/assistants/{system('echo')}/graph", params={"xray": xray})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("Invalid xray value")


# --- the types of fields ------------------------------------------------------------------------------------------

CONFIG = [1, "c", [], {"tags": "t"}, {"recursion_limit": "many"}, {"recursion_limit": 0}, {"configurable": []}]
REF = [1, "c", [], {"checkpoint_id": 1}, {"checkpoint_ns": 1}, {"thread_id": 1}, {"checkpoint_map": []}]
SELECT = [1, "values", [1]]
BEFORE = [1, [], {"configurable": 1}, {"configurable": {"checkpoint_id": 1}}, {"checkpoint_id": 1}]
OBJECT = [1, "o", []]
RUN_FIELDS: dict[str, list[Any]] = {
    "assistant_id": [1, None, {}, 2**64],
    "command": ["resume", 1, [], {"goto": 1}, {"goto": [1]}, {"goto": {"input": 1}}, {"update": "u"}],
    "metadata": OBJECT,
    "config": CONFIG,
    "context": OBJECT,
    "interrupt_before": [1, "a", [1]],
    "interrupt_after": [1, "a", [1]],
    "stream_mode": [1, "thoughts", ["values", "thoughts"], {}],
    "stream_subgraphs": [1, "true"],
    "stream_resumable": [1, "true"],
    "webhook": [1, "", [], "a" * 65537, "http://example.com/", "/hook"],
    "feedback_keys": [1, "good", [1]],
    "on_disconnect": [1, "explode"],
    "after_seconds": ["soon", -1],
    "checkpoint_during": [1, "true"],
    "durability": [1, "never"],
    "multitask_strategy": [1, "race"],
}
ON_THREAD = {
    "checkpoint": REF,
    "checkpoint_id": [1, {}],
    "if_not_exists": [1, "explode"],
}
TTL = [5, "day", [], {"ttl": 0}, {"ttl": "5"}, {"ttl": 5, "strategy": "burn"}, {"strategy": "delete"}]
ON_COMPLETION = {"on_completion": [1, "explode"]}
PAGE = {"limit": [0, 1001, -1, "ten", 1.5, 2**64], "offset": [-1, "none", 2**64]}
SORT = {"sort_by": [1, "colour"], "sort_order": [1, "up"], "select": ["name", ["colour"], [1]]}
ASSISTANT_SEARCH = {"metadata": OBJECT, "graph_id": [1], "name": [1]}
THREAD_SEARCH = {"metadata": OBJECT, "values": OBJECT, "status": [1, "lazy"]}
ASSISTANT_FIELDS = {
    "graph_id": [1, []],
    "config": OBJECT,
    "context": OBJECT,
    "metadata": OBJECT,
    "name": [1, []],
    "description": [1, []],
}
SUPERSTEPS = [1, {}, [1], [{"updates": [{"values": {}}]}], [{"updates": [{"as_node": 1}]}], [{}]]

# Operation, a body that is right, and for each of its fields values that are wrong.
WRONG: list[tuple[str, dict[str, Any], dict[str, list[Any]]]] = [
    (f"POST /threads/{NEW_THREAD}/runs", RUN, {**RUN_FIELDS, **ON_COMPLETION, **ON_THREAD}),
    (f"POST /threads/{NEW_THREAD}/runs/stream", RUN, {**RUN_FIELDS, **ON_COMPLETION, **ON_THREAD}),
    (f"POST /threads/{NEW_THREAD}/runs/wait", RUN, {**RUN_FIELDS, **ON_COMPLETION, **ON_THREAD}),
    ("POST /runs", RUN, {**RUN_FIELDS, **ON_COMPLETION}),
    (
        "POST /runs/cancel",
        {"thread_id": NEW_THREAD, "run_ids": []},
        {"thread_id": [1, "x", None], "run_ids": [1, ["x"], None], "status": [1, "lazy", "all"]},
    ),
    (
        "POST /assistants",
        {"graph_id": "echo"},
        {**ASSISTANT_FIELDS, "assistant_id": [1, "x"], "if_exists": [1, "explode"]},
    ),
    (f"PATCH /assistants/{ASSISTANT}", {}, ASSISTANT_FIELDS),
    ("POST /assistants/search", {}, {**ASSISTANT_SEARCH, **PAGE, **SORT}),
    ("POST /assistants/count", {}, ASSISTANT_SEARCH),
    (f"POST /assistants/{ASSISTANT}/versions", {}, {"metadata": OBJECT, **PAGE}),
    (f"POST /assistants/{ASSISTANT}/latest", {"version": 1}, {"version": ["one", None, 1.5]}),
    (
        "POST /threads",
        {},
        {"thread_id": [1, "x"], "metadata": OBJECT, "if_exists": [1, "explode"], "supersteps": SUPERSTEPS, "ttl": TTL},
    ),
    (f"PATCH /threads/{NEW_THREAD}", {}, {"metadata": OBJECT, "ttl": TTL}),
    (
        "POST /threads/search",
        {},
        {
            **THREAD_SEARCH,
            **PAGE,
            **SORT,
            "ids": ["all", ["x"], [1]],
            "extract": [1, [], {"a": 1}, {"a": "values["}, {"a": "config.b"}, {str(n): "values" for n in range(11)}],
        },
    ),
    ("POST /threads/count", {}, THREAD_SEARCH),
    (
        "POST /threads/prune",
        {"thread_ids": []},
        {"thread_ids": [1, "all", ["x"]], "strategy": [1, "burn"], "dry_run": ["maybe", 1]},
    ),
    (
        f"POST /threads/{USED_THREAD}/state",
        {"values": {}},
        {"as_node": [1], "checkpoint": REF, "checkpoint_id": [1]},
    ),
    (
        f"POST /threads/{USED_THREAD}/state/checkpoint",
        {"checkpoint": {}},
        {"checkpoint": REF, "subgraphs": [1, "yes"], "select": SELECT},
    ),
    (
        f"POST /threads/{USED_THREAD}/history",
        {},
        {"limit": [-1, 1001, "ten"], "before": BEFORE, "metadata": OBJECT, "checkpoint": REF, "select": SELECT},
    ),
]
HARMLESS = [case for case in WRONG if "runs" not in case[0] and "state" not in case[0]]
BY_NAME = [request_line for request_line, _, _ in WRONG]


@pytest.mark.parametrize("request_line, right, fields", WRONG, ids=BY_NAME)
async def test_a_field_of_the_wrong_type_is_refused_and_changes_nothing(http, request_line, right, fields):
    before = await counts(http)
    accepted = []
    for field, values in fields.items():
        for value in values:
            answer = await send(http, request_line, {**right, field: value})
            if answer.status_code != 422 or not isinstance(answer.json()["detail"], str):
                accepted.append(f"{field}={value!r}: {answer.status_code}")
    assert accepted == []
    assert await counts(http) == before


@pytest.mark.parametrize("batch", [[], {}, [{}], [RUN, {"assistant_id": 1}], [RUN, {**RUN, "durability": "never"}]])
async def test_a_batch_with_one_wrong_run_starts_none(http, batch):
    before = await counts(http)
    answer = await http.post("/runs/batch", json=batch)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)
    assert await counts(http) == before


@pytest.mark.parametrize("values", [{"items": "no list"}, [1], "text"])
async def test_values_that_a_graph_cannot_take_are_a_bad_request(http, values):
    """Here a reducer breaks down on them."""
    before = (await http.get(f"/threads/{USED_THREAD}/state")).json()
    answer = await http.post(f"/threads/{USED_THREAD}/state", json={"values": values})
    assert answer.status_code == 400
    assert isinstance(answer.json()["detail"], str)
    assert (await http.get(f"/threads/{USED_THREAD}/state")).json() == before


# Graphs decide what these may be.
ANYTHING = frozenset({"input", "values", "resume"})
# Not served yet: see `test_a_field_that_is_not_served_yet_is_refused_by_name`.
UNSERVED = frozenset({"strict_resume", "langsmith_tracer"})


@pytest.mark.parametrize("request_line, right, fields", WRONG, ids=BY_NAME)
async def test_the_table_above_knows_every_field(http, request_line, right, fields):
    document = (await http.get("/openapi.json")).json()
    method, path = request_line.split(" ")
    for known, name in ((NEW_THREAD, "{thread_id}"), (USED_THREAD, "{thread_id}"), (ASSISTANT, "{assistant_id}")):
        path = path.replace(known, name)
    described = document["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    model = document["components"]["schemas"][described["$ref"].rsplit("/", 1)[1]]
    assert model["properties"].keys() - ANYTHING - UNSERVED == fields.keys() - ANYTHING


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=ten", "offset=-1", "offset=x", "status=lazy"])
async def test_pages_of_runs_have_bounds(http, query):
    answer = await http.get(f"/threads/{USED_THREAD}/runs?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"Invalid {query.split('=')[0]} value")


@pytest.mark.parametrize("select", ["colour", "run_id;--"])
async def test_only_columns_of_a_run_can_be_selected(http, select):
    answer = await http.get(f"/threads/{USED_THREAD}/runs", params={"select": select})
    assert answer.status_code == 422


@pytest.mark.parametrize("query", ["limit=-1", "limit=1001", "limit=ten"])
async def test_a_page_of_history_has_bounds(http, query):
    answer = await http.get(f"/threads/{USED_THREAD}/history?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("Invalid limit value")


@pytest.mark.parametrize(
    "request_line, body",
    [
        (f"POST /threads/{NEW_THREAD}/runs", {**RUN, "strict_resume": True}),
        ("POST /runs", {**RUN, "langsmith_tracer": {"project_name": "p"}}),
    ],
)
async def test_a_field_that_is_not_served_yet_is_refused_by_name(http, request_line, body):
    """To drop it in silence would be a lie: the client believes that it acts."""
    field = (UNSERVED & body.keys()).pop()
    before = await counts(http)
    answer = await send(http, request_line, body)
    detail = f"{field} is not supported by this version of moorage; leave it out"
    assert (answer.status_code, answer.json()) == (422, {"detail": detail})
    assert await counts(http) == before


@pytest.mark.parametrize("request_line, right, fields", HARMLESS, ids=[line for line, *_ in HARMLESS])
async def test_fields_that_nobody_knows_are_ignored(http, request_line, right, fields):
    answer = await send(http, request_line, {**right, "a_field_of_tomorrow": {"x": 1}})
    assert answer.status_code == 200
    if request_line == "POST /assistants":
        await http.delete(f"/assistants/{answer.json()['assistant_id']}")


async def test_a_run_ignores_fields_that_nobody_knows(http):
    run = {**RUN, "input": {"text": "x"}, "a_field_of_tomorrow": 1, "config": {"another": True}}
    assert (await http.post("/runs/wait", json=run)).json() == {"text": "x!", "items": ["echo"]}


# --- text that databases dislike ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_line, body",
    [
        ("POST /threads", {"metadata": {"a": "x\0y"}}),
        ("POST /threads", {"metadata": {"a\0b": 1}}),
        (f"PATCH /threads/{NEW_THREAD}", {"metadata": {"a": "\0"}}),
        ("POST /assistants", {"graph_id": "echo", "metadata": {"a": "\0"}}),
        ("POST /assistants", {"graph_id": "echo", "name": "a\0b"}),
        (f"POST /threads/{NEW_THREAD}/runs", {**RUN, "metadata": {"a": "\0"}}),
        ("POST /threads/search", {"metadata": {"a": "\0"}}),
        ("POST /threads/search", {"values": {"a": "\0"}}),
        ("POST /assistants/search", {"name": "a\0b"}),
    ],
)
async def test_a_nul_where_it_cannot_be_kept_is_refused_in_plain_words(http, request_line, body):
    before = await counts(http)
    answer = await send(http, request_line, body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("A value cannot be stored: ")
    assert await counts(http) == before


async def test_a_nul_in_the_input_survives(http):
    """In the result, and in the state; the thread's row, which searches see, shows U+FFFD in its place."""
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    run = {"assistant_id": "echo", "input": {"text": "a\0b"}}
    assert (await http.post(f"/threads/{thread}/runs/wait", json=run)).json()["text"] == "a\0b!"
    assert (await http.get(f"/threads/{thread}/state")).json()["values"]["text"] == "a\0b!"
    assert (await http.get(f"/threads/{thread}")).json()["values"]["text"] == "a�b!"


async def test_a_plus_and_a_percent_in_a_search_are_letters(http):
    assert (await http.post("/assistants/search", json={"name": "%"})).json() == []


# --- the envelope -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, methods",
    [
        ("/assistants", {"POST"}),
        (f"/threads/{NEW_THREAD}", {"GET", "PATCH", "DELETE"}),
        (f"/threads/{NEW_THREAD}/runs", {"GET", "POST"}),
    ],
)
async def test_405_names_the_methods_that_are_allowed(http, path, methods):
    answer = await http.put(path)
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert {method.strip() for method in answer.headers["allow"].split(",")} - {"HEAD"} == methods


@pytest.mark.parametrize("kind", ["text/plain", "text/plain;charset=UTF-8", "application/octet-stream", None])
async def test_json_is_json_whatever_it_calls_itself(http, kind):
    headers = {"Content-Type": kind} if kind else {}
    answer = await http.post("/threads/search", content=b'{"limit": 1}', headers=headers)
    assert answer.status_code == 200


async def test_a_client_that_wants_little_gets_an_empty_answer(http):
    path = f"/threads/{NEW_THREAD}"
    answer = await http.patch(path, json={"metadata": {"a": 1}}, headers={"Prefer": "return=minimal"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert (await http.get(path)).json()["metadata"] == {"a": 1}


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    """Takes bodies of up to 1000 bytes."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), HTTP_MAX_REQUEST_BODY_BYTES="1000")
        running.start()
        yield running
        running.stop()


TOO_LARGE = (413, {"detail": "The request body is larger than the limit of 1000 bytes"})


def thread_of(size: int) -> bytes:
    """A request for a thread of exactly so many bytes."""
    frame = b'{"metadata":{"a":""}}'
    return frame.replace(b'""', b'"%b"' % (b"x" * (size - len(frame))))


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 300):
        yield body[start : start + 300]


async def test_a_body_over_the_limit_is_refused(small_server):
    async with httpx.AsyncClient(base_url=small_server.url) as http:
        at_the_limit = await http.post("/threads", content=thread_of(1000))
        over = await http.post("/threads", content=thread_of(1001))
        unannounced = await http.post("/threads", content=_in_pieces(thread_of(1001)))
        in_pieces = await http.post("/threads", content=_in_pieces(thread_of(1000)))
        count = (await http.post("/threads/count", json={})).json()
    assert (at_the_limit.status_code, in_pieces.status_code) == (200, 200)
    assert (over.status_code, over.json()) == TOO_LARGE
    assert "content-length" not in unannounced.request.headers
    assert (unannounced.status_code, unannounced.json()) == TOO_LARGE
    assert count == 2


# --- graphs that fail ---------------------------------------------------------------------------------------------

BOOM = {"error": "ValueError", "message": "boom"}
PRIVATE = {"error": "PrivateError", "message": "An internal error occurred"}


async def make_thread(http: httpx.AsyncClient) -> str:
    return str((await http.post("/threads", json={})).json()["thread_id"])


def frames_of(text: str) -> list[tuple[str, Any]]:
    """(event, data) of each frame."""
    found = [dict(line.split(": ", 1) for line in frame.split("\r\n")) for frame in text.split("\r\n\r\n") if frame]
    return [(frame["event"], json.loads(frame["data"])) for frame in found]


async def test_a_graph_that_raises_tells_it_everywhere(http):
    thread = await make_thread(http)
    run = {"assistant_id": "raises", "input": {"text": "x"}}
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    assert streamed.status_code == 200
    assert frames_of(streamed.text)[-1] == ("error", BOOM)

    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    assert (waited.status_code, waited.json()) == (200, {"__error__": BOOM})

    (last, first) = (await http.get(f"/threads/{thread}/runs")).json()
    assert (last["status"], first["status"]) == ("error", "error")
    joined = await http.get(f"/threads/{thread}/runs/{last['run_id']}/join")
    assert (joined.status_code, joined.json()) == (200, {"__error__": BOOM})

    shown = (await http.get(f"/threads/{thread}")).json()
    assert (shown["status"], shown["error"], shown["values"]) == ("error", BOOM, {"text": "xa", "items": ["a", "a"]})
    (task,) = (await http.get(f"/threads/{thread}/state")).json()["tasks"]
    assert (task["name"], task["error"]) == ("bad", "ValueError('boom')")
    assert (await http.post("/threads/search", json={"ids": [thread], "status": "error"})).json() == [shown]


async def test_a_private_message_is_shown_to_nobody_but_the_reader_of_the_state(http):
    thread = await make_thread(http)
    everything = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug"]
    run = {"assistant_id": "leaks", "input": {}, "stream_mode": everything, "stream_resumable": True}
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    runs = await http.get(f"/threads/{thread}/runs")
    place = f"/threads/{thread}/runs/{runs.json()[0]['run_id']}"

    assert frames_of(streamed.text)[-1] == ("error", PRIVATE)
    assert waited.json() == {"__error__": PRIVATE}
    assert (await http.get(f"/threads/{thread}")).json()["error"] == PRIVATE
    for answer in (
        streamed,
        waited,
        runs,
        await http.get(place),
        await http.get(f"{place}/join"),
        await http.get(f"{place}/stream"),
        await http.get(f"/threads/{thread}"),
        await http.post("/threads/search", json={"ids": [thread]}),
    ):
        assert SECRET not in answer.text, answer.request.url
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert state.pop("tasks")[0]["error"] == "PrivateError('the password is hunter2')"
    assert SECRET not in json.dumps(state)


async def test_a_factory_that_fails_keeps_its_message_too(http):
    waited = await http.post("/runs/wait", json={"assistant_id": "factory_fails"})
    assert waited.json() == {"__error__": {"error": "OSError", "message": "An internal error occurred"}}


async def test_a_graph_without_end_meets_its_recursion_limit(http):
    thread = await make_thread(http)
    run = {"assistant_id": "endless", "input": {}, "config": {"recursion_limit": 3}}
    failure = (await http.post(f"/threads/{thread}/runs/wait", json=run)).json()["__error__"]
    assert failure["error"] == "GraphRecursionError"
    assert failure["message"].startswith("Recursion limit of 3 reached without hitting a stop condition.")
    shown = (await http.get(f"/threads/{thread}")).json()
    assert (shown["status"], shown["error"]) == ("error", failure)
    assert shown["values"] == {"items": ["again"] * 3}


@pytest.mark.parametrize("place", ["/runs", "/threads/{thread}/runs"], ids=["stateless", "on a thread"])
async def test_a_result_without_a_json_form_fails_its_run_and_no_other(http, place):
    thread = await make_thread(http)
    bad, good = {"assistant_id": "unencodable", "input": {}}, {**RUN, "input": {"text": "x"}}
    path = place.format(thread=thread)
    failed, *others = await asyncio.gather(
        http.post(f"{path}/wait", json=bad), *(http.post("/runs/wait", json=good) for _ in range(4))
    )
    assert failed.status_code == 200
    assert failed.json()["__error__"]["error"] == "TypeError"
    assert "not msgpack serializable" in failed.json()["__error__"]["message"]
    assert [other.json()["text"] for other in others] == ["x!"] * 4
    if place != "/runs":
        (run,) = (await http.get(path)).json()
        assert run["status"] == "error"
        assert (await http.get(f"/threads/{thread}")).json()["status"] == "error"


BROKEN = {
    "broken": "Graph 'broken' (./broken.py:graph) cannot be loaded: "
    "ModuleNotFoundError: No module named 'a_package_that_nobody_installed'",
    "missing": "Graph 'missing' (./nowhere.py:graph) cannot be loaded: "
    "FileNotFoundError: the file does not exist",
    "broken_import": "Graph 'broken_import' (./broken_import.py:graph) cannot be loaded: "
    "ImportError: cannot import name 'a_name_that_is_not_there' from 'graphs'",
    "factory_of_nothing": "Graph 'factory_of_nothing' (./watched.py:makes_no_graph) made str, not a graph",
}  # fmt: skip


@pytest.mark.parametrize("graph", BROKEN)
async def test_a_broken_graph_names_itself_its_file_and_the_cause(http, graph):
    thread = await make_thread(http)
    assistant = system(graph)
    run = {"assistant_id": graph, "input": {}}
    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    shown = await http.get(f"/threads/{thread}")
    reads = [
        await http.get(f"/assistants/{assistant}/graph"),
        await http.get(f"/assistants/{assistant}/schemas"),
        await http.get(f"/threads/{thread}/state"),
    ]

    for answer in (waited, streamed, shown, *reads):
        assert HOST_PATH not in answer.text
    failure = {"error": "GraphLoadError", "message": waited.json()["__error__"]["message"]}
    assert failure["message"].startswith(BROKEN[graph])
    assert waited.json() == {"__error__": failure}
    assert frames_of(streamed.text)[-1] == ("error", failure)
    assert shown.json()["error"] == failure
    assert [(read.status_code, read.json()) for read in reads] == [(500, {"detail": failure["message"]})] * 3


async def test_a_broken_graph_does_not_hide_the_others(http):
    await http.post("/runs/wait", json={"assistant_id": "broken"})
    assert (await http.post("/runs/wait", json={**RUN, "input": {}})).json() == {"text": "!", "items": ["echo"]}


# --- clients that hang up -----------------------------------------------------------------------------------------


async def status_in_the_end(http: httpx.AsyncClient, thread: str) -> str:
    """Of the thread's only run, which is awaited."""
    (run,) = (await http.get(f"/threads/{thread}/runs")).json()
    place = f"/threads/{thread}/runs/{run['run_id']}"
    await http.get(f"{place}/join")
    return str((await http.get(place)).json()["status"])


@pytest.mark.parametrize("kind", ["stream", "wait"])
@pytest.mark.parametrize(
    "on_disconnect, status", [("cancel", "interrupted"), ("continue", "success"), (None, "success")]
)
async def test_a_client_that_hangs_up_ends_its_run_only_if_it_said_so(http, kind, on_disconnect, status):
    thread = await make_thread(http)
    run = {"assistant_id": "slow", "input": {"seconds": 1.5}}
    if on_disconnect:
        run["on_disconnect"] = on_disconnect
    async with http.stream("POST", f"/threads/{thread}/runs/{kind}", json=run) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_raw())
    assert await status_in_the_end(http, thread) == status


async def test_a_client_that_only_joined_may_end_the_run_too(http):
    thread = await make_thread(http)
    run = (await http.post(f"/threads/{thread}/runs", json={"assistant_id": "slow", "input": {"seconds": 60}})).json()
    path = f"/threads/{thread}/runs/{run['run_id']}/stream?cancel_on_disconnect=true"
    with pytest.raises(httpx.ReadTimeout):
        await http.get(path, timeout=0.5)
    assert await status_in_the_end(http, thread) == "interrupted"


async def test_a_node_that_blocks_does_not_block_the_server(http):
    thread = await make_thread(http)
    run = {"assistant_id": "blocking", "input": {"seconds": 1.5}}
    blocked = asyncio.create_task(http.post(f"/threads/{thread}/runs/wait", json=run))
    latencies = []
    while not blocked.done():
        start = time.perf_counter()
        assert (await http.get("/ok")).json() == {"ok": True, "services": {}}
        latencies.append(time.perf_counter() - start)
        await asyncio.sleep(0.05)
    assert blocked.result().json() == {"seconds": 1.5, "items": ["blocked"]}
    # If it did, one request would be answered before, and one after. How long each takes is the machine's affair.
    assert len(latencies) > 3
