"""Revisions as clients see them, with a worker that stands in for the control loop."""

from uuid import UUID, uuid4

import pytest

from moorage.control.records.states import RevisionStatus
from tests.control.houses import created, from_git
from tests.control.rows import S, new_revision

pytest_plugins = "tests.control.fixtures"


@pytest.fixture
async def made(client, control):
    """Create a deployment whose database exists."""
    made = await created(client, from_git())
    await control.rows.postgres.execute("UPDATE deployments SET status = 'READY' WHERE id = %s", (made["id"],))
    return made


@pytest.fixture
def path(made):
    return f"/v2/deployments/{made['id']}/revisions"


async def test_revisions_come_newest_first_in_pages_and_by_status(client, control, made, path):
    await control.rows.roll_out(UUID(made["id"]))
    for _ in range(3):
        assert (await client.post(path, json={})).status_code == 200

    async def numbers(**query):
        answer = await client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return [one["number"] for one in answer.json()["resources"]]

    assert await numbers() == [4, 3, 2, 1]
    assert await numbers(limit=2, offset=1) == [3, 2]
    assert (await client.get(path, params={"limit": 2, "offset": 1})).json()["offset"] == 3
    assert await numbers(status="QUEUED") == [4, 3]
    assert await numbers(status="DEPLOYED,AWAITING_BUILD") == [2, 1]
    assert await numbers(remote_reconciled="true") == []
    for bad in ({"status": "NEVER"}, {"limit": 101}, {"offset": -1}):
        assert (await client.get(path, params=bad)).status_code == 422


async def test_a_new_revision_is_made_in_any_case_and_is_the_answer(client, made, path):
    answer = await client.post(path, json={"source_config": {"build_on_push": True}})
    assert answer.status_code == 200
    assert answer.json()["number"] == 2
    assert answer.json()["status"] == "QUEUED"
    deployment = (await client.get(f"/v2/deployments/{made['id']}")).json()
    assert deployment["latest_revision_id"] == answer.json()["id"]
    assert deployment["source_config"]["build_on_push"] is True


async def test_the_way_back_uses_what_was_built_and_ends_deployed(client, control, made, path):
    deployment = UUID(made["id"])
    held = await control.rows.claim(deployment)
    await control.rows.revisions.set_commit(held.lease, "c" * 40)
    await control.rows.revisions.hand_back([held.lease])
    first = await control.rows.roll_out(deployment)
    await client.patch(f"/v2/deployments/{deployment}", json={"source_revision_config": {"repo_ref": "next"}})
    await control.rows.roll_out(deployment)

    answer = await client.post(f"{path}/{first}/redeploy")
    assert answer.status_code == 200
    assert answer.json()["source_revision_config"]["repo_ref"] == "main"
    assert answer.json()["source_revision_config"]["repo_commit_sha"] == "c" * 40
    third = (await client.get(f"{path}/{answer.json()['latest_revision_id']}")).json()
    assert third["status"] == "AWAITING_DEPLOY"
    assert third["build_of"] == str(first)
    assert third["number"] == 3
    assert str(await control.rows.roll_out(deployment)) == third["id"]
    assert (await client.get(f"/v2/deployments/{deployment}")).json()["active_revision_id"] == third["id"]

    # The rollback from there uses the same build, and not a chain of builds.
    again = (await client.post(f"{path}/{third['id']}/redeploy")).json()["latest_revision_id"]
    assert (await client.get(f"{path}/{again}")).json()["build_of"] == str(first)


async def test_what_is_no_longer_built_is_built_again_of_the_same_commit(client, control, made, path):
    deployment = UUID(made["id"])
    held = await control.rows.claim(deployment)
    await control.rows.revisions.set_commit(held.lease, "d" * 40)
    await control.rows.revisions.move(held.lease, S.AWAITING_BUILD, S.BUILDING)
    assert (await client.post(f"{path}/{held.order.revision_id}/redeploy")).status_code == 400, "it is on its way"
    await control.rows.revisions.finish(held.lease, S.BUILDING, S.BUILD_FAILED)
    await client.post(f"{path}/{held.order.revision_id}/redeploy")
    again = await control.rows.claim(deployment)
    assert again.order.status is S.AWAITING_BUILD
    assert again.order.build_of is None
    assert again.order.repo_commit_sha == "d" * 40
    assert again.order.build_id == again.order.revision_id


