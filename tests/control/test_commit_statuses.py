"""Statuses that are written to commits, at each forge."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading

import pytest

from moorage.control.commit_statuses import CommitStatuses
from moorage.control.forges import Forges
from moorage.control.integrations import Integrations
from moorage.control.store.commit_statuses import CommitStatusStore
from moorage.control.store.integrations import IntegrationStore
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.postgres import Postgres
from tests.accounts.houses import MASTER_KEYS
from tests.control.forge_server import TOKEN, forge_server
from tests.control.houses import PUBLIC_URL, created, from_git
from tests.waiting import until

pytest_plugins = "tests.control.fixtures"

SHA = "a" * 40


@pytest.fixture(params=["github", "gitlab", "gitea"])
def forge(request, tmp_path):
    with forge_server(request.param, tmp_path) as forge:
        yield forge


@pytest.fixture
async def deployment(control, client, forge):
    body = {"kind": forge.kind, "name": "ours", "token": TOKEN, "base_url": "https://git.example.com/sub"}
    integration = (await client.post("/v2/integrations", json=body)).json()
    config = {"repo_url": "https://git.example.com/sub/team/agent.git", "integration_id": integration["id"]}
    made = await created(client, from_git(source_config=config))
    # The API accepts only public addresses of repositories, as the house is set up.
    execute = control.rows.postgres.execute
    await execute("UPDATE integrations SET base_url = %s WHERE id = %s", (forge.url, integration["id"]))
    sql = "UPDATE deployments SET source_config = jsonb_set(source_config, '{repo_url}', to_jsonb(%s::text)) WHERE id = %s"
    await execute(sql, (f"{forge.url}/team/agent.git", made["id"]))
    return made


@pytest.fixture
def statuses(control):
    return CommitStatuses(
        CommitStatusStore(control.rows.postgres), control.room.integrations, "https://moorage.example.com"
    )


@pytest.fixture
def at(control, deployment):
    async def move(status, sha=SHA):
        sql = "UPDATE revisions SET status = %s, repo_commit_sha = %s, tell_at = now() WHERE id = %s"
        await control.rows.postgres.execute(sql, (status, sha, deployment["latest_revision_id"]))

    return move


async def test_the_commit_of_a_revision_is_told_each_state_once(forge, deployment, statuses, at):
    await at("AWAITING_BUILD", None)
    await statuses.look()
    assert forge.statuses == [], "no commit is known yet"
    for status in ("BUILDING", "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED"):
        await at(status)
        await statuses.look()
        await statuses.look()
    assert [body["state"] for _, body in forge.statuses] == ["pending", "success"]
    path, body = forge.statuses[-1]
    label = "name" if forge.kind == "gitlab" else "context"
    assert path == (
        f"/projects/team%2Fagent/statuses/{SHA}" if label == "name" else f"/repos/team/agent/statuses/{SHA}"
    )
    assert body == {
        "state": "success",
        "target_url": f"https://moorage.example.com/d/{deployment['name']}",
        "description": "The commit serves",
        label: f"moorage/{deployment['name']}",
    }


async def test_a_failure_is_told_and_a_forge_that_is_away_is_told_later(forge, statuses, at):
    forge.status_answer = 503
    await at("BUILD_FAILED")
    await statuses.look()
    await statuses.look()
    assert len(forge.statuses) == 1, "not at once again"
    forge.status_answer = 201
    await at("BUILD_FAILED")  # as after a minute
    await statuses.look()
    await at("BUILD_FAILED")
    await statuses.look()
    assert [body["state"] for _, body in forge.statuses] == ["failed" if forge.kind == "gitlab" else "failure"] * 2


async def test_a_token_that_may_not_write_is_not_tried_again_for_the_same_state(forge, statuses, at):
    forge.status_answer = 403
    for _ in range(2):
        await at("BUILDING")
        await statuses.look()
    assert len(forge.statuses) == 1


def look_until_killed(conninfo: str) -> None:
    """Look once as a platform does, in a process of its own, until it is killed."""

    async def look() -> None:
        postgres = Postgres(conninfo, pool_max=2)
        await postgres.open()
        forges = Forges(GuardedHttp(allow_private=True))
        integrations = Integrations(IntegrationStore(postgres), MASTER_KEYS, forges, PUBLIC_URL, lambda: None)
        await CommitStatuses(CommitStatusStore(postgres), integrations, PUBLIC_URL).look()

    asyncio.run(look())


@pytest.mark.parametrize("forge", ["github"], indirect=True)
async def test_a_process_that_is_killed_while_the_forge_answers_leaves_no_commit_untold(
    forge, statuses, at, platform_conninfo
):
    forge.hold = threading.Event()
    await at("DEPLOYED")
    killed = multiprocessing.get_context("spawn").Process(target=look_until_killed, args=(platform_conninfo,))
    killed.start()
    await until(lambda: forge.statuses, bound_s=30)
    killed.kill()
    killed.join()
    forge.hold.set()
    await statuses.look()
    assert len(forge.statuses) == 1, "it is given to others after a minute"
    await at("DEPLOYED")  # as after that minute
    await statuses.look()
    await at("DEPLOYED")
    await statuses.look()
    assert [body["state"] for _, body in forge.statuses] == ["success"] * 2
