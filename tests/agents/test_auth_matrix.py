"""Every operation of the agent server as its owner, as another user and without a user.

An operation that is missing in `CASES` fails the test: whoever adds an operation writes there what another user gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from moorage.wiring.agent_application import mount_all
from tests.accounts.matrix import operations
from tests.agents.guarded import credentials, http_of
from tests.serving import Server

# Operations about the server's health and its API, which need no user.
OPEN = {("GET", "/ok"), ("GET", "/info"), ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")}
# Documentation pages that FastAPI adds. They need a user, and contain nothing of a user.
PAGES = {("GET", "/"), ("GET", "/docs/oauth2-redirect"), ("GET", "/redoc")}


class World:
    """One object of every kind, all of them Ada's."""

    def __init__(self, ada: httpx.Client) -> None:
        self.ada = ada
        self.mark = uuid4().hex
        self.thread_id = self.made("/threads", "thread_id", metadata={"mark": self.mark})
        self.assistant_id = self.made("/assistants", "assistant_id", graph_id="whoami", metadata={"mark": self.mark})
        run = {"assistant_id": "whoami", "input": {"text": self.mark}, "stream_resumable": True}
        self.run_id = self.made(f"/threads/{self.thread_id}/runs", "run_id", **run)
        ada.get(f"/threads/{self.thread_id}/runs/{self.run_id}/join")
        self.cron_id = self.made(
            "/runs/crons", "cron_id", assistant_id="whoami", schedule="0 0 1 1 *", metadata={"mark": self.mark}
        )
        item = {"namespace": ["notes"], "key": self.mark, "value": {"text": self.mark}}
        assert ada.put("/store/items", json=item).status_code == 204
        checkpoint = ada.get(f"/threads/{self.thread_id}/state").json()["checkpoint"]
        self.checkpoint_id = checkpoint["checkpoint_id"]

    def made(self, path: str, key: str, **body: Any) -> str:
        answer = self.ada.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()[key])

    def place(self, path: str) -> str:
        return path.format(
            thread_id=self.thread_id,
            assistant_id=self.assistant_id,
            run_id=self.run_id,
            cron_id=self.cron_id,
            checkpoint_id=self.checkpoint_id,
            namespace="none",
        )

    def now(self) -> list[Any]:
        """Return everything that another user could have changed."""
        places = ("/threads/{thread_id}", "/threads/{thread_id}/runs", "/threads/{thread_id}/history?limit=100",
                  "/assistants/{assistant_id}", "/runs/crons/{cron_id}", f"/store/items?namespace=notes&key={self.mark}")  # fmt: skip
        return [self.ada.get(self.place(path)).json() for path in places]


@dataclass(frozen=True)
class Case:
    """An operation's request, and the answer for another user. `owner` is the answer for its owner."""

    body: Callable[[World], Any] | None = None
    query: Callable[[World], dict[str, str]] | None = None
    other: int = 404
    owner: int = 200
    endless: bool = False

    def send(self, client: httpx.Client, world: World, method: str, path: str) -> httpx.Response:
        body = None if self.body is None else self.body(world)
        query = None if self.query is None else self.query(world)
        with client.stream(method, world.place(path), json=body, params=query) as answer:
            if not (self.endless and answer.is_success):  # of a stream that stays open, only the beginning is read
                answer.read()
            return answer


def body(**fields: Any) -> Callable[[World], Any]:
    return lambda _: fields


def marked(world: World) -> Any:
    return {"metadata": {"mark": world.mark}}


