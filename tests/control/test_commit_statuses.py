"""Statuses that are written to commits, at each forge."""

from __future__ import annotations

import pytest

from moorage.control.commit_statuses import CommitStatuses
from moorage.control.store.commit_statuses import CommitStatusStore
from tests.control.forge_server import TOKEN, forge_server
from tests.control.houses import created, from_git

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
    # The API takes repositories of public addresses only, as the house is set up.
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
