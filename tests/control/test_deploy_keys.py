"""Repositories over SSH: fetched with a deploy key that git never holds, from a server whose key is pinned."""

from __future__ import annotations

import asyncio
import os
from ipaddress import ip_address
from pathlib import Path

import asyncssh
import pytest

from moorage.control.checkouts import FetchError, GitPolicy, RunsAs, fetch_commit, newest_commit
from moorage.control.deploy_keys import DeployKey, make_key_pair, read_host_keys
from moorage.control.isolation import find_isolation
from moorage.control.records.integrations import SEALED_FORGE_TOKEN
from moorage.embedded import processes
from moorage.kernel.errors import InvalidRequestError
from tests.accounts.houses import MASTER_KEYS
from tests.control.houses import created, from_git
from tests.control.repositories import commit, git, make_repository
from tests.control.ssh_server import ssh_server
from tests.platform.serving import make_folder

pytest_plugins = "tests.control.fixtures"
LOCAL = GitPolicy(("ssh",), private_addresses=True)


async def resolve(host):
    """Resolve every name to this machine."""
    return [ip_address("127.0.0.1")]


NAMED = GitPolicy(("ssh",), private_addresses=True, resolve=resolve)


@pytest.fixture
def root():
    with make_folder() as folder:
        make_repository(folder / "served" / "team" / "agent", {"langgraph.json": "{}", "large": "x" * 3_000_000})
        yield folder


@pytest.fixture
def server(root):
    (root / "server").mkdir()
    with ssh_server(root / "server") as serving:
        yield serving


@pytest.fixture
def key(server):
    private, public = make_key_pair("test")
    server.authorize(public)
    return DeployKey(server.url, private, [server.host_key])


@pytest.fixture
def url(server, root):
    return f"{server.url}{root}/served/team/agent"


