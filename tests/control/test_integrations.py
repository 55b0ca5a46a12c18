"""Integrations of forges: `/v1/integrations`, `/v2/integrations`, and deployments that name one."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from moorage.control.checkouts import FetchError, GitPolicy, RunsAs, fetch_commit, newest_commit
from moorage.control.git_users import git_user
from moorage.control.isolation import find_isolation
from moorage.control.places import Place
from moorage.control.records.integrations import SEALED_FORGE_TOKEN, lies_at
from tests.accounts.houses import MASTER_KEYS
from tests.control.forge_server import TOKEN, forge_server
from tests.control.houses import created, from_git
from tests.control.repositories import git, make_repository
from tests.platform.serving import make_folder

pytest_plugins = "tests.control.fixtures"

LOCAL = GitPolicy(("http", "https"), private_addresses=True)


@pytest.fixture
def root(tmp_path):
    make_repository(tmp_path / "forge" / "team" / "agent", {"langgraph.json": "{}"})
    return tmp_path / "forge"


@pytest.fixture(params=["github", "gitlab", "gitea"])
def forge(request, root):
    with forge_server(request.param, root, more=120) as forge:
        yield forge


async def made(client, forge, **changes):
    body = {"kind": forge.kind, "name": "ours", "token": TOKEN, "base_url": f"{forge.url}/"} | changes
    answer = await client.post("/v2/integrations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_repositories_and_branches_of_each_forge_are_listed(client, forge, root):
    integration = await made(client, forge)
    path = f"/v2/integrations/{integration['id']}"
    found = (await client.get(f"{path}/repositories")).json()
    assert len(found) == 121, "all pages"
    suffix = ".git" if forge.kind == "gitlab" else ""
    assert found[0] == {
        "host_integration_id": integration["id"],
        "id": 1,
        "name": "agent",
        "owner": "team",
        "url": f"{forge.url}/team/agent{suffix}",
        "default_branch": "main",
    }
    branches = await client.get(f"{path}/branches", params={"repository": "team/agent"})
    sha = git(root / "team" / "agent", "rev-parse", "HEAD")
    assert branches.json() == [{"name": "main", "commit_sha": sha}]
    assert (await client.get(f"{path}/branches", params={"repository": "team/none"})).status_code == 404
    for wrong in ("../x", "agent", "a/../b", "a/b?c", ""):
        answer = await client.get(f"{path}/branches", params={"repository": wrong})
        assert answer.status_code == 422, wrong
    assert TOKEN not in str(found) + branches.text


async def test_clients_of_the_first_version_see_integrations_of_github_with_the_fields_of_the_contract(client, forge):
    integration = await made(client, forge)
    for prefix in ("/v1/integrations/github", "/v1/integrations/forge/github", "/api-host/v1/integrations/github"):
        listed = (await client.get(f"{prefix}/install")).json()
        repositories = await client.get(f"{prefix}/{integration['id']}/repos")
        if forge.kind == "github":
            assert [{**each, "installation_id": 0} for each in listed] == [
                {"id": integration["id"], "installation_id": 0, "name": "ours"}
            ]
            assert len(repositories.json()) == 121
        else:
            assert listed == []
            assert repositories.status_code == 404


@pytest.fixture
def github(root):
    with forge_server("github", root) as forge:
        yield forge


async def test_a_token_is_stored_sealed_and_is_in_no_answer(control, client, github):
    integration = await made(client, github)
    assert integration.pop("webhook_secret")
    path = f"/v2/integrations/{integration['id']}"
    answers = [await client.get("/v2/integrations"), await client.get(path)]
    assert answers[0].json() == [answers[1].json()] == [integration]
    assert all(TOKEN not in answer.text for answer in answers)
    sql = "SELECT id, sealed_token AS s FROM integrations WHERE id = %s"
    row = await control.rows.postgres.fetch_one(sql, (integration["id"],))
    assert TOKEN.encode() not in bytes(row["s"])
    assert MASTER_KEYS.open(bytes(row["s"]), SEALED_FORGE_TOKEN.place(row["id"])).decode() == TOKEN
    assert (await client.delete(path)).status_code == 200
    assert (await client.get(path)).status_code == (await client.delete(path)).status_code == 404


async def test_what_cannot_be_is_refused_without_repeating_the_token(client, github):
    await made(client, github)
    body = {"kind": "github", "name": "another", "token": "hush-hush", "base_url": github.url}
    for change, status in (
        ({"name": "ours"}, 409),
        ({"kind": "svn"}, 422),
        ({"kind": "gitea", "base_url": None}, 422),
        ({"token": "hush hush"}, 422),
        ({"token": "hush\nX-Other: 1"}, 422),
        ({"base_url": "file:///etc"}, 422),
        ({"base_url": "https://me:hush@example.com"}, 422),
        ({"base_url": "https://example.com/?a=hush"}, 422),
        ({"unknown": 1}, 422),
    ):
        answer = await client.post("/v2/integrations", json=body | change)
        assert answer.status_code == status, (change, answer.text)
        assert "hush" not in answer.text
    wrong = await made(client, github, name="another", token="hush-hush")
    answer = await client.get(f"/v2/integrations/{wrong['id']}/repositories")
    assert answer.status_code == 400
    assert "refuses the token" in answer.text
    assert "hush" not in answer.text


async def test_an_integration_of_another_workspace_is_not_found_and_names_are_free_there(control, client, github):
    integration = await made(client, github)
    stranger = await control.house.make_workspace()
    async with control.client(stranger["api_key"]) as outside:
        assert (await outside.get("/v2/integrations")).json() == []
        path = f"/v2/integrations/{integration['id']}"
        for method, below in (("GET", ""), ("GET", "/repositories"), ("DELETE", "")):
            assert (await outside.request(method, f"{path}{below}")).status_code == 404
        await made(outside, github)
        config = {"repo_url": "https://github.example.com/a/b", "integration_id": integration["id"]}
        answer = await outside.post("/v2/deployments", json=from_git(source_config=config))
        assert answer.status_code == 400


async def test_a_deployment_names_an_integration_of_its_workspace_and_a_repository_of_its_forge(client, github):
    integration = await made(client, github, base_url="https://github.example.com")
    config = {"repo_url": "https://github.example.com/team/agent", "integration_id": integration["id"]}
    deployment = await created(client, from_git(source_config=config))
    assert deployment["source_config"]["integration_id"] == integration["id"]
    assert deployment["warnings"] == []
    for change, word in (
        ({"integration_id": str(uuid4())}, "no integration"),
        ({"integration_id": "mine"}, "no integration"),
        ({"repo_url": "https://evil.example.com/team/agent"}, "must lie below"),
        ({"repo_url": "https://github.example.com.evil.example/team/agent"}, "must lie below"),
        ({"repo_url": "https://github.example.com:8443/team/agent"}, "must lie below"),
    ):
        answer = await client.post("/v2/deployments", json=from_git(source_config=config | change))
        assert answer.status_code == 400, answer.text
        assert word in answer.text


@pytest.mark.parametrize(
    ("repository", "forge", "lies"),
    [
        ("https://h/a/b", "https://h", True),
        ("https://h:443/a/b", "https://h", True),
        ("https://H/git/a/b", "https://h/git", True),
        ("https://h/github/a", "https://h/git", False),
        ("http://h/a/b", "https://h", False),
        ("https://h.evil/a", "https://h", False),
    ],
)
def test_whose_repository_it_is(repository, forge, lies):
    assert lies_at(repository, forge) is lies


async def test_a_private_repository_is_cloned_with_the_token_and_not_without(control, client, forge, root, tmp_path):
    integration = await made(client, forge)
    config = {"repo_url": f"{forge.url}/team/agent.git", "integration_id": integration["id"]}
    workspace_id = UUID(control.workspace_id)
    credential = await control.room.integrations.credential(workspace_id, config)
    sha = git(root / "team" / "agent", "rev-parse", "HEAD")
    out = tmp_path / "out"
    assert await fetch_commit(config["repo_url"], "main", out, LOCAL, credential=credential) == sha
    assert not [path for path in out.rglob("*") if path.is_file() and TOKEN in path.read_text()]
    (tmp_path / "asks").mkdir()
    assert await newest_commit(config["repo_url"], "main", tmp_path / "asks", LOCAL, credential=credential) == sha
    with pytest.raises(FetchError):
        await fetch_commit(config["repo_url"], "main", tmp_path / "denied", LOCAL)
    assert TOKEN not in repr(credential)
    elsewhere = {**config, "repo_url": "https://evil.example.com/team/agent"}
    assert await control.room.integrations.credential(workspace_id, elsewhere) is None
    await client.delete(f"/v2/integrations/{integration['id']}")
    assert await control.room.integrations.credential(workspace_id, config) is None


async def test_another_host_and_a_redirect_never_get_the_token(control, client, root, tmp_path):
    """Git itself sends the header only to the forge's address, whatever it is asked to fetch."""
    with forge_server("gitea", root) as ours, forge_server("gitea", root) as other:
        integration = await made(client, ours)
        config = {"repo_url": f"{ours.url}/team/agent", "integration_id": integration["id"]}
        credential = await control.room.integrations.credential(UUID(control.workspace_id), config)
        with pytest.raises(FetchError) as caught:
            await fetch_commit(f"{other.url}/team/agent", "main", tmp_path / "out", LOCAL, credential=credential)
        assert other.seen
        assert {given for _, given in other.seen} == {None}
        assert TOKEN not in str(caught.value)
        other.seen.clear()
        ours.moved_to = other.url
        with pytest.raises(FetchError) as caught:
            await fetch_commit(config["repo_url"], "main", tmp_path / "out", LOCAL, credential=credential)
        assert other.seen == []
        assert TOKEN not in str(caught.value)


