"""A deployed project with its own users and routes: it needs no keys of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client

from tests.control.repositories import git_server, make_repository
from tests.platform.serving import Platform, make_folder, make_platform
from tests.platform.test_deployments import until_ended
from tests.serving import EXAMPLES

pytestmark = pytest.mark.timeout(600)
PROJECT = EXAMPLES.parent / "own_users"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        files = {file.name: file.read_text() for file in PROJECT.iterdir() if file.is_file()}
        make_repository(made / "repos" / "agent", files)
        yield made


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    settings = {"MOORAGE_GIT_PROTOCOLS": "http,https", "MOORAGE_GIT_PRIVATE_ADDRESSES": "true"}
    with make_platform(folder / "home", MOORAGE_AGENT_START_SECONDS="240", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def deployment(folder: Path, platform: Platform) -> dict[str, Any]:
    with git_server(folder / "repos") as url, platform.client() as api:
        body = {
            "name": "own-users",
            "source": "github",
            "source_config": {"repo_url": f"{url}/agent/.git", "deployment_type": "dev", "build_on_push": False},
            "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
            "secrets": [],
        }
        made = api.post("/v2/deployments", json=body).json()
        assert made["authentication"] is None
        ended = until_ended(api, made["id"], made["latest_revision_id"])
        assert ended["status"] == "DEPLOYED", ended["status_message"]
        found: dict[str, Any] = api.get(f"/v2/deployments/{made['id']}").json()
        return found


async def test_its_users_need_no_key_of_the_platform(deployment: dict[str, Any]) -> None:
    url = deployment["source_config"]["custom_url"]
    async with (
        get_client(url=url, headers={"Authorization": "Bearer token-of-ada"}) as ada,
        get_client(url=url, headers={"Authorization": "Bearer token-of-bob"}) as bob,
    ):
        thread = await ada.threads.create()
        result = await ada.runs.wait(thread["thread_id"], "notes", input={"note": "milk", "notes": []})
        assert result["notes"] == ["Ada: milk"]  # type: ignore[call-overload,index]
        assert await bob.threads.search() == []


def test_a_key_of_the_platform_opens_it_for_studio_alone(platform: Platform, deployment: dict[str, Any]) -> None:
    url = f"{deployment['source_config']['custom_url']}/threads/count"
    key = {"X-Api-Key": platform.key}
    assert httpx.post(url, json={}, headers=key).status_code == 401
    assert httpx.post(url, json={}, headers={**key, "x-auth-scheme": "langsmith"}).status_code == 200
    assert httpx.post(url, json={}, headers={"X-Api-Key": "x", "x-auth-scheme": "langsmith"}).status_code in (401, 403)


def test_its_own_routes_are_open_and_its_middleware_is_around_all(deployment: dict[str, Any]) -> None:
    url = deployment["source_config"]["custom_url"]
    assert httpx.get(f"{url}/uptime").json()["seconds"] > 0
    refused = httpx.post(f"{url}/threads", json={})
    assert refused.status_code == 401
    assert "Server-Timing" in refused.headers


def test_the_deployment_says_how_callers_authenticate(platform: Platform, deployment: dict[str, Any]) -> None:
    assert deployment["authentication"] == "custom"
