"""The contract of a bus. Every implementation is a parameter of the fixture `bus`; no test depends on one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from moorage.kernel import bus as buses
from moorage.kernel.bus import Bus, Follower, LocalBus
from moorage.kernel.shared_bus import SharedBus

SOON_S = 5.0
BRIEF_S = 0.05


class Silence:
    """A broadcast of a process that is alone."""

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> AsyncIterator[bytes]:
        yield b""
        await asyncio.Event().wait()


@pytest.fixture(params=["local", "shared"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "local":
        yield LocalBus()
        return
    shared = SharedBus(Silence(), "this process")
    await shared.start()
    yield shared
    await shared.stop()


async def read_some(follower: Follower, number: int) -> list[bytes]:
    """Return the next messages, at least this many: an implementation may deliver them in any number of portions."""
    messages: list[bytes] = []
    while len(messages) < number:
        portion = await follower.read(SOON_S)
        assert portion, f"only {messages} came"
        messages += portion
    return messages


async def test_messages_come_in_the_order_in_which_they_were_published(bus: Bus):
    sent = [b"%d" % number for number in range(1000)]
    with bus.follow("t") as follower:
        for message in sent:
            bus.publish("t", message)
        assert await read_some(follower, 1000) == sent


async def test_every_follower_of_a_topic_gets_every_message(bus: Bus):
    with bus.follow("t") as one, bus.follow("t") as two, bus.follow("t") as three:
        bus.publish("t", b"a")
        bus.publish("t", b"b")
        for follower in (one, two, three):
            assert await read_some(follower, 2) == [b"a", b"b"]


async def test_topics_do_not_mix(bus: Bus):
    with bus.follow("t") as follower, bus.follow("other") as other:
        bus.publish("t", b"a")
        bus.publish("other", b"b")
        assert await read_some(follower, 1) == [b"a"]
        assert await read_some(other, 1) == [b"b"]


async def test_who_follows_late_gets_later_messages_only(bus: Bus):
    with bus.follow("t") as early:
        bus.publish("t", b"before")
        assert await read_some(early, 1) == [b"before"]
        with bus.follow("t") as late:
            bus.publish("t", b"after")
            assert await read_some(late, 1) == [b"after"]
            assert await read_some(early, 1) == [b"after"]


async def test_a_message_that_nobody_follows_is_dropped(bus: Bus):
    bus.publish("t", b"unheard")
    with bus.follow("t") as follower:
        assert await follower.read(BRIEF_S) == []


async def test_a_waiting_reader_wakes_for_the_first_message(bus: Bus):
    with bus.follow("t") as follower:
        reading = asyncio.create_task(follower.read(SOON_S))
        await asyncio.sleep(BRIEF_S)
        assert not reading.done()
        bus.publish("t", b"a")
        assert await reading == [b"a"]


async def test_closing_a_topic_ends_a_read_that_waits(bus: Bus):
    with bus.follow("t") as follower:
        reading = asyncio.create_task(follower.read())
        await asyncio.sleep(BRIEF_S)
        bus.close_topic("t")
        async with asyncio.timeout(SOON_S):
            assert await reading == []
        assert follower.closed


async def test_what_was_published_before_the_close_is_still_read(bus: Bus):
    with bus.follow("t") as follower:
        bus.publish("t", b"last")
        bus.close_topic("t")
        assert await read_some(follower, 1) == [b"last"]
        assert await follower.read() == []
        assert follower.closed
        assert not follower.overrun


async def test_closing_a_topic_does_not_concern_later_followers(bus: Bus):
    bus.close_topic("t")
    with bus.follow("t") as follower:
        bus.publish("t", b"a")
        assert await read_some(follower, 1) == [b"a"]


async def test_a_read_that_gets_nothing_in_time_gives_nothing(bus: Bus):
    with bus.follow("t") as follower:
        started = time.monotonic()
        assert await follower.read(BRIEF_S) == []
        assert BRIEF_S * 0.9 <= time.monotonic() - started < SOON_S
        assert not follower.closed


async def test_a_timeout_of_zero_does_not_wait(bus: Bus):
    with bus.follow("t") as follower:
        async with asyncio.timeout(1):
            assert await follower.read(0) == []


async def test_a_cancelled_read_loses_no_message(bus: Bus):
    with bus.follow("t") as follower:
        reading = asyncio.create_task(follower.read(SOON_S))
        await asyncio.sleep(BRIEF_S)
        bus.publish("t", b"a")
        reading.cancel()
        await asyncio.wait([reading])
        got = [] if reading.cancelled() else reading.result()
        assert got or await read_some(follower, 1) == [b"a"]


async def test_a_reader_that_falls_too_far_behind_is_cut_off_alone(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buses, "BACKLOG_BYTES_MAX", 1000)
    message = b"x" * 100
    with bus.follow("t") as slow, bus.follow("t") as quick:
        for _ in range(20):
            bus.publish("t", message)
            assert await read_some(quick, 1) == [message]
        while not slow.closed:  # noqa: ASYNC110 - an implementation may take a while to notice
            await asyncio.sleep(BRIEF_S)
        assert slow.overrun
        assert await slow.read() == []
        assert not quick.overrun
        assert not quick.closed


async def test_a_backlog_up_to_the_limit_is_kept(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buses, "BACKLOG_BYTES_MAX", 1000)
    with bus.follow("t") as follower:
        for _ in range(3):  # messages that were read do not count
            for _ in range(10):
                bus.publish("t", b"x" * 100)
            assert len(await read_some(follower, 10)) == 10
        assert not follower.overrun


async def test_a_topic_has_followers_as_long_as_somebody_follows(bus: Bus):
    assert not bus.has_followers("t")
    with bus.follow("t"):
        with bus.follow("t"):
            assert bus.has_followers("t")
        assert bus.has_followers("t")
        assert not bus.has_followers("other")
    assert not bus.has_followers("t")


async def test_a_follower_that_fails_is_forgotten(bus: Bus):
    with pytest.raises(ValueError, match="boom"), bus.follow("t"):
        raise ValueError("boom")
    assert not bus.has_followers("t")


async def test_a_reader_may_leave_while_others_stay(bus: Bus):
    with bus.follow("t") as staying:
        with bus.follow("t") as leaving:
            bus.publish("t", b"a")
        bus.publish("t", b"b")
        assert await read_some(staying, 2) == [b"a", b"b"]
        assert b"b" not in await leaving.read(BRIEF_S)


def test_the_local_bus_keeps_nothing_of_topics_that_are_over():
    bus = LocalBus()
    for number in range(1000):
        topic = f"run:{number}"
        bus.publish(topic, b"nobody listens")
        bus.has_followers(topic)
        with bus.follow(topic):
            bus.publish(topic, b"somebody listens")
        bus.publish(topic, b"nobody listens any more")
        bus.close_topic(topic)
    assert not bus._followers