RUN = {"assistant_id": "whoami", "input": {"text": "x"}}
THREAD, RUNS = "/threads/{thread_id}", "/threads/{thread_id}/runs"
SOCKET = f"{THREAD}/stream/events"
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Operations that create something of the caller's own, or list the caller's own things, answer every user. The test
# checks that the answer contains nothing of Ada's.
CASES: dict[tuple[str, str], Case] = {
    ("POST", "/assistants"): Case(lambda w: {"graph_id": "whoami", "assistant_id": w.assistant_id, "if_exists": "do_nothing"}, other=409),
    ("POST", "/assistants/search"): Case(marked, other=200),
    ("POST", "/assistants/count"): Case(marked, other=200),
    ("GET", "/assistants/{assistant_id}"): Case(),
    ("PATCH", "/assistants/{assistant_id}"): Case(body(name="changed")),
    ("DELETE", "/assistants/{assistant_id}"): Case(owner=204),
    ("POST", "/assistants/{assistant_id}/versions"): Case(body()),
    ("POST", "/assistants/{assistant_id}/latest"): Case(body(version=1)),
    ("GET", "/assistants/{assistant_id}/graph"): Case(),
    ("GET", "/assistants/{assistant_id}/schemas"): Case(),
    ("GET", "/assistants/{assistant_id}/subgraphs"): Case(),
    ("GET", "/assistants/{assistant_id}/subgraphs/{namespace}"): Case(),
    ("POST", "/threads"): Case(lambda w: {"thread_id": w.thread_id, "if_exists": "do_nothing"}, other=409),
    ("POST", "/threads/search"): Case(marked, other=200),
    ("POST", "/threads/count"): Case(marked, other=200),
    ("POST", "/threads/prune"): Case(lambda w: {"thread_ids": [w.thread_id]}, other=200),
    ("GET", "/threads/expiring"): Case(other=200),
    ("GET", THREAD): Case(),
    ("PATCH", THREAD): Case(body(metadata={"stolen": True})),
    ("DELETE", THREAD): Case(owner=204),
    ("POST", f"{THREAD}/copy"): Case(other=409),
    ("GET", f"{THREAD}/storage"): Case(),
    ("GET", f"{THREAD}/state"): Case(),
    ("POST", f"{THREAD}/state"): Case(body(values={"text": "stolen"})),
    ("GET", f"{THREAD}/state/{{checkpoint_id}}"): Case(),
    ("POST", f"{THREAD}/state/checkpoint"): Case(lambda w: {"checkpoint": {"checkpoint_id": w.checkpoint_id}}),
    ("GET", f"{THREAD}/history"): Case(),
    ("POST", f"{THREAD}/history"): Case(body(limit=10)),
    # The protocol has its own message that there is no such thread.
    ("POST", f"{THREAD}/commands"): Case(body(id=1, method="run.start", params=RUN), other=200),
    ("POST", f"{THREAD}/stream/events"): Case(body(channels=["values"], since=0), endless=True),
    ("GET", f"{THREAD}/stream"): Case(endless=True),
    ("POST", RUNS): Case(body(**RUN, if_not_exists="create")),
    ("POST", f"{RUNS}/stream"): Case(body(**RUN)),
    ("POST", f"{RUNS}/wait"): Case(body(**RUN)),
    ("GET", RUNS): Case(),
    ("GET", f"{RUNS}/{{run_id}}"): Case(),
    ("DELETE", f"{RUNS}/{{run_id}}"): Case(owner=204),
    ("GET", f"{RUNS}/{{run_id}}/join"): Case(other=200),
    ("GET", f"{RUNS}/{{run_id}}/stream"): Case(other=200),
    ("POST", f"{RUNS}/{{run_id}}/cancel"): Case(owner=404),  # the run has ended
    ("POST", "/runs"): Case(lambda w: {**RUN, "assistant_id": w.assistant_id}),
    ("POST", "/runs/batch"): Case(lambda w: [{**RUN, "assistant_id": w.assistant_id}]),
    ("POST", "/runs/stream"): Case(lambda w: {**RUN, "assistant_id": w.assistant_id}),
    ("POST", "/runs/wait"): Case(lambda w: {**RUN, "assistant_id": w.assistant_id}),
    ("POST", "/runs/cancel"): Case(lambda w: {"thread_id": w.thread_id, "run_ids": [w.run_id]}, owner=404),
    ("GET", "/runs/{run_id}/stream"): Case(other=200),
    ("POST", "/runs/crons"): Case(lambda w: {"assistant_id": w.assistant_id, "schedule": "0 0 1 1 *"}),
    ("POST", f"{RUNS}/crons"): Case(body(assistant_id="whoami", schedule="0 0 1 1 *")),
    ("POST", "/runs/crons/search"): Case(marked, other=200),
    ("POST", "/runs/crons/count"): Case(marked, other=200),
    ("GET", "/runs/crons/{cron_id}"): Case(),
    ("PATCH", "/runs/crons/{cron_id}"): Case(body(schedule="* * * * *")),
    ("DELETE", "/runs/crons/{cron_id}"): Case(owner=204),
    ("PUT", "/store/items"): Case(lambda w: {"namespace": ["notes"], "key": w.mark, "value": {}}, other=204, owner=204),
    ("GET", "/store/items"): Case(query=lambda w: {"namespace": "notes", "key": w.mark}, other=200),
    ("DELETE", "/store/items"): Case(lambda w: {"namespace": ["notes"], "key": w.mark}, other=204, owner=204),
    ("POST", "/store/items/search"): Case(body(namespace_prefix=["notes"]), other=200),
    ("POST", "/store/namespaces"): Case(body(), other=200),
}  # fmt: skip


