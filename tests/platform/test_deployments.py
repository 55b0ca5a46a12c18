"""From a git repository to a running agent, through a real `moorage up`: the flow that users have."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.repositories import commit, git_server, make_repository
from tests.platform.serving import Platform, make_folder, make_platform

ENDED = {"DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"}
GRAPH = """
import asyncio
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    wait_s: float
    version: int

async def answer(state: State) -> State:
    await asyncio.sleep(state.get("wait_s", 0))
    return {"version": 1}

builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""
FILES = {
    "langgraph.json": json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], "env": ".env"}),
    "agent.py": GRAPH,
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        make_repository(made / "repos" / "agent", FILES)
        yield made


@pytest.fixture(scope="module")
def git(folder: Path) -> Iterator[str]:
    with git_server(folder / "repos") as url:
        yield f"{url}/agent/.git"


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    settings = {"MOORAGE_GIT_PROTOCOLS": "http,https", "MOORAGE_GIT_PRIVATE_ADDRESSES": "true"}
    with make_platform(folder / "home", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def api(platform: Platform) -> Iterator[httpx.Client]:
    with platform.client() as client:
        yield client


@pytest.fixture(scope="module")
def deployment(api: httpx.Client, git: str) -> dict[str, Any]:
    """Deployed from the repository, once for the module."""
    body = {
        "name": "agent",
        "source": "github",
        "source_config": {"repo_url": git, "deployment_type": "dev", "build_on_push": False},
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
        "secrets": [],
    }
    answer = api.post("/v2/deployments", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    ended = until_ended(api, made["id"], made["latest_revision_id"])
    assert ended["status"] == "DEPLOYED", ended["status_message"]
    return made


def until_ended(api: httpx.Client, deployment_id: str, revision_id: str, bound_s: float = 120) -> dict[str, Any]:
    give_up_at = time.monotonic() + bound_s
    while True:
        found = api.get(f"/v2/deployments/{deployment_id}/revisions/{revision_id}").json()
        if found["status"] in ENDED:
            return found
        assert time.monotonic() < give_up_at, f"it is still {found['status']}"
        time.sleep(0.1)


def until(true: Any, bound_s: float = 30) -> None:
    give_up_at = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < give_up_at, "it has not come about"
        time.sleep(0.2)


def version(api: httpx.Client, deployment: dict[str, Any], wait_s: float = 0) -> int:
    url = deployment["source_config"]["custom_url"]
    answer = api.post(f"{url}/runs/wait", json={"assistant_id": "agent", "input": {"wait_s": wait_s}})
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


def test_a_repository_becomes_an_agent_that_is_traced(api: httpx.Client, deployment: dict[str, Any]) -> None:
    assert version(api, deployment) == 1
    until(lambda: "agent" in {project["name"] for project in api.get("/api/v1/sessions").json()})


def test_keys_of_the_workspace_open_it_and_nothing_else(api: httpx.Client, deployment: dict[str, Any]) -> None:
    url = deployment["source_config"]["custom_url"]
    assert httpx.post(f"{url}/threads", json={}).status_code == 401
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": "lsv2_pt_invented"}).status_code == 401
    assert httpx.get(f"{url}/ok").status_code == 200
    weak = api.post("/api/v1/api-key", json={"description": "weak", "scopes": ["runs:read"]}).json()["key"]
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": weak}).status_code == 403
    other = api.post("/api/v1/workspaces", json={"display_name": "another"}).json()["api_key"]
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": other}).status_code == 403
    bearer = api.post("/api/v1/auth/token", json={}).json()["access_token"]
    assert httpx.post(f"{url}/threads", json={}, headers={"Authorization": f"Bearer {bearer}"}).status_code == 200


def test_the_next_revision_and_the_way_back_lose_no_request(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any], folder: Path
) -> None:
    answers: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        with platform.client() as client:
            while not over.is_set():
                answers.append(version(client, deployment, wait_s=0.2))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        commit(folder / "repos" / "agent", {"agent.py": GRAPH.replace('"version": 1', '"version": 2')})
        patch = {"source_revision_config": {"repo_ref": "main"}}
        second = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
        assert until_ended(api, deployment["id"], second)["status"] == "DEPLOYED"
        assert version(api, deployment) == 2
        first = deployment["latest_revision_id"]
        again = api.post(f"/v2/deployments/{deployment['id']}/revisions/{first}/redeploy").json()
        assert until_ended(api, deployment["id"], again["latest_revision_id"])["status"] == "DEPLOYED"
        assert version(api, deployment) == 1
        time.sleep(2)
    finally:
        over.set()
        for thread in asking:
            thread.join()
    assert set(answers) == {1, 2}


def test_a_revision_that_cannot_be_says_why_and_changes_nothing(
    api: httpx.Client, deployment: dict[str, Any], folder: Path
) -> None:
    before = version(api, deployment)
    commit(folder / "repos" / "agent", {"agent.py": "import nowhere_to_be_found\n"})
    patch = {"source_revision_config": {"repo_ref": "main"}}
    broken = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
    ended = until_ended(api, deployment["id"], broken)
    assert ended["status"] == "DEPLOY_FAILED"
    assert "nowhere_to_be_found" in ended["status_message"]
    patch = {"source_revision_config": {"repo_ref": "no-such-branch"}}
    lost = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
    ended = until_ended(api, deployment["id"], lost)
    assert ended["status"] == "BUILD_FAILED"
    assert "no-such-branch" in ended["status_message"]
    assert version(api, deployment) == before


def test_an_agent_goes_on_while_the_platform_is_killed(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    before = version(api, deployment)
    platform.kill()
    assert version(api, deployment) == before
    platform.start()
    assert version(api, deployment) == before


def test_what_is_deleted_leaves_nothing_behind(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    assert api.delete(f"/v2/deployments/{deployment['id']}").status_code == 204
    until(lambda: not list((platform.home / "agents").glob("[0-9]*")), 60)
    assert api.get(deployment["source_config"]["custom_url"] + "/ok").status_code == 502
