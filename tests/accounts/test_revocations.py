"""The feed of revoked keys: complete over restarts and several processes, quick, and limited to the
caller's workspace.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from moorage.accounts import revocations
from moorage.kernel.access import Scope
from moorage.kernel.errors import InvalidRequestError, UnauthenticatedError, UnavailableError
from tests.accounts.houses import House, make_house
from tests.waiting import until

pytest_plugins = "tests.accounts.fixtures"


@asynccontextmanager
async def reading(house: House):
    feed = house.accounts.revocations
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()


async def revoke_one(house: House, workspace) -> UUID:
    key = await house.accounts.keys.insert(workspace["id"], "test", {Scope.RUNS_READ}, None, "test")
    assert await house.store.revoke_key(workspace["id"], key["id"], "test")
    return key["id"]


async def test_who_waits_is_told_at_once_and_each_revocation_once(house):
    workspace, other = await house.make_workspace(), await house.make_workspace()
    async with reading(house) as feed:
        start = await feed.page(workspace["id"], "", 0)
        waiting = [asyncio.create_task(feed.page(workspace["id"], start["cursor"], 20)) for _ in range(50)]
        elsewhere = asyncio.create_task(feed.page(other["id"], start["cursor"], 3))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        revoked = await revoke_one(house, workspace)
        pages = await asyncio.gather(*waiting)
        assert time.monotonic() - began < 2
        assert all(page["key_ids"] == [revoked] for page in pages)
        assert (await feed.page(workspace["id"], pages[0]["cursor"], 0))["key_ids"] == []
        assert (await elsewhere)["key_ids"] == []


async def test_nothing_is_left_out_over_a_restart_and_between_two_processes(platform_postgres):
    first, second = make_house(platform_postgres), make_house(platform_postgres)
    workspace = await first.make_workspace()
    async with reading(first) as feed:
        before = (await feed.page(workspace["id"], "", 0))["cursor"]
    while_away = await revoke_one(first, workspace)
    async with reading(second) as feed:
        page = await feed.page(workspace["id"], before, 20)
        assert page["key_ids"] == [while_away]
        later = await revoke_one(first, workspace)
        assert (await feed.page(workspace["id"], page["cursor"], 20))["key_ids"] == [later]


async def test_an_old_position_is_answered_from_the_database(house, monkeypatch):
    monkeypatch.setattr(revocations, "_REMEMBERED_MAX", 1)
    workspace = await house.make_workspace()
    async with reading(house) as feed:
        cursor = (await feed.page(workspace["id"], "", 0))["cursor"]
        known = feed._first + len(feed._told)
        revoked = [await revoke_one(house, workspace) for _ in range(3)]
        await until(lambda: feed._first + len(feed._told) >= known + 3)
        assert (await feed.page(workspace["id"], cursor, 0))["key_ids"] == revoked


async def test_silence_is_never_given_while_revocations_cannot_be_read(house, monkeypatch):
    workspace = await house.make_workspace()
    async with reading(house) as feed:
        cursor = (await feed.page(workspace["id"], "", 0))["cursor"]
        read = house.store.read_revoked

        async def away(*_):
            raise UnavailableError("away")

        monkeypatch.setattr(house.store, "read_revoked", away)
        monkeypatch.setattr(feed, "_good_until", 0.0)
        with pytest.raises(UnavailableError):
            await feed.page(workspace["id"], cursor, 0)
        revoked = await revoke_one(house, workspace)
        monkeypatch.setattr(house.store, "read_revoked", read)
        await until(lambda: feed._good_until)
        assert (await feed.page(workspace["id"], cursor, 20))["key_ids"] == [revoked]


async def test_a_stop_lets_go_of_who_waits(house):
    workspace = await house.make_workspace()
    async with reading(house) as feed:
        cursor = (await feed.page(workspace["id"], "", 0))["cursor"]
        waiting = asyncio.create_task(feed.page(workspace["id"], cursor, 25))
        await asyncio.sleep(0.1)
    assert (await asyncio.wait_for(waiting, 5))["key_ids"] == []


@pytest.mark.parametrize("cursor", ["x", "a:b:c", "a:1", "a:1:99999999999999999999", "a:1:-99999999999999"])
async def test_an_invented_cursor_is_refused(house, cursor):
    async with reading(house) as feed:
        with pytest.raises(InvalidRequestError):
            await feed.page((await house.make_workspace())["id"], cursor, 0)


async def test_the_platform_itself_forgets_a_revoked_key_sooner_than_it_would_ask_again(platform_postgres):
    """Holds also for an answer that was on its way while the key was revoked, and for a token made from the key."""
    house = make_house(platform_postgres, remember_s=600)
    workspace = await house.make_workspace()
    async with reading(house), house.client(workspace["api_key"]) as http:
        made = (await http.post("/api-key", json={})).json()
        async with house.client(made["key"]) as theirs:
            token = (await theirs.post("/auth/token", json={})).json()["access_token"]
        for credential in (made["key"], token):
            await house.access.admit(api_key=credential, bearer=None, tenant_id=None, scope=Scope.RUNS_READ)
        await http.delete(f"/api-key/{made['id']}")
        for credential in (made["key"], token):
            await until(lambda credential=credential: is_revoked(house, credential), bound_s=2)


async def is_revoked(house: House, credential: str) -> bool:
    try:
        await house.access.admit(api_key=credential, bearer=None, tenant_id=None, scope=None)
    except UnauthenticatedError as error:
        return "revoked" in str(error)
    return False


async def test_who_calls_is_told_until_when_the_credential_is_good(house):
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        key = (await http.post("/api-key", json={"expires_at": "2126-01-01T00:00:00Z", "scopes": ["runs:read"]})).json()
        assert (await http.get("/auth")).json()["expires_at"] is None
        token = (await http.post("/auth/token", json={"expires_in": 600})).json()["access_token"]
    async with house.client(key["key"]) as http:
        facts = (await http.get("/auth")).json()
    assert (facts["expires_at"], facts["scopes"]) == ("2126-01-01T00:00:00+00:00", ["runs:read"])
    assert facts["actor"] == f"key:{key['id']}"
    async with house.client(token) as http:
        assert (await http.get("/auth")).json()["expires_at"] is not None
