"""Webhooks of forges: `POST /v2/integrations/{id}/pushes`."""

from __future__ import annotations

import hmac
import json
from uuid import uuid4

import pytest

from tests.control.houses import created, from_git

pytest_plugins = "tests.control.fixtures"

URL = "https://git.example.com/Team/agent"


def push_of(kind):
    """Return a push in the form of the forge's documentation, as far as it is read."""
    if kind == "gitlab":
        told = {"object_kind": "push", "project": {"id": 15, "web_url": URL, "git_http_url": f"{URL}.git"}}
    else:
        told = {"ref": "refs/heads/main", "repository": {"id": 1, "html_url": URL, "clone_url": f"{URL}.git"}}
    return json.dumps(told).encode()


def signed(kind, secret, body):
    digest = hmac.digest(secret.encode(), body, "sha256").hex()
    if kind == "github":
        return {"X-GitHub-Event": "push", "X-GitHub-Delivery": "1", "X-Hub-Signature-256": f"sha256={digest}"}
    if kind == "gitlab":
        return {"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": secret}
    return {"X-Gitea-Event": "push", "X-Gitea-Delivery": "1", "X-Gitea-Signature": digest}


@pytest.fixture(params=["github", "gitlab", "gitea"])
async def integration(request, client):
    body = {"kind": request.param, "name": "ours", "token": "t", "base_url": "https://git.example.com"}
    return (await client.post("/v2/integrations", json=body)).json()


@pytest.fixture
async def deployment(control, client, integration):
    config = {"repo_url": f"{URL.lower()}.git", "build_on_push": True, "integration_id": integration["id"]}
    return await created(client, from_git(source_config=config))


@pytest.fixture
def looked_at(control, deployment):
    async def read(*, set_now=False):
        if set_now:
            sql = "UPDATE deployments SET pushes_looked_at = now() WHERE id = %s"
            await control.rows.postgres.execute(sql, (deployment["id"],))
        sql = "SELECT pushes_looked_at AS at FROM deployments WHERE id = %s"
        return (await control.rows.postgres.fetch_one(sql, (deployment["id"],)))["at"]

    return read


async def send(control, integration, headers, body):
    path = integration["webhook_url"].removeprefix(control.room.integrations._public_url)
    async with control.client("no-key") as forge:
        return await forge.post(path, content=body, headers=headers)


async def test_a_signed_push_makes_the_branch_due_and_wakes_whoever_looks(control, integration, looked_at):
    kind, secret = integration["kind"], integration["webhook_secret"]
    for _ in range(2):  # a replay asks the repository again, and no more
        await looked_at(set_now=True)
        control.wakes.clear()
        body = push_of(kind)
        answer = await send(control, integration, signed(kind, secret, body), body)
        assert (answer.status_code, answer.json()) == (200, {"deployments": 1})
        assert await looked_at() is None
        assert control.wakes


async def test_pushes_to_other_repositories_and_other_events_do_nothing(control, client, integration, looked_at):
    kind, secret = integration["kind"], integration["webhook_secret"]
    seen = await looked_at(set_now=True)
    other = push_of(kind).replace(b"Team/agent", b"Team/other")
    answer = await send(control, integration, signed(kind, secret, other), other)
    assert answer.json() == {"deployments": 0}
    body = push_of(kind)
    ping = {name: "ping" if name.endswith("Event") else value for name, value in signed(kind, secret, body).items()}
    assert (await send(control, integration, ping, body)).json() == {"deployments": 0}
    broken = await send(control, integration, signed(kind, secret, b"payload=1"), b"payload=1")
    assert broken.status_code == 400
    assert await looked_at() == seen


async def test_unsigned_and_forged_pushes_are_refused_as_those_of_an_integration_that_is_not_there(
    control, integration, looked_at
):
    kind, secret = integration["kind"], integration["webhook_secret"]
    seen = await looked_at(set_now=True)
    body = push_of(kind)
    good = signed(kind, secret, body)
    nowhere = {**integration, "webhook_url": integration["webhook_url"].replace(integration["id"], str(uuid4()))}
    expected = await send(control, nowhere, good, body)
    assert expected.status_code == 401
    unsigned = {name: value for name, value in good.items() if "ignature" not in name and "Token" not in name}
    forged = [signed(kind, "another", body), signed(kind, "", body), unsigned]
    # The header of another forge is not accepted.
    forged += [signed(other, secret, body) for other in {"github", "gitea"} - {kind}]
    for headers in forged:
        answer = await send(control, integration, headers, body)
        assert (answer.status_code, answer.text) == (expected.status_code, expected.text)
    if kind != "gitlab":
        assert (await send(control, integration, good, body + b" ")).status_code == 401
    assert await looked_at() == seen


async def test_a_webhook_is_bounded(control, integration):
    body = b" " * (5 * 2**20 + 1)
    answer = await send(control, integration, signed(integration["kind"], "x", b""), body)
    assert answer.status_code == 413
