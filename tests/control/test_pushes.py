"""Build on push, by asking real repositories over HTTP."""

from __future__ import annotations

import pytest

from moorage.control.checkouts import GitPolicy
from moorage.control.isolation import find_isolation
from moorage.control.places import Place
from moorage.control.pushes import Pushes, PushRules
from tests.control.houses import created, from_git
from tests.control.repositories import commit, git, git_server, make_repository

pytest_plugins = "tests.control.fixtures"


@pytest.fixture
def repository(tmp_path):
    return make_repository(tmp_path / "served" / "agent", {"langgraph.json": "{}"})


@pytest.fixture
def origin(repository):
    with git_server(repository.parent) as url:
        yield f"{url}/agent/.git"


@pytest.fixture
async def deployment(control, client, repository, origin):
    """Create a deployment in the state after its first revision serves."""
    config = {"repo_url": "https://github.com/someone/agent", "build_on_push": True}
    made = await created(client, from_git(source_config=config))
    assert made["warnings"] == []
    execute = control.rows.postgres.execute
    # The API accepts only https on public addresses, as the house is set up.
    sql = "UPDATE deployments SET status = 'READY', source_config = jsonb_set(source_config, '{repo_url}', to_jsonb(%s::text))"
    await execute(f"{sql} WHERE id = %s", (origin, made["id"]))
    await built(control, made["latest_revision_id"], git(repository, "rev-parse", "HEAD"))
    return made


async def built(control, revision_id, sha, status="DEPLOYED"):
    sql = "UPDATE revisions SET status = %s, repo_commit_sha = %s WHERE id = %s"
    await control.rows.postgres.execute(sql, (status, sha, revision_id))


@pytest.fixture
def look(control, tmp_path, deployment):
    policy = GitPolicy(("http", "https"), private_addresses=True)
    rules = PushRules(tmp_path / "home", policy, find_isolation(), 0)

    def place_of(number):
        place = Place(tmp_path / "home", number)
        (tmp_path / "home").mkdir(exist_ok=True)
        place.make()
        return place

    pushes = Pushes(
        rules, control.rows.deployments, control.room.deployments, place_of, control.room.integrations.credential
    )
    return pushes.look


@pytest.fixture
def revisions(client, deployment):
    async def read():
        answer = await client.get(f"/v2/deployments/{deployment['id']}/revisions")
        return answer.json()["resources"]

    return read


async def test_a_push_makes_one_revision_however_often_it_is_looked_at(repository, look, revisions):
    await look()
    assert len(await revisions()) == 1, "what serves is the newest"
    commit(repository, {"agent.py": "second = 2\n"})
    await look()
    newest, _ = await revisions()
    assert newest["status"] in {"AWAITING_BUILD", "QUEUED"}
    await look()
    assert len(await revisions()) == 2


async def test_of_ten_pushes_the_first_and_the_last_are_built(control, repository, look, revisions):
    for number in range(10):
        newest = commit(repository, {"agent.py": f"number = {number}\n"})
        await look()
        if number == 0:
            [first, _] = await revisions()
            await built(control, first["id"], newest, "BUILDING")
    assert [each["status"] for each in await revisions()] == ["QUEUED", "BUILDING", "DEPLOYED"]
    last, first, _ = await revisions()
    await built(control, first["id"], git(repository, "rev-parse", "HEAD~9"))
    await built(control, last["id"], newest)
    await look()
    assert len(await revisions()) == 3


async def test_a_push_that_does_not_build_is_not_tried_again_and_the_way_back_stays(
    control, client, repository, look, revisions
):
    newest = commit(repository, {"agent.py": "broken"})
    await look()
    [failed, first] = await revisions()
    await built(control, failed["id"], newest, "BUILD_FAILED")
    await look()
    assert len(await revisions()) == 2
    await built(control, failed["id"], newest)
    path = f"/v2/deployments/{(await client.get('/v2/deployments')).json()['resources'][0]['id']}/revisions"
    assert (await client.post(f"{path}/{first['id']}/redeploy")).status_code == 200
    back = (await revisions())[0]
    await built(control, back["id"], git(repository, "rev-parse", "HEAD~1"))
    await look()
    assert len(await revisions()) == 3


async def test_other_branches_lost_branches_and_switched_off_ones_build_nothing(
    client, repository, deployment, look, revisions
):
    git(repository, "checkout", "--quiet", "-b", "other")
    commit(repository, {"agent.py": "other = 1\n"})
    await look()
    git(repository, "branch", "--quiet", "-D", "main")
    await look()
    assert len(await revisions()) == 1
    git(repository, "branch", "main")
    off = {"source_config": {"build_on_push": False}}
    assert (await client.patch(f"/v2/deployments/{deployment['id']}", json=off)).status_code == 200
    await look()
    assert len(await revisions()) == 1


async def test_a_repository_that_is_away_stops_no_other(control, look, revisions, deployment):
    sql = "UPDATE deployments SET source_config = jsonb_set(source_config, '{repo_url}', '\"http://127.0.0.1:1/x\"')"
    await control.rows.postgres.execute(f"{sql} WHERE id = %s", (deployment["id"],))
    await look()
    assert len(await revisions()) == 1
