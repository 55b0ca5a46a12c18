"""A walk over all operations of a real server, which compares each answer with its documentation.

The answers are compared with the server's own OpenAPI document, and with the contract of the reference server if that
is found: in `../shared/contracts` beside the repository, or in the folder that MOORAGE_CONTRACTS names. Where real
clients meet something else than the contract says, the tables below say what, and why.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.serving import ROOT, Server

NOBODY = "00000000-0000-4000-8000-000000000000"

# Two names for one parameter, which may not be given together.
BOTH = {"config": {"configurable": {"a": 1}}, "context": {"b": 1}}

# Statuses that real clients meet, but the contract does not name for the operation.
OTHER_STATUSES = {
    ("GET /ok", 422): "a flag that is none",
    ("GET /metrics", 422): "a format that is none",
    ("POST /assistants", 400): "both config.configurable and context",
    ("PATCH /assistants/{}", 400): "both config.configurable and context",
    ("GET /assistants/{}", 422): "an identifier that is no UUID",
    ("DELETE /assistants/{}", 204): "empty, where the contract says 200",
    ("GET /assistants/{}/subgraphs/{}", 404): "an assistant that is not there",
    ("POST /assistants/{}/versions", 404): "an assistant that is not there",
    ("POST /threads", 201): "the thread was made, its supersteps were not",
    ("PATCH /threads/{}", 204): "empty, when the client prefers a minimal answer",
    ("DELETE /threads/{}", 204): "empty, where the contract says 200",
    ("GET /threads/{}/state", 400): "a thread whose graph is not served here",
    ("GET /threads/{}/state", 404): "a thread that is not there",
    ("GET /threads/{}/state/{}", 400): "a thread whose graph is not served here",
    ("GET /threads/{}/state/{}", 404): "a thread that is not there",
    ("POST /threads/{}/state/checkpoint", 400): "a thread whose graph is not served here",
    ("POST /threads/{}/state/checkpoint", 404): "a thread that is not there",
    ("POST /threads/{}/state", 400): "an unknown node, or a thread without a graph",
    ("POST /threads/{}/state", 404): "a thread that is not there",
    ("POST /threads/{}/commands", 422): "an identifier that is no UUID",
    ("POST /threads/{}/stream/events", 422): "an identifier that is no UUID, or an unknown channel",
    ("POST /threads/{}/state", 409): "a run is under way",
    ("GET /threads/{}/history", 400): "a thread whose graph is not served here",
    ("GET /threads/{}/history", 404): "a thread that is not there",
    ("POST /threads/{}/history", 400): "a thread whose graph is not served here",
    ("POST /threads/{}/history", 404): "a thread that is not there",
    ("POST /threads/{}/runs", 400): "both config.configurable and context",
    ("POST /threads/{}/runs/wait", 400): "both config.configurable and context",
    ("POST /threads/{}/runs/stream", 400): "both config.configurable and context",
    ("POST /runs", 400): "both config.configurable and context",
    ("POST /runs/wait", 400): "both config.configurable and context",
    ("POST /runs/stream", 400): "both config.configurable and context",
    ("POST /runs/batch", 400): "both config.configurable and context",
    ("POST /runs/crons", 400): "both config.configurable and context",
    ("POST /threads/{}/runs/crons", 400): "both config.configurable and context",
    ("PATCH /runs/crons/{}", 400): "both config.configurable and context",
    ("DELETE /runs/crons/{}", 204): "empty, where the contract says 200",
    ("PUT /store/items", 400): "a namespace that is empty",
    ("DELETE /store/items", 400): "a namespace that is empty",
    ("DELETE /threads/{}/runs/{}", 204): "empty, where the contract says 200",
    ("POST /threads/{}/runs/{}/cancel", 202): "empty, when nobody waits for the end",
}

# Operations that only this server has.
ADDITIONS = {"GET /threads/expiring"}

# Parts of an answer, and keywords of JSON Schema, where real clients meet something else than the contract describes.
OTHER_SHAPES = {
    ("ttl", "type"): "null for a thread that is kept until it is deleted",
    ("values", "type"): "null for a thread that no run has given values",
    ("context_schema", "type"): "null for a graph without one",
    ("metadata", "type"): "null in the state of a thread without checkpoints",
    ("created_at", "type"): "as metadata",
    ("checkpoint", "type"): "as metadata, and for a task that is no subgraph",
    ("parent_checkpoint", "type"): "as metadata, and for the first checkpoint",
    ("interrupts", "type"): "as metadata",
    ("tasks.error", "type"): "null for a task that did not fail",
    ("tasks.checkpoint", "type"): "null for a task that is no subgraph",
    ("tasks.state", "type"): "null unless subgraphs were asked for",
    ("response_schema", "type"): "null for an interrupt that named none",
    ("thread_id", "type"): "null for a cron without a thread of its own",
    ("end_time", "type"): "null for a cron that does not end",
    ("", "type: {'namespaces': "): "the clients read a list under the key namespaces; the contract says a bare list",
}


@dataclass(frozen=True)
class Answer:
    operation: str
    status: int
    kind: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.operation} answers {self.status}: {self.body[:500]!r}"


class Walk:
    """A walk that sends requests, and keeps the answers."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.answers: list[Answer] = []

    def __call__(self, method: str, place: str, body: Any = None, *ids: Any, status: int = 200, **more: Any) -> Any:
        """Send a request, and return the JSON body. `place` is a path of the document, whose {} are filled with `ids`,
        and a query.
        """
        path = place.format(*ids)
        answer = self.http.request(method, path, json=body, **more)
        operation = f"{method} {place.partition('?')[0]}"
        kind = answer.headers.get("content-type", "").partition(";")[0]
        self.answers.append(Answer(operation, answer.status_code, kind, answer.content))
        assert answer.status_code == status, f"{method} {path} answers {answer.status_code}: {answer.text}"
        return answer.json() if kind == "application/json" else None

    def follow(self, method: str, place: str, body: Any, *ids: Any) -> None:
        """Read a stream that stays open, until its first event."""
        with self.http.stream(method, place.format(*ids), json=body) as answer:
            assert answer.status_code == 200
            kind = answer.headers["content-type"].partition(";")[0]
            self.answers.append(Answer(f"{method} {place}", 200, kind, next(answer.iter_bytes())))


