"""Every route of the platform with every key that must not open it, over HTTP through the front door."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI

from moorage.kernel.access import Scope
from moorage.wiring.platform import mount_all
from tests.accounts.matrix import Guarded, guarded, unguarded
from tests.platform.serving import Platform

pytest_plugins = "tests.platform.fixtures"

# What asks for no key: is it there, what can it do, and addresses that carry their own secret.
OPEN = {
    ("GET", "/ok"),
    ("GET", "/info"),
    ("GET", "/info/health"),
    ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
}


# Whose address is the secret. Each has tests of its own.
SIGNED = {
    ("GET", "/attachments/{token}"),
    ("GET", "/feedback/tokens/{token}"),
    ("POST", "/feedback/tokens/{token}"),
    ("PUT", "/uploads/{path:path}"),
    ("PUT", "/v2/uploads/{path:path}"),
}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    made = FastAPI()
    mount_all(made)
    return made


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> list[Guarded]:
    found = guarded(app)
    assert len(found) > 100  # or the walk has missed the routers
    return found


@pytest.fixture(scope="module")
def owner(platform: Platform) -> Iterator[httpx.Client]:
    with platform.client() as client:
        yield client


def new_key(owner: httpx.Client, scopes: set[Scope]) -> str:
    answer = owner.post("/api/v1/api-key", json={"description": "matrix", "scopes": sorted(scopes)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["key"])


@pytest.fixture(scope="module")
def foreign(platform: Platform, owner: httpx.Client) -> Iterator[httpx.Client]:
    """The first key of another workspace."""
    made = owner.post("/api/v1/workspaces", json={"display_name": "other"})
    assert made.status_code == 200, made.text
    with httpx.Client(base_url=platform.url, headers={"X-Api-Key": made.json()["api_key"]}, timeout=30) as client:
        yield client


def test_what_asks_for_no_key_is_written_down(app: FastAPI) -> None:
    prefixes = ("/api/v1", "/api/v2", "/v2", "/api-host")
    found = set()
    for method, path in unguarded(app):
        prefix = next((prefix for prefix in prefixes if path.startswith(f"{prefix}/")), "")
        found.add((method, path.removeprefix(prefix)))
    assert found == OPEN | SIGNED


def test_no_route_opens_without_a_key(platform: Platform, operations: list[Guarded]) -> None:
    with httpx.Client(base_url=platform.url, timeout=30) as nobody:
        answers = {operation: nobody.request(operation.method, operation.url) for operation in operations}
    wrong = {str(operation): answer.status_code for operation, answer in answers.items() if answer.status_code != 401}
    assert not wrong


def test_no_route_opens_for_a_key_of_another_workspace(
    platform: Platform, foreign: httpx.Client, operations: list[Guarded]
) -> None:
    headers = {"X-Tenant-Id": str(platform.workspace_id)}
    for operation in operations:
        answer = foreign.request(operation.method, operation.url, headers=headers)
        assert answer.status_code == 403, (operation, answer.text)
        assert "requires workspace specification" in answer.text


@pytest.mark.parametrize("scope", sorted(Scope))
def test_no_route_opens_without_its_scope(
    platform: Platform, owner: httpx.Client, operations: list[Guarded], scope: Scope
) -> None:
    asking = [operation for operation in operations if operation.scope is scope]
    key = new_key(owner, set(Scope) - {scope, Scope.SECRETS_READ})
    with httpx.Client(base_url=platform.url, headers={"X-Api-Key": key}, timeout=30) as client:
        for operation in asking:
            answer = client.request(operation.method, operation.url)
            assert answer.status_code == 403, (operation, answer.text)
            assert f"scope {scope}" in answer.text


def test_what_belongs_to_another_workspace_is_not_there(owner: httpx.Client, foreign: httpx.Client) -> None:
    project = owner.post("/api/v1/sessions", json={"name": f"mine-{uuid4().hex[:8]}"}).json()
    run_id = uuid4()
    start = datetime.now(UTC)
    run = {
        "id": str(run_id), "trace_id": str(run_id), "dotted_order": f"{start:%Y%m%dT%H%M%S%fZ}{run_id}", "name": "x",
        "run_type": "chain", "inputs": {}, "start_time": start.isoformat(), "session_id": project["id"],
    }  # fmt: skip
    assert owner.post("/runs", json=run).status_code == 202
    feedback = owner.post("/feedback", json={"run_id": str(run_id), "key": "good", "score": 1}).json()
    for path in (f"/sessions/{project['id']}", f"/runs/{run_id}", f"/feedback/{feedback['id']}"):
        assert owner.get(f"/api/v1{path}").status_code == 200, path
        assert foreign.get(f"/api/v1{path}").status_code == 404, path
    assert foreign.patch(f"/api/v1/sessions/{project['id']}", json={"description": "stolen"}).status_code == 404
    assert foreign.delete(f"/api/v1/sessions/{project['id']}").status_code == 404
    found = foreign.post("/api/v1/runs/query", json={"session": [project["id"]]})
    assert found.status_code in {200, 404}
    assert str(run_id) not in found.text
    assert not foreign.get("/api/v1/sessions").json()
    foreign.patch(f"/api/v1/runs/{run_id}", json={"outputs": {"stolen": True}, "end_time": start.isoformat()})
    assert owner.get(f"/api/v1/runs/{run_id}").json()["outputs"] is None


def test_no_answer_of_a_random_id_is_a_crash(owner: httpx.Client, operations: list[Guarded]) -> None:
    """Nothing has these ids, and no body comes with them: a refusal, or an empty answer, never a 500."""
    harmless = [operation for operation in operations if operation.method == "GET" or "{" in operation.path]
    for operation in harmless:
        answer = owner.request(operation.method, operation.url)
        assert answer.status_code < 500, (operation, answer.text)
        assert answer.status_code != 200 or operation.method == "GET", (operation, answer.text)


def test_the_workspace_is_a_real_one(platform: Platform) -> None:
    assert isinstance(platform.workspace_id, UUID)
