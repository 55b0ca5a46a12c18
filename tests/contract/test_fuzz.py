"""Valid and invalid requests made from the server's own OpenAPI document.

Each answer is one that the document promises, and a refused request changes nothing. The same requests are sent in each
run. A failure shows its request as a curl command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.rows import DictRow, dict_row
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from moorage.embedded.postgres import EmbeddedPostgres
from tests.serving import PROJECT, Server, make_server

PATHS = r"^/(assistants|threads|runs|ok$|info$)"
EXAMPLES_PER_OPERATION = int(os.environ.get("FUZZ_EXAMPLES", "8"))  # `scripts/soak agent-routes` sends more
PROMISES = [not_a_server_error, status_code_conformance, content_type_conformance, negative_data_rejection]
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Server]:
    """Start a server of its own, whose graphs do no harm: these requests cancel every run and delete everything that
    they can name.
    """
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        config = folder / "langgraph.json"
        graphs = {graph: f"{PROJECT.parent}/graphs.py:{graph}" for graph in ("echo", "ask")}
        config.write_text(json.dumps({"dependencies": [str(PROJECT.parent)], "graphs": graphs}))
        running = make_server(folder, config, BG_JOB_TIMEOUT_SECS="5")
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def database(fuzzed: Server) -> Iterator[psycopg.Connection[DictRow]]:
    engine = EmbeddedPostgres(fuzzed.home)
    with psycopg.connect(engine.start(), row_factory=dict_row, autocommit=True) as connection:
        engine.stop()  # the server uses it too, so this only ends our own use
        yield connection


@pytest.fixture(scope="module")
def operations(fuzzed: Server) -> list[Any]:
    config = SchemathesisConfig.from_dict({"generation": {"deterministic": True}})
    document = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json", config=config)
    found = [result.ok() for result in document.include(path_regex=PATHS).get_all_operations()]
    assert len(found) > 40
    return found


# Streams that stay open until their client leaves. The tests of the protocol cover their valid requests. An invalid
# request may be answered with a stream, since unknown parameters are ignored; such a stream is left soon.
ENDLESS = {"POST /threads/{thread_id}/stream/events", "GET /threads/{thread_id}/stream"}


def test_every_answer_is_one_that_the_document_promises(fuzzed, database, operations, subtests):
    for operation in operations:
        if operation.label in ENDLESS:
            continue
        with subtests.test(operation.label):
            fuzz(fuzzed, database, operation, RIGHT)


def test_what_the_document_forbids_is_refused_and_changes_nothing(fuzzed, database, operations, subtests):
    for operation in operations:
        if operation.body or operation.query or operation.path_parameters:
            with subtests.test(operation.label):
                fuzz(fuzzed, database, operation, WRONG)


def fuzz(
    server: Server, database: psycopg.Connection[DictRow], operation: Any, mode: schemathesis.GenerationMode
) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        world = World(http, database)

        @settings(
            max_examples=EXAMPLES_PER_OPERATION,
            derandomize=True,
            database=None,
            deadline=None,
            # Shrinking repeats requests again and again, and the first failing one says enough.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def ask(case: schemathesis.Case, data: st.DataObject) -> None:
            name_real_things(case, lambda known: data.draw(st.sampled_from([*known, *known, None])), world)
            keep_short(case)
            answer = case.call(base_url=server.url, timeout=1 if operation.label in ENDLESS else 20)
            case.validate_response(answer, checks=PROMISES)
            if "text/event-stream" in str(answer.headers.get("content-type")):
                assert_events(answer.text)
            else:
                case.validate_response(answer, checks=[response_schema_conformance])
            if answer.status_code < 400:
                world.look()
            else:
                world.assert_unchanged(lambda: f"{case.as_curl_command()}\nwas answered by {answer.status_code}")

        ask()


def assert_events(text: str) -> None:
    """Assert that the answer has only frames. The document describes the stream as the text that it
    is, not its events.
    """
    for frame in text.split("\r\n\r\n")[:-1]:
        if frame != ": heartbeat":
            event, data, *rest = frame.split("\r\n")
            assert event.startswith("event: "), text
            json.loads(data.removeprefix("data: "))
            assert len(rest) <= 1, text


# --- the world that the requests meet -----------------------------------------------------------------------------


@dataclass
class World:
    """A thread with an ended run and one that waits for a person, an assistant with two versions, and all other
    objects.
    """

    http: httpx.Client
    database: psycopg.Connection[DictRow]
    known: dict[str, list[str]] = field(default_factory=dict)
    seen: Any = None

    def __post_init__(self) -> None:
        runs = [
            self.post(f"/threads/{self.post('/threads', {})['thread_id']}/runs", {"assistant_id": graph, "input": {}})
            for graph in ("echo", "ask")
        ]
        for run in runs:
            self.http.get(f"/threads/{run['thread_id']}/runs/{run['run_id']}/join")
        threads = [run["thread_id"] for run in runs]
        states = [self.http.get(f"/threads/{thread}/state").json() for thread in threads]
        assistant = self.post("/assistants", {"graph_id": "echo"})["assistant_id"]
        self.http.patch(f"/assistants/{assistant}", json={"name": "renamed"})
        self.known = {
            "assistant_id": [assistant, runs[0]["assistant_id"]],
            "thread_id": threads,
            "run_id": [run["run_id"] for run in runs],
            "checkpoint_id": [state["checkpoint_id"] for state in states],
            "graph_id": ["echo"],
            "as_node": ["echo"],
        }
        self.look()

    def post(self, path: str, body: Any) -> Any:
        return self.http.post(path, json=body).raise_for_status().json()

    def look(self) -> None:
        self.seen = self.everything()

    def assert_unchanged(self, request: Callable[[], str]) -> None:
        now = self.everything()
        assert now == self.seen, request()

    def everything(self) -> list[list[DictRow]]:
        """Return everything that a request could have created, changed or removed, and that runs under way do not
        change.
        """
        return [self.database.execute(query).fetchall() for query in EVERYTHING]


EVERYTHING = (
    "SELECT * FROM assistants ORDER BY assistant_id",
    "SELECT * FROM assistant_versions ORDER BY assistant_id, version",
    "SELECT thread_id, metadata, config::text, created_at FROM threads ORDER BY thread_id",
    "SELECT run_id FROM runs WHERE NOT temporary ORDER BY run_id",
)


# --- requests that reach further than random ones -----------------------------------------------------------------

ONE_OF_MANY = {"thread_ids": "thread_id", "ids": "thread_id", "run_ids": "run_id"}


def name_real_things(case: schemathesis.Case, choose: Callable[[list[str]], str | None], world: World) -> None:
    """Replace random names by those of existing things: a random identifier only ever meets a 404.

    `choose` returns one of the known names, or None to keep the value. Values that are wrong on purpose stay wrong.
    """

    def replaced(name: str, value: Any) -> Any:
        if isinstance(value, list) and name in ONE_OF_MANY:
            return [replaced(ONE_OF_MANY[name], item) for item in value]
        if isinstance(value, str) and name in world.known and (name not in MUST_BE_UUID or is_uuid(value)):
            return choose(world.known[name]) or value
        return renamed(value)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replaced(name, item) for name, item in value.items()}
        return [renamed(item) for item in value] if isinstance(value, list) else value

    case.body = renamed(case.body)
    for name, value in case.path_parameters.items():
        if case.meta.generation.mode is RIGHT or is_uuid(value):
            case.path_parameters[name] = replaced(name, value)


MUST_BE_UUID = {"thread_id", "run_id"}


def is_uuid(value: Any) -> bool:
    with suppress(ValueError):
        return isinstance(value, str) and bool(UUID(value))
    return False


def keep_short(case: schemathesis.Case) -> None:
    """Limit delays: a client would wait a thousand years for a run that is to start then."""
    if not case.path.endswith(("/wait", "/stream")) or not isinstance(case.body, dict):
        return
    delay = case.body.get("after_seconds")
    if isinstance(delay, int | float) and delay > 0:
        case.body["after_seconds"] = 0.05
