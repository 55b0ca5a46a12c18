"""Workspaces over HTTP, and the first one of an installation."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from moorage.accounts.records import new_api_key
from moorage.kernel.access import Plan, Scope
from moorage.kernel.errors import StartupError
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from tests.accounts.houses import make_house

pytest_plugins = "tests.accounts.fixtures"


async def test_settings_say_where_a_key_leads(house):
    workspace = await house.make_workspace("Ann's lab")
    async with house.client(workspace["api_key"]) as http:
        settings = (await http.get("/settings")).json()
    assert settings["id"] == str(workspace["id"])
    assert settings["display_name"] == "Ann's lab"
    assert settings["tenant_handle"] is None
    assert settings["created_at"].endswith("+00:00")


async def test_a_list_holds_what_the_key_opens_and_nothing_else(house):
    mine = await house.make_workspace()
    await house.make_workspace()
    read_only = await house.make_key(mine, Scope.WORKSPACES_READ, Scope.RUNS_READ)
    async with house.client(read_only) as http:
        [listed] = (await http.get("/workspaces")).json()
    assert listed["id"] == str(mine["id"])
    assert (listed["read_only"], listed["permissions"]) == (True, ["runs:read", "workspaces:read"])
    assert (listed["is_personal"], listed["is_deleted"], listed["plan"]) == (False, False, "enterprise")


async def test_a_new_workspace_comes_with_the_key_that_opens_it(house):
    wanted = str(uuid4())
    async with house.client(await house.make_operator()) as http:
        body = {"display_name": "Second", "id": wanted, "tenant_handle": f"h-{wanted}", "plan": "developer"}
        made = await http.post("/workspaces", json=body)
        again = await http.post("/workspaces", json=body)
        other = await http.post("/workspaces", json={"display_name": "Third", "tenant_handle": f"h-{wanted}"})
    assert made.headers["cache-control"] == "no-store"
    assert (made.json()["id"], made.json()["plan"]) == (wanted, "developer")
    assert (again.status_code, other.status_code) == (409, 409)
    async with house.client(made.json()["api_key"], X_Tenant_Id=wanted) as http:
        assert (await http.get("/settings")).json()["display_name"] == "Second"


async def test_a_patch_changes_what_it_names(house):
    mine, other = await house.make_workspace("Before"), await house.make_workspace()
    async with house.client(mine["api_key"]) as http:
        changed = (await http.patch(f"/workspaces/{mine['id']}", json={"display_name": "After", "plan": None})).json()
        foreign = await http.patch(f"/workspaces/{other['id']}", json={"display_name": "Mine now"})
        no_id = await http.patch("/workspaces/x", json={"display_name": "After"})
    assert (changed["display_name"], changed["plan"]) == ("After", "enterprise")
    assert (foreign.status_code, no_id.status_code) == (404, 422)


async def test_a_handle_is_unique_and_may_be_set_again(house):
    mine, other = await house.make_workspace(), await house.make_workspace()
    handle = f"lab-{uuid4().hex[:8]}"
    async with house.client(mine["api_key"]) as http:
        for _ in range(2):
            assert (await http.post("/settings/handle", json={"tenant_handle": handle})).json()[
                "tenant_handle"
            ] == handle
        assert (await http.post("/settings/handle", json={"tenant_handle": "Not A Handle"})).status_code == 422
    async with house.client(other["api_key"]) as http:
        taken = await http.post("/settings/handle", json={"tenant_handle": handle})
    assert (taken.status_code, handle in taken.text) == (409, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"display_name": " "},
        {"display_name": "x" * 200},
        {"display_name": "\x00"},
        {"display_name": "a", "plan": "?"},
    ],
)
async def test_a_wrong_workspace_is_refused(house, body):
    async with house.client(await house.make_operator()) as http:
        assert (await http.post("/workspaces", json=body)).status_code == 422


async def test_only_an_operator_makes_workspaces_and_changes_plans(house):
    mine = await house.make_workspace(plan=Plan.DEVELOPER)
    async with house.client(mine["api_key"]) as http:
        made = await http.post("/workspaces", json={"display_name": "Second"})
        plan = await http.patch(f"/workspaces/{mine['id']}", json={"display_name": "x", "plan": "enterprise"})
        [listed] = (await http.get("/workspaces")).json()
    assert (made.status_code, plan.status_code) == (403, 403)
    assert (listed["plan"], listed["display_name"]) == ("developer", "A workspace")
    async with house.client(await house.make_operator()) as http:
        changed = await http.patch(f"/workspaces/{mine['id']}", json={"plan": "enterprise"})
        nowhere = await http.patch(f"/workspaces/{uuid4()}", json={"plan": "enterprise"})
    assert (changed.json()["plan"], nowhere.status_code) == ("enterprise", 404)


class TestTheFirstStart:
    @pytest.fixture
    async def fresh(self, engine, platform_template):
        """Open pools on a database of this test alone."""
        conninfo, pools = engine.make_database(platform_template), []

        async def open_pool():
            pools.append(Postgres(conninfo, pool_max=4))
            await pools[-1].open()
            return pools[-1]

        yield open_pool
        for pool in pools:
            await pool.close()

    async def test_makes_a_workspace_and_a_key_and_shows_it_once(self, fresh):
        house = make_house(await fresh())
        first = await house.accounts.workspaces.ensure_first(None, None)
        caller = await house.access.admit(
            api_key=first.api_key, bearer=None, tenant_id=str(first.workspace_id), scope=Scope.WORKSPACES_MANAGE
        )
        assert caller.scopes == frozenset(Scope) - {Scope.SECRETS_READ}  # an operator's key
        assert first.api_key not in repr(first)
        again = await house.accounts.workspaces.ensure_first(None, None)
        assert (again.workspace_id, again.api_key) == (first.workspace_id, None)

    async def test_two_at_once_make_one(self, fresh):
        houses = [make_house(await fresh()) for _ in range(4)]
        made = await asyncio.gather(*(house.accounts.workspaces.ensure_first(None, None) for house in houses))
        assert len({first.workspace_id for first in made}) == 1
        assert len([first for first in made if first.api_key]) == 1

    async def test_what_the_environment_fixes_is_taken(self, fresh):
        house = make_house(await fresh())
        key, workspace_id = new_api_key(), uuid4()
        for _ in range(2):
            first = await house.accounts.workspaces.ensure_first(key, workspace_id)
            assert (first.workspace_id, first.api_key) == (workspace_id, None)
        caller = await house.access.admit(api_key=key, bearer=None, tenant_id=None, scope=Scope.RUNS_READ)
        assert caller.workspace_id == workspace_id

    async def test_a_key_that_was_lost_is_replaced_by_naming_one(self, fresh):
        house = make_house(await fresh())
        first = await house.accounts.workspaces.ensure_first(None, None)
        key = new_api_key()
        assert (await house.accounts.workspaces.ensure_first(key, None)).workspace_id == first.workspace_id
        caller = await house.access.admit(api_key=key, bearer=None, tenant_id=None, scope=Scope.RUNS_READ)
        assert caller.workspace_id == first.workspace_id

    async def test_a_recovered_key_is_an_operators_in_the_first_workspace_alone(self, fresh):
        house = make_house(await fresh())
        await house.accounts.workspaces.ensure_first(None, None)
        tenant = await house.make_workspace()
        for workspace_id, rules in ((None, True), (tenant["id"], False)):
            found = await house.accounts.workspaces.recover(workspace_id)
            caller = await house.access.admit(api_key=found.api_key, bearer=None, tenant_id=None, scope=None)
            assert (Scope.OPERATOR in caller.scopes) is rules

    async def test_a_revoked_key_does_not_come_back(self, fresh):
        house = make_house(await fresh())
        key = new_api_key()
        first = await house.accounts.workspaces.ensure_first(key, None)
        [row] = await house.store.read_keys(first.workspace_id, 10)
        await house.store.revoke_key(first.workspace_id, row["id"], "test")
        again = await house.accounts.workspaces.ensure_first(key, None)
        assert again.api_key is None
        assert await house.store.read_keys(first.workspace_id, 10) == []

    async def test_a_key_of_another_workspace_stops_the_start(self, fresh):
        house = make_house(await fresh())
        key = new_api_key()
        await house.accounts.workspaces.ensure_first(key, uuid4())
        with pytest.raises(StartupError, match="another workspace") as caught:
            await house.accounts.workspaces.ensure_first(key, uuid4())
        assert key not in str(caught.value)

    @pytest.mark.parametrize("key", ["short", "x" * 300, "with\nnewline and long", "ünicode and long enough"])
    async def test_a_key_that_cannot_be_sent_or_is_easily_guessed_stops_the_start(self, fresh, key):
        house = make_house(await fresh())
        with pytest.raises(StartupError, match="MOORAGE_BOOTSTRAP_API_KEY") as caught:
            await house.accounts.workspaces.ensure_first(key, None)
        assert key not in str(caught.value)


async def test_the_schema_may_be_applied_again(platform_postgres):
    assert await migrate(platform_postgres, "platform") == []