# --- the walk -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers(server: Server) -> Iterator[list[Answer]]:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        ask = Walk(http)
        walk_system(ask)
        walk_assistants(ask)
        walk_threads(ask)
        walk_runs(ask)
        walk_runs_without_thread(ask)
        walk_crons(ask)
        walk_items(ask)
        walk_protocol(ask)
        yield ask.answers


def walk_system(ask: Walk) -> None:
    ask("GET", "/ok")
    ask("GET", "/ok?check_db=true")
    ask("GET", "/ok?check_db=perhaps", status=422)
    ask("GET", "/info")
    ask("GET", "/docs")
    ask("GET", "/metrics")
    ask("GET", "/metrics?format=json")
    ask("GET", "/metrics?format=xml", status=422)


def walk_assistants(ask: Walk) -> None:
    one = ask("POST", "/assistants", {"graph_id": "nested", "name": "One", "metadata": {"walk": "1"}})["assistant_id"]
    ask("POST", "/assistants", {"assistant_id": one, "graph_id": "nested"}, status=409)
    ask("POST", "/assistants", {"graph_id": "nowhere"}, status=404)
    ask("POST", "/assistants", {}, status=422)
    ask("POST", "/assistants", {"graph_id": "nested", **BOTH}, status=400)
    ask("POST", "/assistants/search", {"metadata": {"walk": "1"}})
    ask("POST", "/assistants/search", {"graph_id": "nowhere"}, status=404)
    ask("POST", "/assistants/search", {"limit": 0}, status=422)
    ask("POST", "/assistants/count", {"metadata": {"walk": "1"}})
    ask("POST", "/assistants/count", {"metadata": 1}, status=422)
    ask("PATCH", "/assistants/{}", {"name": "Uno", "context": {"b": 1}}, one)
    ask("PATCH", "/assistants/{}", BOTH, one, status=400)
    ask("PATCH", "/assistants/{}", {"name": 1}, one, status=422)
    ask("PATCH", "/assistants/{}", {}, NOBODY, status=404)
    ask("POST", "/assistants/{}/versions", {}, one)
    ask("POST", "/assistants/{}/versions", {}, NOBODY, status=404)
    ask("POST", "/assistants/{}/versions", {"limit": 0}, one, status=422)
    ask("POST", "/assistants/{}/latest", {"version": 1}, one)
    ask("POST", "/assistants/{}/latest", {"version": 9}, one, status=404)
    ask("POST", "/assistants/{}/latest", {}, one, status=422)
    for place in ("", "/graph", "/graph?xray=true", "/schemas", "/subgraphs", "/subgraphs?recurse=true"):
        ask("GET", "/assistants/{}" + place, None, one)
        ask("GET", "/assistants/{}" + place, None, NOBODY, status=404)
        ask("GET", "/assistants/{}" + place, None, "nowhere", status=422)
    ask("GET", "/assistants/{}/subgraphs/{}", None, one, "inner")
    ask("GET", "/assistants/{}/subgraphs/{}", None, NOBODY, "inner", status=404)
    ask("GET", "/assistants/{}/subgraphs/{}", None, "nowhere", "inner", status=422)
    ask("DELETE", "/assistants/{}", None, one, status=204)
    ask("DELETE", "/assistants/{}", None, one, status=404)
    ask("DELETE", "/assistants/{}", None, "nowhere", status=422)


