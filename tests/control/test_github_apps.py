"""Integrations by an installed app of GitHub, against a forge that checks what the app signs."""

from __future__ import annotations

from uuid import UUID

import pytest
from joserfc.jwk import ECKey, RSAKey

from moorage.control import github_apps
from moorage.control.checkouts import FetchError, GitPolicy, fetch_commit
from moorage.control.records.integrations import CommitStatus
from tests.control.forge_server import App, forge_server
from tests.control.houses import created, from_git
from tests.control.repositories import git, make_repository
from tests.control.test_commit_statuses import SHA

pytest_plugins = "tests.control.fixtures"

LOCAL = GitPolicy(("http", "https"), private_addresses=True)
KEY = RSAKey.generate_key(2048, private=True)
PEM = KEY.as_pem(private=True).decode()


@pytest.fixture
def github(tmp_path):
    make_repository(tmp_path / "forge" / "team" / "agent", {"langgraph.json": "{}"})
    with forge_server("github", tmp_path / "forge", more=60) as forge:
        forge.app = App("Iv1.abc123", 77, KEY)
        yield forge


def body(forge, **changes):
    app = {"app_id": "Iv1.abc123", "installation_id": 77, "private_key": PEM} | changes
    return {"kind": "github", "name": "the app", "base_url": forge.url, "app": app}


async def made(client, forge, **changes):
    answer = await client.post("/v2/integrations", json=body(forge, **changes))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_an_app_lists_the_repositories_of_its_installation_with_one_token_for_all_pages(client, github):
    integration = await made(client, github)
    assert (integration["app_id"], integration["installation_id"]) == ("Iv1.abc123", 77)
    path = f"/v2/integrations/{integration['id']}"
    found = (await client.get(f"{path}/repositories")).json()
    assert len(found) == 61
    assert found[0]["url"] == f"{github.url}/team/agent"
    branches = (await client.get(f"{path}/branches", params={"repository": "team/agent"})).json()
    assert [each["name"] for each in branches] == ["main"]
    assert len(github.app.tokens) == 1
    listed = (await client.get("/v1/integrations/github/install")).json()
    assert listed == [{"id": integration["id"], "installation_id": 77, "name": "the app"}]


async def test_the_private_key_and_the_tokens_are_in_no_answer_and_the_key_is_stored_sealed(control, client, github):
    integration = await made(client, github)
    path = f"/v2/integrations/{integration['id']}"
    answers = [await client.get(each) for each in ("/v2/integrations", path, f"{path}/repositories")]
    for secret in ("PRIVATE KEY", *github.app.tokens):
        assert all(secret not in answer.text for answer in answers)
    row = await control.rows.postgres.fetch_one(
        "SELECT i::text AS shown, sealed_token FROM integrations i WHERE id = %s", (integration["id"],)
    )
    assert PEM.encode() not in bytes(row["sealed_token"])
    assert "PRIVATE KEY" not in row["shown"]


async def test_a_private_repository_is_cloned_by_the_app_and_not_once_it_is_suspended(
    control, client, github, tmp_path, monkeypatch
):
    integration = await made(client, github)
    config = {"repo_url": f"{github.url}/team/agent", "integration_id": integration["id"]}
    workspace_id = UUID(control.workspace_id)
    credential = await control.room.integrations.credential(workspace_id, config)
    sha = await fetch_commit(config["repo_url"], "main", tmp_path / "out", LOCAL, credential=credential)
    assert sha == git(github.root / "team" / "agent", "rev-parse", "HEAD")
    monkeypatch.setattr(github_apps, "_KEPT_S", 0)
    assert await control.room.integrations.credential(workspace_id, config) != credential, "a token of its own"
    github.app.suspended = True
    answer = await client.get(f"/v2/integrations/{integration['id']}/repositories")
    assert answer.status_code == 400
    assert "refuses the app" in answer.text
    github.app.tokens.clear()
    with pytest.raises(FetchError):
        await fetch_commit(config["repo_url"], "main", tmp_path / "later", LOCAL, credential=credential)


async def test_the_commit_of_a_revision_is_told_by_the_app(control, client, github):
    integration = await made(client, github)
    config = {"repo_url": "https://github.example.com/team/agent", "integration_id": integration["id"]}
    answer = await client.post("/v2/deployments", json=from_git(source_config=config))
    assert answer.status_code == 400, "of another forge; no token is asked for"
    assert github.app.tokens == []
    status = CommitStatus(SHA, "success", "https://moorage.example.com/d/a", "The commit serves", "moorage/a")
    workspace_id, integration_id = UUID(control.workspace_id), UUID(integration["id"])
    await control.room.integrations.tell_status(workspace_id, integration_id, f"{github.url}/team/agent", status)
    assert github.statuses[0][0] == f"/repos/team/agent/statuses/{SHA}"


async def test_an_app_that_the_forge_does_not_know_is_named(client, github):
    stranger = RSAKey.generate_key(2048, private=True).as_pem(private=True).decode()
    for number, wrong in enumerate(({"app_id": "1"}, {"installation_id": 78}, {"private_key": stranger})):
        other = {**body(github, **wrong), "name": f"wrong {number}"}
        integration = (await client.post("/v2/integrations", json=other)).json()
        answer = await client.get(f"/v2/integrations/{integration['id']}/repositories")
        assert answer.status_code == 400, wrong
        assert "refuses the app" in answer.text


async def test_what_is_no_app_is_refused_without_repeating_the_key(client, github):
    public = KEY.as_pem(private=False).decode()
    curve = ECKey.generate_key("P-256", private=True).as_pem(private=True).decode()
    for wrong in (
        body(github, private_key="hush"),
        body(github, private_key=public),
        body(github, private_key=curve),
        body(github, private_key=RSAKey.generate_key(3072, private=True).as_pem(private=True).decode()),
        body(github, installation_id=0),
        body(github, installation_id=2**63),
        body(github, app_id="hush hush"),
        body(github, unknown="hush"),
        {**body(github), "token": "hush"},
        {**body(github), "kind": "gitlab"},
        {**body(github), "app": None},
    ):
        answer = await client.post("/v2/integrations", json=wrong)
        assert answer.status_code == 422, wrong
        assert "hush" not in answer.text
        assert "KEY" not in answer.text
    assert (await client.get("/v2/integrations")).json() == []


async def test_an_app_id_may_be_a_number(client, github):
    github.app.app_id = "12345"
    integration = await made(client, github, app_id=12345)
    assert integration["app_id"] == "12345"
    assert (await client.get(f"/v2/integrations/{integration['id']}/repositories")).status_code == 200


async def test_deployments_of_an_app_are_made_without_asking_the_forge(client, github):
    integration = (
        await client.post("/v2/integrations", json={**body(github), "base_url": "https://github.example.com"})
    ).json()
    config = {"repo_url": "https://github.example.com/team/agent", "integration_id": integration["id"]}
    deployment = await created(client, from_git(source_config=config))
    assert deployment["source_config"]["integration_id"] == integration["id"]
    assert github.app.tokens == []