async def test_the_token_is_in_no_command_line(control, client, root, tmp_path):
    lines = []

    def wrapped(argv, writable, readable):
        lines.append(argv)
        return list(argv)

    with forge_server("gitlab", root) as forge:
        integration = await made(client, forge)
        config = {"repo_url": f"{forge.url}/team/agent.git", "integration_id": integration["id"]}
        credential = await control.room.integrations.credential(UUID(control.workspace_id), config)
        seen = RunsAs(None, wrapped)
        await fetch_commit(config["repo_url"], "main", tmp_path / "out", LOCAL, runs_as=seen, credential=credential)
    secret = credential.header.split()[-1]
    assert len(lines) > 2
    assert not [line for line in lines if TOKEN in str(line) or secret in str(line)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_git_with_a_credential_runs_as_a_user_that_no_agent_has(control, client, root):
    with forge_server("gitea", root) as forge, make_folder() as home:
        integration = await made(client, forge)
        config = {"repo_url": f"{forge.url}/team/agent", "integration_id": integration["id"]}
        credential = await control.room.integrations.credential(UUID(control.workspace_id), config)
        place, isolation = Place(Path(home), 7), find_isolation()
        place.make()
        try:
            runs_as = git_user(place, isolation, credential)
            assert runs_as.uid not in {None, 0, place.uid}
            assert git_user(place, isolation, credential).uid == runs_as.uid
            assert git_user(place, isolation, None).uid == place.uid
            out = place.builds / "new" / "source"
            sha = await fetch_commit(config["repo_url"], "main", out, LOCAL, runs_as=runs_as, credential=credential)
            assert sha == git(root / "team" / "agent", "rev-parse", "HEAD")
            assert out.stat().st_uid == 0
        finally:
            place.remove()