def walk_threads(ask: Walk) -> None:
    one = ask("POST", "/threads", {"metadata": {"walk": "1"}})["thread_id"]
    ask("POST", "/threads", {"thread_id": one}, status=409)
    ask("POST", "/threads", {"metadata": 1}, status=422)
    steps = [{"updates": [{"values": {"text": "x"}, "as_node": "__input__"}]}]
    ask("POST", "/threads", {"metadata": {"graph_id": "echo"}, "supersteps": steps})
    ask("POST", "/threads", {"supersteps": steps}, status=201)
    ask("GET", "/threads/{}/state", None, one)
    ask("POST", "/threads/{}/state", {"values": {}}, one, status=400)

    ask("POST", "/threads/{}/runs/wait", {"assistant_id": "nested", "input": {"text": "x"}}, one)
    ask("GET", "/threads/{}?include=ttl", None, one)
    ask("GET", "/threads/{}/state?subgraphs=true", None, one)
    ask("POST", "/threads/{}/state", {"values": {"text": "y"}, "as_node": "after"}, one)
    ask("POST", "/threads/{}/state", {"values": {}, "as_node": "nowhere"}, one, status=400)
    checkpoint = ask("GET", "/threads/{}/history?limit=3", None, one)[1]["checkpoint"]
    ask("POST", "/threads/{}/history", {"limit": 10, "before": checkpoint}, one)
    ask("GET", "/threads/{}/state/{}", None, one, checkpoint["checkpoint_id"])
    ask("GET", "/threads/{}/state/{}", None, one, NOBODY)
    ask("POST", "/threads/{}/state/checkpoint", {"checkpoint": checkpoint, "subgraphs": True}, one)
    ask("PATCH", "/threads/{}", {"metadata": {"more": 1}}, one)
    ask("PATCH", "/threads/{}", {"metadata": {"more": 2}}, one, status=204, headers={"Prefer": "return=minimal"})
    ask("PATCH", "/threads/{}", {"metadata": 1}, one, status=422)
    ask("GET", "/threads/{}/storage", None, one)
    ask("POST", "/threads/{}/copy", None, one)
    ask("POST", "/threads/{}/copy", None, NOBODY, status=409)
    ask("POST", "/threads/search", {"metadata": {"walk": "1"}, "extract": {"text": "values.text"}})
    ask("POST", "/threads/search", {"status": "lazy"}, status=422)
    ask("POST", "/threads/count", {"metadata": {"walk": "1"}})
    ask("POST", "/threads/count", {"status": "lazy"}, status=422)
    ask("POST", "/threads/prune", {"thread_ids": [NOBODY], "strategy": "keep_latest"})
    ask("POST", "/threads/prune", {"thread_ids": ["nowhere"]}, status=422)
    ask("GET", "/threads/expiring")
    ask("GET", "/threads/expiring?within_minutes=soon", status=422)

    slow = ask("POST", "/threads/{}/runs", {"assistant_id": "slow", "input": {"seconds": 30}}, one)["run_id"]
    ask("POST", "/threads/{}/state", {"values": {}}, one, status=409)
    ask("POST", "/threads/{}/runs/{}/cancel?wait=true", None, one, slow)
    asked = ask("POST", "/threads/{}/runs/wait", {"assistant_id": "ask_twice", "input": {"text": "x"}}, one)
    assert asked["__interrupt__"]
    for place in ("", "/state", "/history"):
        ask("GET", "/threads/{}" + place, None, one)

    moved = ask("POST", "/threads", {"metadata": {"graph_id": "nowhere"}})["thread_id"]
    for place in ("/state", "/history"):
        ask("GET", "/threads/{}" + place, None, moved, status=400)
    ask("GET", "/threads/{}/state/{}", None, moved, NOBODY, status=400)
    ask("POST", "/threads/{}/history", {}, moved, status=400)
    ask("POST", "/threads/{}/state/checkpoint", {"checkpoint": {}}, moved, status=400)

    needs_body = {"checkpoint": {}, "values": {}}
    for method, place in (
        ("GET", "/threads/{}"),
        ("PATCH", "/threads/{}"),
        ("GET", "/threads/{}/storage"),
        ("GET", "/threads/{}/state"),
        ("POST", "/threads/{}/state"),
        ("POST", "/threads/{}/state/checkpoint"),
        ("GET", "/threads/{}/history"),
        ("POST", "/threads/{}/history"),
    ):
        body = None if method == "GET" else needs_body
        ask(method, place, body, NOBODY, status=404)
        ask(method, place, body, "nowhere", status=422)
    ask("GET", "/threads/{}/state/{}", None, NOBODY, NOBODY, status=404)
    ask("GET", "/threads/{}/state/{}", None, "nowhere", NOBODY, status=422)
    ask("POST", "/threads/{}/copy", None, "nowhere", status=422)
    ask("DELETE", "/threads/{}", None, one, status=204)
    ask("DELETE", "/threads/{}", None, one, status=404)
    ask("DELETE", "/threads/{}", None, "nowhere", status=422)


