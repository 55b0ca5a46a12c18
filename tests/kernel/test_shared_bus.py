"""Messages between processes: the same contract over PostgreSQL's NOTIFY and over Redis."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from redis.asyncio import Redis

from moorage.kernel.broadcast import PostgresBroadcast, RedisBroadcast
from moorage.kernel.bus import Follower
from moorage.kernel.postgres import Postgres
from moorage.kernel.shared_bus import SharedBus
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"

SOON_S = 10.0
BRIEF_S = 0.3


@pytest.fixture(scope="module")
def redis_uri() -> Iterator[str]:
    """Start a Redis, and return its address."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as probe, TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", folder]
        with (Path(folder) / "log").open("wb") as log, subprocess.Popen(command, stdout=log) as server:
            yield f"redis://127.0.0.1:{port}"
            server.terminate()


@pytest.fixture(params=["postgres", "redis"])
async def buses(
    request: pytest.FixtureRequest, agents_postgres: Postgres
) -> AsyncIterator[tuple[SharedBus, SharedBus]]:
    """Return the buses of two processes."""
    made: list[RedisBroadcast] = []

    def broadcast() -> PostgresBroadcast | RedisBroadcast:
        if request.param == "postgres":
            return PostgresBroadcast(agents_postgres)
        made.append(RedisBroadcast(request.getfixturevalue("redis_uri"), "test:"))
        return made[-1]

    here, there = SharedBus(broadcast(), "here"), SharedBus(broadcast(), "there")
    await here.start()
    await there.start()
    yield here, there
    await here.stop()
    await there.stop()
    for closing in made:
        await closing.close()


@pytest.fixture
def cut(agents_postgres: Postgres, request: pytest.FixtureRequest) -> Callable[[], Awaitable[None]]:
    """End the connections on which processes listen."""

    async def end_connections() -> None:
        if request.node.callspec.params["buses"] == "postgres":
            await agents_postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'moorage bus'"
            )
            return
        async with Redis.from_url(request.getfixturevalue("redis_uri")) as admin:
            await admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    return end_connections


async def _are_connected(one: SharedBus, other: SharedBus) -> None:
    """Return True when both listen: a signal arrives in each direction."""
    for sender, receiver in ((one, other), (other, one)):
        heard = asyncio.Event()
        receiver.on_signal("hello", lambda _, heard=heard: heard.set())
        async with asyncio.timeout(SOON_S):
            while not heard.is_set():
                sender.signal("hello", "")
                await asyncio.sleep(0.02)


async def _read(follower: Follower, number: int) -> list[bytes]:
    messages: list[bytes] = []
    while len(messages) < number:
        messages += (portion := await follower.read(SOON_S))
        assert portion, f"only {len(messages)} came"
    return messages


async def test_what_is_asked_for_is_forwarded_in_order_and_closes(buses: tuple[SharedBus, SharedBus]) -> None:
    here, there = buses
    with here.follow("run") as follower:
        here.ask_others("run")
        await until(lambda: there.has_followers("run"))
        sent = [b'{"number":%d}' % number for number in range(1000)]
        for message in sent:
            there.publish("run", message)
        there.close_topic("run")
        assert await _read(follower, 1000) == sent
        await until(lambda: follower.closed)


@pytest.mark.parametrize("asks", ["at once", "later"])
async def test_who_asks_again_hears_nothing_of_the_former_asking(buses: tuple[SharedBus, SharedBus], asks: str) -> None:
    """Messages between two subscriptions are not forwarded, so an earlier message must not look like the first.

    A reader follows, checks whether the run has ended, and asks then.
    """
    here, there = buses
    with here.follow("run"):
        here.ask_others("run")
        await until(lambda: there.has_followers("run"))
        there.publish("run", b'"under way"')
    with here.follow("run") as follower:
        if asks == "later":
            assert await follower.read(BRIEF_S) == []
        here.ask_others("run")
        while not (messages := await follower.read(0.01)):
            there.publish("run", b'"new"')
        assert set(messages) == {b'"new"'}


async def test_who_did_not_ask_hears_all_while_another_asks(buses: tuple[SharedBus, SharedBus]) -> None:
    here, there = buses
    with here.follow("run") as follower:
        there.expect_followers("run")
        there.publish("run", b"1")
        here.ask_others("run")
        there.publish("run", b"2")
        assert await _read(follower, 2) == [b"1", b"2"]


async def test_long_messages_arrive_whole(buses: tuple[SharedBus, SharedBus]) -> None:
    here, there = buses
    with here.follow("run") as follower:
        there.expect_followers("run")
        text = ('"' + "ä" * 500_000 + '"').encode()
        there.publish("run", text)
        assert await _read(follower, 1) == [text]


async def test_nothing_is_forwarded_that_nobody_asked_for(buses: tuple[SharedBus, SharedBus]) -> None:
    here, there = buses
    with here.follow("run") as follower:
        there.publish("run", b"1")
        assert await follower.read(BRIEF_S) == []
        assert not there.has_followers("run")


async def test_a_topic_is_no_longer_forwarded_when_its_last_follower_has_left(
    buses: tuple[SharedBus, SharedBus],
) -> None:
    here, there = buses
    with here.follow("run"), here.follow("run"):
        here.ask_others("run")
        await until(lambda: there.has_followers("run"))
    await until(lambda: not there.has_followers("run"))


async def test_a_signal_reaches_the_others_and_not_its_sender(buses: tuple[SharedBus, SharedBus]) -> None:
    here, there = buses
    heard_here: list[str] = []
    heard_there: list[str] = []
    here.on_signal("cancel", heard_here.append)
    there.on_signal("cancel", heard_there.append)
    here.signal("cancel", "run 1")
    await until(lambda: heard_there == ["run 1"])
    assert heard_here == []


async def test_service_returns_after_connections_were_cut(
    buses: tuple[SharedBus, SharedBus], cut: Callable[[], Awaitable[None]]
) -> None:
    await cut()
    await _are_connected(*buses)


async def test_what_is_asked_for_while_a_process_is_cut_off_is_forwarded_when_it_is_back(
    buses: tuple[SharedBus, SharedBus], cut: Callable[[], Awaitable[None]]
) -> None:
    here, there = buses
    with here.follow("run"):
        await cut()
        here.ask_others("run")
        await until(lambda: there.has_followers("run"))


async def test_followers_learn_that_something_is_missing_when_they_were_cut_off(
    buses: tuple[SharedBus, SharedBus], cut: Callable[[], Awaitable[None]]
) -> None:
    here, _ = buses
    with here.follow("run") as follower:
        await cut()
        await until(lambda: follower.gap)
