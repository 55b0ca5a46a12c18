"""Answers to invalid requests, and how the failure of a graph differs from a graph that works.

The first table is section (e) of the wire page: every refusal that clients meet, with its whole body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.agents.calls import RUN, system
from tests.serving import PROJECT, Server

NOBODY = "00000000-0000-4000-8000-000000000000"

# Made by `_furnished` before the first test.
NEW_THREAD = "00000000-0000-4000-8000-0000000000a1"
USED_THREAD = "00000000-0000-4000-8000-0000000000a2"
BUSY_THREAD = "00000000-0000-4000-8000-0000000000a3"
ASSISTANT = "00000000-0000-4000-8000-0000000000b1"
GRAPHS = sorted(json.loads(PROJECT.read_text())["graphs"])


@pytest.fixture(scope="module", autouse=True)
def _furnished(server: Server) -> Iterator[None]:
    """Make a thread without runs, one with an ended run, one with a run under way, and an assistant."""
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
    # webhook policy; the rest of it is in test_webhook_policy.py
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
    # more than 64 bits, and values that the database cannot hold
    ("POST /threads", "over 64 bit", {"metadata": {"n": 2**64}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    ("POST /runs/wait", "over 64 bit", {**RUN, "input": {"items": [2**64]}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    (f"POST /threads/{USED_THREAD}/state", "over 64 bit", {"values": {"text": 2**64}}, 422, "The request cannot be stored: Integer exceeds 64-bit range"),
    # text that is no JSON
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
    """Send the request. `body` is sent unchanged if it is bytes, not at all if it is None, and otherwise as JSON."""
    method, path = request_line.split(" ")
    if isinstance(body, bytes) or body is None:
        return await http.request(method, path, content=body)
    return await http.request(method, path, content=json.dumps(body))


async def counts(http: httpx.AsyncClient) -> dict[str, Any]:
    """Count every kind of object that an invalid request could have created."""
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
    """Makes the factory of a graph fail while its schemas are read."""
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

# An operation, a valid body, and for each of its fields invalid values.
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
    """Uses a reducer that fails on the values."""
    before = (await http.get(f"/threads/{USED_THREAD}/state")).json()
    answer = await http.post(f"/threads/{USED_THREAD}/state", json={"values": values})
    assert answer.status_code == 400
    assert isinstance(answer.json()["detail"], str)
    assert (await http.get(f"/threads/{USED_THREAD}/state")).json() == before


# Graphs decide which values these fields may have.
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
    """Ignoring the field silently would be wrong, since the client believes that it has an effect."""
    field = (UNSERVED & body.keys()).pop()
    before = await counts(http)
    answer = await send(http, request_line, body)
    detail = f"{field} is not supported by this version of moorage; leave it out"
    assert (answer.status_code, answer.json()) == (422, {"detail": detail})
    assert await counts(http) == before


async def test_a_field_that_is_not_served_yet_may_be_switched_off(http):
    answer = await http.post("/runs/wait", json={**RUN, "input": {"text": "x"}, "strict_resume": False})
    assert (answer.status_code, answer.json()) == (200, {"text": "x!", "items": ["echo"]})


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
    """Holds for the result and the state. The thread's row, which searches read, shows U+FFFD in its place."""
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
