"""API keys over HTTP: created, shown once, used, expired and revoked; and secrets that are never shown."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from moorage.accounts.records import short_key_of
from moorage.kernel.access import Plan, Scope
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError
from tests.accounts.houses import REMEMBER_S, House, make_house

pytest_plugins = "tests.accounts.fixtures"

FORM = re.compile(r"lsv2_pt_[0-9a-f]{32}_[0-9a-f]{10}")


async def admit(house: House, key: str | None, scope: Scope = Scope.RUNS_READ, tenant_id: str | None = None):
    return await house.access.admit(api_key=key, bearer=None, tenant_id=tenant_id, scope=scope)


async def test_a_key_is_shown_once_and_opens_its_workspace(house):
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        made = await http.post("/api-key", json={"description": "CI", "scopes": ["runs:write"]})
        listed = (await http.get("/api-key")).json()
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    key = made.json().pop("key")
    assert FORM.fullmatch(key)
    [row] = [row for row in listed if row["id"] == made.json()["id"]]
    assert row["description"] == "CI"
    assert row["scopes"] == ["runs:write"]
    assert row["short_key"] == f"{key[:8]}...{key[-4:]}"
    assert "key" not in row
    caller = await admit(house, key, Scope.RUNS_WRITE)
    assert (caller.workspace_id, caller.plan, caller.actor) == (workspace["id"], Plan.ENTERPRISE, f"key:{row['id']}")
    with pytest.raises(ForbiddenError, match="runs:read"):
        await admit(house, key, Scope.RUNS_READ)


def test_only_the_end_of_a_key_that_somebody_chose_is_shown():
    assert short_key_of("correct-horse-battery") == "...tery"


async def test_the_database_does_not_hold_the_key(house, platform_postgres):
    workspace = await house.make_workspace()
    rows = await platform_postgres.fetch("SELECT k::text AS k FROM api_keys k")
    middle = workspace["api_key"][8:-4]
    assert not [row for row in rows if middle in row["k"]]


BY_NAME = frozenset({Scope.SECRETS_READ, Scope.OPERATOR})


async def test_the_key_of_a_new_workspace_holds_all_scopes_but_those_that_are_asked_for_by_name(house):
    workspace = await house.make_workspace()
    caller = await admit(house, workspace["api_key"])
    assert caller.scopes == frozenset(Scope) - BY_NAME


@pytest.mark.parametrize("scope", sorted(BY_NAME))
async def test_some_scopes_are_had_by_name_only(house, scope):
    async with house.client(await house.make_operator()) as http:
        default = (await http.post("/api-key", json={})).json()
        named = (await http.post("/api-key", json={"scopes": [scope]})).json()
    assert {*default["scopes"]} == {*Scope} - BY_NAME
    assert named["scopes"] == [scope]


@pytest.mark.parametrize("scope", sorted(BY_NAME))
async def test_an_ordinary_key_makes_neither_an_operators_key_nor_one_with_more_than_it_holds(house, scope):
    """Holds even for the first key of a workspace, which has all default rights."""
    async with house.client((await house.make_workspace())["api_key"]) as http:
        key = await http.post("/api-key", json={"scopes": [scope]})
        token = await http.post("/auth/token", json={"scopes": [scope]})
    assert (key.status_code, token.status_code) == (403, 403)
    assert scope in key.json()["detail"]


async def test_an_operator_makes_keys_of_any_workspace_and_others_only_of_their_own(house):
    mine, other = await house.make_workspace(), await house.make_workspace()
    wanted = {"workspace_id": str(other["id"]), "scopes": ["secrets:read"]}
    async with house.client(await house.make_operator()) as http:
        made = (await http.post("/api-key", json=wanted)).json()
        nowhere = await http.post("/api-key", json=wanted | {"workspace_id": str(uuid4())})
    async with house.client(mine["api_key"]) as http:
        refused = await http.post("/api-key", json={"workspace_id": str(other["id"])})
        own = await http.post("/api-key", json={"workspace_id": str(mine["id"])})
    assert (await admit(house, made["key"], Scope.SECRETS_READ)).workspace_id == other["id"]
    assert (nowhere.status_code, refused.status_code, own.status_code) == (404, 403, 200)


async def test_a_right_on_all_agents_may_be_given_on_one_and_never_the_other_way(house):
    workspace = await house.make_workspace()
    one = await house.make_key(workspace, Scope.KEYS_MANAGE, Scope.WORKSPACES_READ, "agents:invoke:bot")
    async with house.client(workspace["api_key"]) as http:
        narrower = await http.post("/api-key", json={"scopes": ["agents:invoke:bot"]})
    async with house.client(one) as http:
        same = await http.post("/api-key", json={"scopes": ["agents:invoke:bot"]})
        refused = [
            await http.post(path, json={"scopes": [scope]})
            for scope in ("agents:invoke", "agents:invoke:other", "agents:read:bot")
            for path in ("/api-key", "/auth/token")
        ]
        token = (await http.post("/auth/token", json={"scopes": ["agents:invoke:bot"]})).json()["access_token"]
    assert (narrower.status_code, same.status_code) == (200, 200)
    assert [answer.status_code for answer in refused] == [403] * 6
    async with house.client(token) as http:
        assert (await http.get("/auth")).json()["scopes"] == ["agents:invoke:bot"]


async def test_reading_one_agent_only_reads_and_calling_one_named_read_does_not(house):
    async with house.client((await house.make_workspace())["api_key"]) as http:
        made = {
            scope: (await http.post("/api-key", json={"scopes": [scope]})).json()["read_only"]
            for scope in ("agents:read", "agents:read:bot", "agents:invoke", "agents:invoke:read")
        }
    assert made == {"agents:read": True, "agents:read:bot": True, "agents:invoke": False, "agents:invoke:read": False}


async def test_nobody_makes_a_key_that_may_do_more_than_they(house):
    workspace = await house.make_workspace()
    limited = await house.make_key(workspace, Scope.KEYS_MANAGE, Scope.RUNS_READ)
    async with house.client(limited) as http:
        more = await http.post("/api-key", json={"scopes": ["runs:read", "runs:write"]})
        secrets = await http.post("/api-key", json={"scopes": ["secrets:read"]})
        same = await http.post("/api-key", json={"read_only": True})
    assert (more.status_code, secrets.status_code) == (403, 403)
    assert "runs:write" in more.json()["detail"]
    assert (same.json()["scopes"], same.json()["read_only"]) == (["runs:read"], True)


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": ["runs:fly"]},
        {"scopes": ["runs:read:bot"]},
        {"scopes": ["agents:invoke:"]},
        {"scopes": ["agents:invoke:Bot\n"]},
        {"scopes": ["agents:read"] * 201},
        {"scopes": []},
        {"description": ""},
        {"description": "a\x1b[31m"},
        {"description": "a\x00"},
        {"expires_at": "yesterday"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2020-01-01T00:00:00"},
        [],
    ],
)
async def test_a_wrong_wish_for_a_key_is_refused(house, body):
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        assert (await http.post("/api-key", json=body)).status_code == 422


async def test_an_expired_key_says_so_even_while_its_admission_is_remembered(platform_postgres):
    house = make_house(platform_postgres, remember_s=60)
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        key = (await http.post("/api-key", json={"expires_at": soon})).json()["key"]
    await admit(house, key)
    await asyncio.sleep(1.02)
    with pytest.raises(UnauthenticatedError, match="expired"):
        await admit(house, key)


async def test_a_revoked_key_stops_to_work_within_the_time_that_admissions_are_remembered(house):
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        made = (await http.post("/api-key", json={})).json()
        await admit(house, made["key"])
        revoked = await http.delete(f"/api-key/{made['id']}")
        listed = (await http.get("/api-key")).json()
        again = await http.delete(f"/api-key/{made['id']}")
    assert (revoked.status_code, revoked.json()["id"], again.status_code) == (200, made["id"], 404)
    assert made["id"] not in {row["id"] for row in listed}
    await asyncio.sleep(REMEMBER_S)
    with pytest.raises(UnauthenticatedError, match="revoked"):
        await admit(house, made["key"])


async def test_a_key_is_not_another_workspaces_to_revoke(house):
    mine, other = await house.make_workspace(), await house.make_workspace()
    async with house.client(mine["api_key"]) as http:
        made = (await http.post("/api-key", json={})).json()
    async with house.client(other["api_key"]) as http:
        assert (await http.delete(f"/api-key/{made['id']}")).status_code == 404
        assert made["id"] not in {row["id"] for row in (await http.get("/api-key")).json()}
    await admit(house, made["key"])


async def test_use_is_noted_but_at_most_once_a_minute(house, platform_postgres):
    workspace = await house.make_workspace()

    async def last_used():
        row = await platform_postgres.fetch_one(
            "SELECT last_used_at FROM api_keys WHERE workspace_id = %s", (workspace["id"],)
        )
        return row["last_used_at"]

    assert await last_used() is None
    await admit(house, workspace["api_key"])
    first = await last_used()
    assert first
    await asyncio.sleep(REMEMBER_S)
    await admit(house, workspace["api_key"])
    assert await last_used() == first
    await platform_postgres.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '61 s'")
    await asyncio.sleep(REMEMBER_S)
    await admit(house, workspace["api_key"])
    assert await last_used() > first


async def test_a_workspace_without_a_plan_has_the_installations(platform_postgres):
    house = make_house(platform_postgres, plan=Plan.DEVELOPER)
    plain, paid = await house.make_workspace(), await house.make_workspace(plan=Plan.PLUS)
    assert (await admit(house, plain["api_key"])).plan is Plan.DEVELOPER
    assert (await admit(house, paid["api_key"])).plan is Plan.PLUS
