"""Who may use a deployed agent, against a platform that answers, refuses and goes away."""

from __future__ import annotations

import httpx
import pytest

from moorage.agents import access
from moorage.agents.access import PlatformAccess
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError, UnavailableError

WORKSPACE = "0b4c6b1e-0000-7000-8000-000000000001"


class Platform:
    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self.refuses = False
        self.access = PlatformAccess("http://platform", WORKSPACE, httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.is_away:
            raise httpx.ConnectError("away")
        key = request.headers["x-api-key"]
        if self.refuses or key == "unknown":
            return httpx.Response(401)
        workspace = "another" if key == "foreign" else WORKSPACE
        scopes = ["runs:read"] if key == "weak" else ["deployments:read"]
        return httpx.Response(200, json={"workspace_id": workspace, "scopes": scopes})


async def test_a_yes_is_remembered_and_outlives_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()
    for _ in range(3):
        await platform.access.admit("good", None)
    assert platform.asked == 1
    platform.is_away = True
    monkeypatch.setattr(access, "_FRESH_S", 0.0)
    await platform.access.admit("good", None)
    assert platform.asked == 2
    monkeypatch.setattr(access, "_LASTING_S", 0.0)
    with pytest.raises(UnavailableError):
        await platform.access.admit("good", None)


async def test_a_key_that_was_revoked_ends_when_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform()
    await platform.access.admit(None, "good")
    platform.refuses = True
    monkeypatch.setattr(access, "_FRESH_S", 0.0)
    with pytest.raises(UnauthenticatedError):
        await platform.access.admit(None, "good")
    platform.is_away = True
    with pytest.raises(UnauthenticatedError):
        await platform.access.admit(None, "good")


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (None, UnauthenticatedError),
        ("unknown", UnauthenticatedError),
        ("foreign", ForbiddenError),
        ("weak", ForbiddenError),
    ],
)
async def test_others_stay_outside(key: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        await Platform().access.admit(key, None)


async def test_an_unknown_key_waits_for_the_platform() -> None:
    platform = Platform()
    platform.is_away = True
    with pytest.raises(UnavailableError):
        await platform.access.admit("good", None)