async def made(client, server, **changes):
    body = {"kind": "ssh", "name": "ours", "base_url": server.url, "host_keys": [f"127.0.0.1 {server.host_key}"]}
    answer = await client.post("/v2/integrations", json=body | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_commit_is_fetched_and_the_newest_is_told(server, key, root, url):
    repository = root / "served" / "team" / "agent"
    first = git(repository, "rev-parse", "HEAD")
    assert await fetch_commit(url, "main", root / "out", LOCAL, credential=key) == first
    assert (root / "out" / "large").stat().st_size == 3_000_000
    newest = commit(repository, {"more": ""})
    (root / "asking").mkdir()
    assert await newest_commit(url, "main", root / "asking", LOCAL, credential=key) == newest
    assert await newest_commit(url, "none", root / "asking", LOCAL, credential=key) is None
    git(repository, "tag", "v1", first)
    assert await fetch_commit(url, "v1", root / "tag", LOCAL, credential=key) == first


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_git_runs_without_rights_in_its_sandbox_and_never_sees_the_key(server, key, root, url):
    isolation, seen = find_isolation(), []

    def wrapped(argv, writable, readable):
        seen.append(argv)
        return isolation.wrapped(argv, writable, readable)

    user = RunsAs(processes.ENGINE_UID, wrapped)
    await fetch_commit(url, "main", root / "out", LOCAL, runs_as=user, credential=key)
    assert (root / "out" / "langgraph.json").read_text() == "{}"
    assert key.private_key.split()[5] not in str(seen)
    assert key.private_key.split()[5] not in repr(key)


async def test_another_server_at_the_address_is_not_talked_to(server, key, root, url):
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    pinned = DeployKey(key.base_url, key.private_key, [stranger.strip()])
    with pytest.raises(FetchError, match="none of the pinned host keys"):
        await fetch_commit(url, "main", root / "out", LOCAL, credential=pinned)
    assert "Accepted" not in server.log
    assert not (root / "out").exists()


@pytest.mark.parametrize(
    "path",
    ["/team/none", "/$(touch%20/tmp/from-a-path)", "/a';touch%20'/tmp/from-a-path", "/-oProxyCommand=x", "/~nobody/x"],
)
async def test_a_repository_that_is_not_there_is_told_in_the_servers_words(server, key, root, path):
    with pytest.raises(FetchError, match=r"not appear to be a git repository|Permission denied|no user|expand user"):
        await fetch_commit(f"{server.url}{path}", "main", root / "out", LOCAL, credential=key)
    assert not _was_made()


def _was_made() -> bool:
    """Return True if a shell of the server has made the file."""
    return Path("/tmp/from-a-path").exists()


async def test_a_key_that_is_not_taken_a_server_that_is_away_and_one_that_is_silent_are_told(
    server, key, root, url, monkeypatch
):
    server.authorize()
    with pytest.raises(FetchError, match="does not take the deploy key"):
        await fetch_commit(url, "main", root / "out", LOCAL, credential=key)
    monkeypatch.setattr("moorage.control.deploy_keys._CONNECT_S", 0.5)

    async def hold(reader, writer):
        while await reader.read(1000):
            pass
        writer.close()

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    for elsewhere in ("ssh://git@127.0.0.1:1/a", f"ssh://git@127.0.0.1:{port}/a"):
        with pytest.raises(FetchError, match="cannot be asked over SSH"):
            await fetch_commit(elsewhere, "main", root / "out", LOCAL, credential=key)
    silent.close()


async def test_a_private_address_is_refused_and_a_name_leads_where_it_was_checked(server, key, root, url):
    with pytest.raises(InvalidRequestError, match="loopback"):
        await fetch_commit(url, "main", root / "out", GitPolicy(("ssh",)), credential=key)

    url = url.replace("127.0.0.1", "no-such-name.invalid")
    await fetch_commit(url, "main", root / "out", NAMED, credential=key)
    with pytest.raises(FetchError, match="needs an integration of the kind ssh"):
        await fetch_commit(url, "main", root / "without", NAMED)


async def test_an_integration_makes_a_key_and_its_deployments_fetch_with_it(client, control, server, root, url):
    base_url, url = (each.replace("127.0.0.1", "git.test") for each in (server.url, url))
    integration = await made(client, server, base_url=base_url)
    assert integration["host_keys"] == [" ".join(server.host_key.split()[:2])]
    assert integration["public_key"].startswith("ssh-ed25519 ")
    assert (integration["webhook_url"], integration["webhook_secret"]) == (None, None)
    server.authorize(integration["public_key"])
    config = from_git()["source_config"] | {
        "repo_url": url,
        "integration_id": integration["id"],
    }
    await created(client, from_git(source_config=config))
    opened = await control.room.integrations.credential(control.workspace["id"], config)
    await fetch_commit(config["repo_url"], "main", root / "out", NAMED, credential=opened)
    assert (
        await control.room.integrations.credential(control.workspace["id"], config | {"repo_url": "ssh://x/a"}) is None
    )
    sealed = await control.rows.postgres.fetch_one(
        "SELECT id, sealed_token FROM integrations WHERE id = %s", (integration["id"],)
    )
    private = MASTER_KEYS.open(bytes(sealed["sealed_token"]), SEALED_FORGE_TOKEN.place(sealed["id"])).decode()
    assert "OPENSSH PRIVATE KEY" in private
    told = await client.get(f"/v2/integrations/{integration['id']}")
    assert "PRIVATE" not in told.text + str(integration)
    for path in ("repositories", "branches?repository=team/agent"):
        answer = await client.get(f"/v2/integrations/{integration['id']}/{path}")
        assert (answer.status_code, "no forge" in answer.json()["detail"]) == (400, True)
    pushed = await client.post(f"/v2/integrations/{integration['id']}/pushes", json={})
    assert pushed.status_code == 401


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"host_keys": None}, "host_keys is missing"),
        ({"host_keys": []}, "host_keys is missing"),
        ({"host_keys": ["ssh-ed25519 AAAA"]}, "ssh-keyscan"),
        ({"host_keys": ["ssh-ed25519 " + "A" * 68]}, "cannot be read"),
        ({"host_keys": ["h ssh-dss " + "A" * 68]}, "ssh-keyscan"),
        ({"token": "t"}, "takes no token"),
        ({"base_url": None}, "base_url is missing"),
        ({"base_url": "https://git.example.com"}, "begin with ssh"),
        ({"base_url": "ssh://git:secret@git.example.com"}, "password"),
        ({"kind": "gitea", "host_keys": None, "token": "t"}, "begin with https"),
        ({"kind": "gitea", "base_url": "https://git.example.com"}, "token is missing"),
    ],
)
async def test_an_integration_that_could_not_work_is_refused(client, server, change, told):
    body = {"kind": "ssh", "name": "ours", "base_url": server.url, "host_keys": [server.host_key]} | change
    answer = await client.post("/v2/integrations", json=body)
    assert (answer.status_code, told in answer.text) == (422, True), answer.text
    assert (await client.get("/v2/integrations")).json() == []


async def test_a_deployment_over_ssh_needs_an_integration(client):
    config = from_git()["source_config"] | {"repo_url": "ssh://git@git.example.com/team/agent"}
    answer = await client.post("/v2/deployments", json=from_git(source_config=config))
    assert (answer.status_code, "needs an integration" in answer.text) == (400, True), answer.text


def test_host_keys_are_read_as_ssh_keyscan_tells_them():
    public = make_key_pair("x")[1].rsplit(" ", 1)[0]
    lines = ["# git.example.com:22 SSH-2.0-OpenSSH", f"[git.example.com]:2222 {public}", "", public]
    assert read_host_keys(lines) == [public, public]
