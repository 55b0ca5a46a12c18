"""Rate limits per key: a burst, then a rate; separate for each key, in bounded memory; over HTTP as 429."""

from __future__ import annotations

import pytest

from moorage.http import rate_limit
from moorage.http.rate_limit import RateLimit
from moorage.kernel.errors import TooManyRequestsError
from moorage.settings.platform import PlatformSettings
from tests.accounts.houses import House

pytest_plugins = "tests.accounts.fixtures"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(rate_limit.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def taken(limit: RateLimit, actor: str, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            limit.take(actor)
        except TooManyRequestsError:
            continue
        count += 1
    return count


def test_a_burst_is_taken_at_once_and_then_the_rate(clock: Clock) -> None:
    limit = RateLimit(per_s=10, burst=5)
    assert taken(limit, "key:a", 50) == 5
    clock.now += 0.3
    assert taken(limit, "key:a", 50) == 3
    clock.now += 3600
    assert taken(limit, "key:a", 50) == 5  # no more requests are saved up


def test_who_waits_as_told_is_taken(clock: Clock) -> None:
    limit = RateLimit(per_s=0.5, burst=1)
    limit.take("key:a")
    with pytest.raises(TooManyRequestsError, match=r"0\.5 requests a second") as refused:
        limit.take("key:a")
    assert refused.value.headers == {"Retry-After": "2"}
    clock.now += 2
    limit.take("key:a")


def test_a_key_takes_nothing_from_another_and_memory_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_KEYS_MAX", 100)
    limit = RateLimit(per_s=1, burst=3)
    for number in range(1000):
        assert taken(limit, f"key:{number}", 9) == 3
    assert len(limit._paid_until) == 100
    assert taken(limit, "key:999", 9) == 0


def test_the_defaults_leave_room_for_the_tracing_sdk() -> None:
    """5,000 runs a second are 50 requests of 100 runs. A client that sends each run alone gets 500 through."""
    settings = PlatformSettings()
    assert settings.rate_limit_per_s >= 10 * 5000 / 100
    assert settings.rate_limit_burst >= 10 * settings.rate_limit_per_s


async def test_over_http_it_is_429_with_when_to_come_again(house: House) -> None:
    house.app.state.rate_limit = RateLimit(per_s=0.1, burst=3)
    mine, other = await house.make_workspace(), await house.make_workspace()
    async with house.client(mine["api_key"]) as http:
        answers = [await http.get("/settings") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 10
    assert answers[-1].json()["error"] == "too_many_requests"
    async with house.client(other["api_key"]) as http:
        assert (await http.get("/settings")).status_code == 200
