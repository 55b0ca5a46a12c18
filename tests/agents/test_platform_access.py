"""Access to a deployed agent, with a platform that answers, refuses, revokes and goes away."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from moorage.agents import platform_access
from moorage.agents.platform_access import Deployed, PlatformAccess
from moorage.kernel.access import Scope
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from tests.waiting import until

WORKSPACE = "0b4c6b1e-0000-7000-8000-000000000001"
SCOPES = {
    "weak": ["deployments:read", "runs:read"],
    "reads": ["agents:read"],
    "calls": ["agents:invoke"],
    "reads-bot": ["agents:read:bot"],
    "calls-bot": ["agents:invoke:bot"],
    "calls-other": ["agents:invoke:other", "agents:read:other"],
}


class Platform:
    """A platform that answers `/auth` and `/auth/revocations`; the platform's own tests cover the real ones."""

    def __init__(self, offline_s: float = 900) -> None:
        self.asked = 0
        self.is_away = False
        self.has_feed = True
        self.refused: set[str] = set()
        self.revoked: list[str] = []
        self.expires_at: dict[str, datetime] = {}
        deployed = Deployed("http://platform", WORKSPACE, "bot", "own", offline_s)
        self.access = PlatformAccess(deployed, httpx.MockTransport(self.answer))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("away")
        if request.url.path == "/api/v1/auth/revocations":
            return await self.page(int(request.url.params["after"] or 0), float(request.url.params["wait_seconds"]))
        self.asked += 1
        key = request.headers["x-api-key"]
        if key in self.refused or key == "unknown":
            return httpx.Response(401)
        expires_at = self.expires_at.get(key)
        facts = {
            "workspace_id": "another" if key == "foreign" else WORKSPACE,
            "actor": f"key:{key}",
            "scopes": SCOPES.get(key, ["agents:read", "agents:invoke"]),
            "expires_at": expires_at.isoformat() if expires_at else None,
        }
        return httpx.Response(200, json=facts)

    async def page(self, after: int, wait_s: float) -> httpx.Response:
        if not self.has_feed:
            return httpx.Response(404)
        await asyncio.sleep(min(wait_s, 0.05))
        return httpx.Response(200, json={"key_ids": self.revoked[after:], "cursor": str(len(self.revoked))})

    def revoke(self, key: str) -> None:
        self.revoked.append(key)
        self.refused.add(key)

    async def admit(self, key: str | None, right: Scope = Scope.AGENTS_INVOKE) -> None:
        await self.access.admit(key, None, right)

    async def follows(self, *, works: bool = True) -> None:
        await until(lambda: self.access._feed_works is works)

    async def is_refused(self, key: str) -> bool:
        try:
            await self.admit(key)
        except UnauthenticatedError:
            return True
        return False


@pytest.fixture
async def platform():
    made = Platform()
    made.access.start()
    await made.follows()
    yield made
    await made.access.close()


async def test_a_yes_is_remembered(platform):
    for _ in range(3):
        await platform.admit("good")
    assert platform.asked == 1


async def test_a_revocation_is_in_force_within_two_seconds_without_a_question(platform):
    await platform.admit("good")
    await platform.admit("revoked")
    platform.revoke("revoked")
    await until(lambda: platform.is_refused("revoked"), bound_s=2)
    await platform.admit("good")
    assert platform.asked == 2


async def test_a_yes_that_was_on_its_way_while_the_key_was_revoked_does_not_count(platform):
    platform.revoked.append("revoked")  # the platform's answer is still a yes
    await until(lambda: platform.access._revoked)
    with pytest.raises(UnauthenticatedError):
        await platform.admit("revoked")


async def test_known_keys_outlive_the_platform_for_a_while_but_never_a_revoked_one(platform, monkeypatch):
    monkeypatch.setattr(platform_access, "_FRESH_S", 0.0)
    for key in ("good", "revoked"):
        await platform.admit(key)
    platform.revoke("revoked")
    await until(lambda: platform.access._revoked)
    platform.is_away = True
    await platform.follows(works=False)
    monkeypatch.setattr(platform_access, "_FRESH_WITHOUT_FEED_S", 0.0)
    for _ in range(3):
        await platform.admit("good")
    with pytest.raises(UnauthenticatedError):
        await platform.admit("revoked")
    with pytest.raises(UnavailableError):
        await platform.admit("new")


async def test_an_unreachable_platform_keeps_no_key_longer_than_the_setting(monkeypatch):
    monkeypatch.setattr(platform_access, "_FRESH_WITHOUT_FEED_S", 0.0)
    platform = Platform(offline_s=0.3)
    await platform.admit("good")
    platform.is_away = True
    await platform.admit("good")
    await asyncio.sleep(0.31)
    with pytest.raises(UnavailableError):
        await platform.admit("good")


async def test_the_platform_keeps_known_keys_for_15_minutes_by_default():
    assert Deployed("http://platform", WORKSPACE, "bot", "own").offline_s == 900


async def test_expiry_is_known_without_the_platform(platform):
    platform.expires_at["soon"] = datetime.now(UTC) + timedelta(seconds=1.5)
    await platform.admit("soon")
    platform.is_away = True
    await asyncio.sleep(1.51)
    with pytest.raises(UnauthenticatedError, match="expired"):
        await platform.admit("soon")


async def test_a_revocation_while_the_platform_restarts_is_told_when_it_is_back(platform):
    await platform.admit("revoked")
    platform.is_away = True
    await platform.follows(works=False)
    platform.revoke("revoked")
    platform.is_away = False
    await platform.follows()
    with pytest.raises(UnauthenticatedError):
        await platform.admit("revoked")


async def test_without_a_feed_a_revoked_key_is_asked_for_again_within_two_seconds(platform):
    platform.has_feed = False
    await platform.follows(works=False)
    await platform.admit("revoked")
    platform.refused.add("revoked")
    await until(lambda: platform.is_refused("revoked"), bound_s=2)


@pytest.mark.parametrize(
    ("key", "right", "error"),
    [
        (None, Scope.AGENTS_READ, UnauthenticatedError),
        ("unknown", Scope.AGENTS_READ, UnauthenticatedError),
        ("foreign", Scope.AGENTS_READ, ForbiddenError),
        ("weak", Scope.AGENTS_READ, ForbiddenError),
        ("weak", Scope.AGENTS_INVOKE, ForbiddenError),
        ("reads", Scope.AGENTS_INVOKE, ForbiddenError),
        ("calls", Scope.AGENTS_READ, ForbiddenError),
        ("reads-bot", Scope.AGENTS_INVOKE, ForbiddenError),
        ("calls-bot", Scope.AGENTS_READ, ForbiddenError),
        ("calls-other", Scope.AGENTS_INVOKE, ForbiddenError),
        ("calls-other", Scope.AGENTS_READ, ForbiddenError),
        ("x" * 9000, Scope.AGENTS_READ, UnauthenticatedError),
    ],
)
async def test_others_stay_outside(platform, key, right, error):
    with pytest.raises(error):
        await platform.admit(key, right)


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("reads", Scope.AGENTS_READ),
        ("calls", Scope.AGENTS_INVOKE),
        ("reads-bot", Scope.AGENTS_READ),
        ("calls-bot", Scope.AGENTS_INVOKE),
    ],
)
async def test_a_right_on_all_agents_or_on_this_one_opens(platform, key, right):
    await platform.admit(key, right)
    await platform.access.admit(None, key, right)