def walk_runs(ask: Walk) -> None:
    thread = ask("POST", "/threads", {})["thread_id"]
    echo = {"assistant_id": "echo", "input": {"text": "x"}}
    one = ask("POST", "/threads/{}/runs", {**echo, "stream_resumable": True}, thread)["run_id"]
    ask("GET", "/threads/{}/runs/{}/join", None, thread, one)
    ask("GET", "/threads/{}/runs/{}/stream", None, thread, one)
    ask("GET", "/threads/{}/runs/{}", None, thread, one)
    ask("GET", "/threads/{}/runs", None, thread)
    ask("GET", "/threads/{}/runs?status=success&limit=1", None, thread)
    ask("GET", "/threads/{}/runs?limit=0", None, thread, status=422)
    ask("POST", "/threads/{}/runs/wait", echo, thread)
    ask("POST", "/threads/{}/runs/wait", {"assistant_id": "raises", "input": {"text": "x"}}, thread)
    ask("POST", "/threads/{}/runs/stream", {**echo, "stream_mode": ["values", "updates"]}, thread)
    slow = {"assistant_id": "slow", "input": {"seconds": 30}}
    under_way = ask("POST", "/threads/{}/runs", slow, thread)["run_id"]
    for place in ("", "/wait", "/stream"):
        ask("POST", "/threads/{}/runs" + place, {**echo, "multitask_strategy": "reject"}, thread, status=409)
        ask("POST", "/threads/{}/runs" + place, {**echo, **BOTH}, thread, status=400)
        ask("POST", "/threads/{}/runs" + place, echo, NOBODY, status=404)
        ask("POST", "/threads/{}/runs" + place, {"assistant_id": "nowhere"}, thread, status=422)
    ask("POST", "/threads/{}/runs/{}/cancel", None, thread, under_way, status=202)
    ask("GET", "/threads/{}/runs/{}/join", None, thread, under_way)
    ask("POST", "/threads/{}/runs/{}/cancel", None, thread, under_way, status=404)
    ask("POST", "/threads/{}/runs/{}/cancel?action=explode", None, thread, under_way, status=422)
    ask("GET", "/threads/{}/runs/{}/join", None, thread, NOBODY)
    ask("GET", "/threads/{}/runs/{}/stream", None, thread, NOBODY)
    for place in ("/join", "/stream", ""):
        ask("GET", "/threads/{}/runs/{}" + place, None, thread, "nowhere", status=422)
    ask("GET", "/threads/{}/runs", None, NOBODY, status=404)
    ask("GET", "/threads/{}/runs/{}", None, thread, NOBODY, status=404)
    ask("DELETE", "/threads/{}/runs/{}", None, thread, one, status=204)
    ask("DELETE", "/threads/{}/runs/{}", None, thread, one, status=404)
    ask("DELETE", "/threads/{}/runs/{}", None, thread, "nowhere", status=422)