async def test_a_stuck_revision_is_interrupted_and_the_next_goes_on(client, control, made, path):
    held = await control.rows.claim(UUID(made["id"]))
    await control.rows.revisions.move(held.lease, S.AWAITING_BUILD, S.BUILDING)
    waiting = (await client.post(path, json={})).json()["id"]
    stuck = f"{path}/{made['latest_revision_id']}"
    answer = await client.post(f"{stuck}/interrupt")
    assert answer.status_code == 200
    assert answer.json()["status"] == "INTERRUPTED"
    assert not await control.rows.revisions.finish(held.lease, S.BUILDING, S.BUILD_FAILED)
    assert (await client.get(f"{path}/{waiting}")).json()["status"] == "AWAITING_BUILD"
    again = await client.post(f"{stuck}/interrupt")
    assert again.status_code == 400
    assert "has ended as INTERRUPTED" in again.json()["detail"]
    assert len(control.wakes) == 3


async def test_a_revision_of_another_deployment_or_workspace_is_not_found(client, control, made, path):
    other = await created(client, from_git())
    foreign = f"{path}/{other['latest_revision_id']}"
    for method, where in (("GET", foreign), ("POST", f"{foreign}/redeploy"), ("POST", f"{foreign}/interrupt")):
        answer = await client.request(method, where)
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"Revision ID {other['latest_revision_id']} not found."
    assert (await client.get(f"{path}/{uuid4()}")).status_code == 404
    assert (await client.get(f"{path}/x")).status_code == 422
    stranger = await control.house.make_workspace()
    async with control.client(stranger["api_key"]) as outside:
        assert (await outside.get(f"{path}/{made['latest_revision_id']}")).status_code == 404
        assert (await outside.get(path)).status_code == 404
        assert (await outside.post(f"{path}/{made['latest_revision_id']}/interrupt")).status_code == 404


async def test_without_a_word_about_the_source_a_revision_is_of_the_one_before(client, control, made, path):
    """A hotfix was uploaded: new secrets for it must not bring the repository back."""
    revision = new_revision()
    revision = type(revision)(
        revision.id,
        revision.source.INTERNAL_SOURCE,
        {},
        {"repo_ref": "main", "langgraph_config_path": "langgraph.json", "source_tarball_path": "sources/x.tar.gz"},
    )
    await control.rows.push(UUID(made["id"]), revision)
    secrets = {"secrets": [{"name": "A", "value": "1"}]}
    patched = (await client.patch(f"/v2/deployments/{made['id']}", json=secrets)).json()
    assert patched["source"] == "github"
    assert patched["source_revision_config"]["source_tarball_path"] == "sources/x.tar.gz"
    assert patched["source_revision_config"]["repo_ref"] is None
    pushed = {"source_revision_config": {"repo_ref": "main"}}
    patched = (await client.patch(f"/v2/deployments/{made['id']}", json=pushed)).json()
    assert patched["source_revision_config"]["repo_ref"] == "main"
    assert patched["source_revision_config"]["source_tarball_path"] is None


async def test_the_first_version_of_the_api_shows_the_same(client, control, made):
    project = (await client.get(f"/v1/projects/{made['id']}")).json()
    assert project["name"] == made["name"]
    assert project["repo_branch"] == "main"
    assert project["tenant_id"]
    assert project["resource"]["url"] == made["source_config"]["custom_url"]
    assert [one["id"] for one in (await client.get("/api-host/v1/projects")).json()] == [made["id"]]
    path = f"/v1/projects/{made['id']}/revisions"
    new = {"repo_path": "a/langgraph.json", "env_vars": [{"name": "A", "value": "1", "type": "secret"}]}
    assert (await client.post(path, json=new)).json()["id"] == made["id"]
    newest, first = (await client.get(path)).json()
    assert newest["repo_path"] == "a/langgraph.json"
    assert newest["status"] == RevisionStatus.QUEUED
    assert newest["project_id"] == made["id"]
    assert "env_vars" not in newest
    assert (await client.get(f"{path}/{first['id']}")).json() == first
    assert (await client.post(f"{path}/{first['id']}/interrupt")).json()["status"] == "INTERRUPTED"
    assert (await client.delete(f"/v1/projects/{made['id']}")).json()["id"] == made["id"]
    assert (await client.get(f"/v1/projects/{made['id']}")).status_code == 404