def known() -> list[tuple[str, str]]:
    app = FastAPI()
    mount_all(app)
    return sorted({(operation.method, operation.path) for operation in operations(app)})


@pytest.fixture(scope="module")
def ada(guarded: Server) -> Iterator[httpx.Client]:
    with http_of(guarded, "ada") as client:
        yield client


def test_every_operation_is_in_the_matrix() -> None:
    assert set(known()) - OPEN - PAGES - {("WEBSOCKET", SOCKET)} == CASES.keys()


@pytest.mark.parametrize(("user", "is_let_in"), [("ada", True), ("bob", False), (None, False)])
def test_a_websocket_is_its_owners_alone(guarded: Server, ada: httpx.Client, user: str | None, is_let_in: bool) -> None:
    url = guarded.url.replace("http://", "ws://") + World(ada).place(SOCKET)
    if is_let_in:
        with connect(url, additional_headers=credentials(user)):
            return
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers=credentials(user))
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(("method", "path"), CASES, ids=str)
def test_an_operation_is_its_owners_alone(guarded: Server, ada: httpx.Client, method: str, path: str) -> None:
    world, case = World(ada), CASES[method, path]
    before = world.now()
    with http_of(guarded, None) as nobody, http_of(guarded, "bob") as bob:
        unknown = case.send(nobody, world, method, path)
        assert (unknown.status_code, unknown.text) == (401, '{"detail":"Who are you?"}')
        other = case.send(bob, world, method, path)
        assert other.status_code == case.other, other.text
        # His own search may name what he asks for; nothing else of hers is in what he gets.
        assert world.mark not in other.text
        assert "ada" not in UUID_TEXT.sub("", other.text)  # an id may contain these letters
    assert world.now() == before
    owner = case.send(ada, world, method, path)
    assert owner.status_code == case.owner, owner.text
    if path.endswith("/count"):
        assert (other.text, owner.text) == ("0", "1")


@pytest.mark.parametrize(("method", "path"), sorted(PAGES))
def test_pages_need_a_user(guarded: Server, method: str, path: str) -> None:
    with http_of(guarded, None) as nobody:
        assert nobody.request(method, path).status_code == 401


@pytest.mark.parametrize(("method", "path"), sorted(OPEN))
def test_health_and_documentation_are_open(guarded: Server, method: str, path: str) -> None:
    with http_of(guarded, None) as nobody:
        assert nobody.request(method, path).status_code == 200


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("run.start", RUN),
        ("input.respond", {"interrupt_id": "0" * 32, "response": 1}),
        ("input.inject", {"message": {"role": "user", "content": "x"}}),
        ("state.get", {}),
        ("state.listCheckpoints", {}),
        ("state.fork", {"checkpoint_id": "1"}),
        ("agent.getTree", {}),
    ],
)
def test_no_command_reaches_a_thread_of_somebody_else(
    guarded: Server, ada: httpx.Client, method: str, params: dict[str, Any]
) -> None:
    world = World(ada)
    before = world.now()
    command = {"id": 1, "method": method, "params": params}
    with http_of(guarded, None) as nobody, http_of(guarded, "bob") as bob:
        assert nobody.post(f"/threads/{world.thread_id}/commands", json=command).status_code == 401
        answer = bob.post(f"/threads/{world.thread_id}/commands", json=command).json()
    assert answer["type"] == "error"
    assert "not found" in answer["message"]
    assert world.now() == before