def walk_crons(ask: Walk) -> None:
    thread = ask("POST", "/threads", {})["thread_id"]
    daily = {"assistant_id": "echo", "schedule": "0 5 * * *", "input": {"text": "x"}}
    one = ask("POST", "/runs/crons", daily)["cron_id"]
    ask("POST", "/threads/{}/runs/crons", {**daily, "end_time": "2040-01-01T00:00:00Z"}, thread)
    ask("POST", "/threads/{}/runs/crons", daily, NOBODY, status=404)
    for method, place, of in (
        ("POST", "/runs/crons", []),
        ("POST", "/threads/{}/runs/crons", [thread]),
        ("PATCH", "/runs/crons/{}", [one]),
    ):
        ask(method, place, {**daily, **BOTH}, *of, status=422 if method == "PATCH" else 400)
        ask(method, place, {**daily, "schedule": "never"}, *of, status=422)
    ask("POST", "/runs/crons", {**daily, "assistant_id": "nowhere"}, status=404)
    ask("POST", "/runs/crons/search", {})
    ask("POST", "/runs/crons/search", {"limit": 0}, status=422)
    ask("POST", "/runs/crons/count", {"thread_id": thread})
    ask("POST", "/runs/crons/count", {"metadata": 1}, status=422)
    ask("GET", "/runs/crons/{}", None, one)
    ask("PATCH", "/runs/crons/{}", {"enabled": False}, one)
    ask("PATCH", "/runs/crons/{}", BOTH, one, status=400)
    ask("PATCH", "/runs/crons/{}", {"enabled": False}, NOBODY, status=404)
    for method in ("GET", "DELETE"):
        ask(method, "/runs/crons/{}", None, NOBODY, status=404)
        ask(method, "/runs/crons/{}", None, "nowhere", status=422)
    ask("DELETE", "/runs/crons/{}", None, one, status=204)


def walk_protocol(ask: Walk) -> None:
    start = {"id": 1, "method": "run.start", "params": {"assistant_id": "echo", "input": {"text": "x"}}}
    ask("POST", "/threads/{}/commands", start, NOBODY)
    ask("POST", "/threads/{}/commands", {"id": 2, "method": "run.stop"}, NOBODY)
    ask("POST", "/threads/{}/commands", {"id": -1}, NOBODY, status=400)
    ask("POST", "/threads/{}/commands", start, "nowhere", status=422)
    ask.follow("POST", "/threads/{}/stream/events", {"channels": ["lifecycle"]}, NOBODY)
    ask.follow("GET", "/threads/{}/stream", None, NOBODY)
    ask("GET", "/threads/{}/stream?stream_modes=all", None, NOBODY, status=422)
    ask("POST", "/threads/{}/stream/events", {"channels": []}, NOBODY, status=422)
    ask("DELETE", "/threads/{}", None, NOBODY, status=204)


def walk_items(ask: Walk) -> None:
    item = {"namespace": ["walk"], "key": "k", "value": {"n": 1}}
    ask("PUT", "/store/items", {**item, "ttl": 5, "index": False}, status=204)
    ask("PUT", "/store/items", {**item, "namespace": []}, status=400)
    ask("PUT", "/store/items", {**item, "value": 1}, status=422)
    ask("GET", "/store/items?namespace=walk&key=k&refresh_ttl=true")
    ask("GET", "/store/items?namespace=walk", status=400)
    ask("GET", "/store/items?namespace=walk&key=k&refresh_ttl=perhaps", status=422)
    ask("POST", "/store/items/search", {"namespace_prefix": ["walk"], "filter": {"n": 1}, "query": "x"})
    ask("POST", "/store/items/search", {"limit": 0}, status=422)
    ask("POST", "/store/namespaces", {"prefix": ["walk"], "max_depth": 1})
    ask("POST", "/store/namespaces", {"limit": 0}, status=422)
    ask("DELETE", "/store/items", {"namespace": ["walk"], "key": "k"}, status=204)
    ask("DELETE", "/store/items", {"namespace": [], "key": "k"}, status=400)
    ask("DELETE", "/store/items", {"namespace": ["walk"]}, status=422)


def walk_runs_without_thread(ask: Walk) -> None:
    echo = {"assistant_id": "echo", "input": {"text": "x"}}
    for place in ("/runs", "/runs/wait", "/runs/stream"):
        ask("POST", place, echo)
        ask("POST", place, {**echo, **BOTH}, status=400)
        ask("POST", place, {"assistant_id": NOBODY}, status=404)
        ask("POST", place, {}, status=422)
    ask("POST", "/runs/batch", [echo, echo])
    ask("POST", "/runs/batch", [echo, {**echo, **BOTH}], status=400)
    ask("POST", "/runs/batch", [echo, {"assistant_id": NOBODY}], status=404)
    ask("POST", "/runs/batch", [], status=422)
    later = ask("POST", "/runs", {**echo, "after_seconds": 600, "on_completion": "keep"})
    ask("POST", "/runs/cancel", {"thread_id": later["thread_id"], "run_ids": [later["run_id"]]}, status=204)
    ask("POST", "/runs/cancel", {"thread_id": later["thread_id"], "run_ids": [later["run_id"]]}, status=404)
    ask("POST", "/runs/cancel", {}, status=422)


# --- what it is held against --------------------------------------------------------------------------------------


class Document:
    """An OpenAPI document, with its operations by method and path, and parameters without names."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.operations = {
            f"{method.upper()} {re.sub('{[^}]*}', '{}', path).rstrip('/') or '/'}": operation
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if method in {"get", "put", "post", "patch", "delete"}
        }

    def has_status(self, answer: Answer) -> bool:
        return str(answer.status) in self.operations[answer.operation]["responses"]

    def complaints(self, answer: Answer) -> Iterator[tuple[str, str]]:
        """Return where the body departs from the schema, each with the keyword; `?` for a body of
        another content type.
        """
        content = self.operations[answer.operation]["responses"][str(answer.status)].get("content", {})
        if answer.kind not in content and (content or answer.body):
            yield "?", f"{answer.kind or 'nothing'} instead of {' or '.join(content) or 'nothing'}"
        elif answer.kind == "application/json":
            # The schema is put at the root of its document, so that its references resolve.
            schema = {**content[answer.kind].get("schema", {}), "components": self.document["components"]}
            for error in Draft202012Validator(schema).iter_errors(json.loads(answer.body)):
                for leaf in _leaves(error):
                    place = ".".join(step for step in leaf.absolute_path if isinstance(step, str))
                    yield place, f"{leaf.validator}: {leaf.message[:200]}"


def _leaves(error: Any) -> Iterator[Any]:
    """Return the errors at the leaves. For an `anyOf` these are the errors of all branches, since the intended one is
    unknown.
    """
    if not error.context:
        yield error
    for cause in error.context or ():
        yield from _leaves(cause)


@pytest.fixture(scope="module")
def own(server: Server) -> Document:
    return Document(httpx.get(f"{server.url}/openapi.json", timeout=30).raise_for_status().json())


@pytest.fixture(scope="module")
def contract(own: Document) -> Document:
    """Return the reference's contract. If it is not found, our own document replaces it: the tests then show that the
    walk is sound.
    """
    place = ROOT.parent / "shared" / "contracts"
    if folder := os.environ.get("MOORAGE_CONTRACTS"):
        place = ROOT / folder
    file = place / "agent_server.json"
    return Document(json.loads(file.read_text())) if file.is_file() else own


def test_the_walk_meets_every_operation(answers, own):
    assert {answer.operation for answer in answers} == own.operations.keys()


def test_the_walk_meets_every_documented_status(answers, own):
    """Except for these, which other tests cover: 503 needs a database that is away, 413 a body of the size of the
    limit, 502 an embedding function that fails, and 404 of an event stream needs users who are kept apart.
    """
    met = {(answer.operation, str(answer.status)) for answer in answers}
    documented = {(name, status) for name, operation in own.operations.items() for status in operation["responses"]}
    elsewhere = {("POST /threads/{}/stream/events", "404"), ("GET /threads/{}/stream", "404")}
    assert {row for row in documented - met - elsewhere if row[1] not in {"413", "502", "503"}} == set()


def test_every_answer_keeps_the_servers_own_document(answers, own):
    assert [str(answer) for answer in answers if not own.has_status(answer)] == []
    assert [(str(answer), *what) for answer in answers for what in own.complaints(answer)] == []


def test_every_status_is_the_contracts_or_known_to_differ(answers, contract, own):
    shared = [answer for answer in answers if answer.operation not in ADDITIONS]
    differ = {(answer.operation, answer.status): answer for answer in shared if not contract.has_status(answer)}
    assert [str(answer) for key, answer in differ.items() if key not in OTHER_STATUSES] == []
    if contract is not own:
        assert OTHER_STATUSES.keys() == differ.keys(), "the table lists what does not differ"


def test_every_shape_is_the_contracts_or_known_to_differ(answers, contract, own):
    met, unknown = set(), []
    shared = [answer for answer in answers if answer.operation not in ADDITIONS]
    for answer in (answer for answer in shared if contract.has_status(answer)):
        for place, complaint in contract.complaints(answer):
            known = {row for row in OTHER_SHAPES if _is_row(row, place, complaint)}
            met |= known
            unknown += [] if known else [(place, complaint, str(answer))]
    assert unknown == []
    if contract is not own:
        assert met == OTHER_SHAPES.keys(), "the table lists what does not differ"


def _is_row(row: tuple[str, str], place: str, complaint: str) -> bool:
    return f".{place}".endswith(f".{row[0]}") and complaint.startswith(row[1])


def test_every_addition_is_known(contract, own):
    if contract is not own:
        assert own.operations.keys() - contract.operations.keys() == ADDITIONS


def test_what_the_contract_has_and_the_server_not_is_answered_501(server, contract, own):
    missing = contract.operations.keys() - own.operations.keys()
    assert contract is own or missing
    for operation in missing:
        method, _, path = operation.partition(" ")
        answer = httpx.request(method, server.url + path.format(*[NOBODY] * 3))
        assert answer.status_code == 501, operation
        assert answer.json()["detail"].startswith("This version of moorage does not serve "), operation
