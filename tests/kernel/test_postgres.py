"""The pool, on a server that is killed at times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest

from moorage.kernel.errors import InvalidRequestError, UnavailableError
from moorage.kernel.postgres import Postgres
from tests.kernel.databases import Engine

pytest_plugins = "tests.kernel.fixtures"


@pytest.fixture
def mortal(engine: Engine) -> Iterator[Engine]:
    """Return the server to a test that kills it. It is up again afterwards, however the test ends."""
    yield engine
    engine.start()


async def until_it_answers(postgres: Postgres, bound_s: float) -> None:
    async with asyncio.timeout(bound_s):
        while True:
            try:
                await postgres.fetch("SELECT 1")
                return
            except UnavailableError:
                await asyncio.sleep(0.1)


# --- a server that goes away ------------------------------------------------------------------------------------------


async def test_a_database_that_is_away_is_unavailable_and_comes_back_by_itself(postgres: Postgres, mortal: Engine):
    await postgres.fetch("SELECT 1")
    mortal.kill()
    with pytest.raises(UnavailableError):
        await postgres.fetch("SELECT 1")
    mortal.start()
    await until_it_answers(postgres, bound_s=5)


async def test_the_service_returns_soon_also_after_a_longer_absence(postgres: Postgres, mortal: Engine):
    mortal.kill()
    clients = [asyncio.create_task(until_it_answers(postgres, bound_s=30)) for _ in range(3)]
    await asyncio.sleep(4)  # they continue asking meanwhile
    mortal.start()
    async with asyncio.timeout(2):
        await asyncio.gather(*clients)


async def test_a_server_that_never_answers_is_told_in_time(tmp_path_factory: pytest.TempPathFactory):
    nowhere = Postgres(f"host={tmp_path_factory.mktemp('nowhere')} connect_timeout=2", pool_max=2)
    started = time.monotonic()
    nowhere._pool.timeout = 1
    with pytest.raises(UnavailableError):
        await nowhere.fetch("SELECT 1")
    assert time.monotonic() - started < 5


async def test_a_lost_connection_is_replaced(postgres: Postgres):
    for row in await postgres.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'moorage'"):
        try:
            await postgres.execute("SELECT pg_terminate_backend(%s)", (row["pid"],))
        except UnavailableError:  # our own connection
            pass
    await until_it_answers(postgres, bound_s=3)


# --- more work than connections ---------------------------------------------------------------------------------------


async def test_who_waits_is_served_in_turn_however_long_it_takes(postgres: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moorage.kernel.postgres._PATIENCE_S", 0.5)
    served: list[int] = []

    async def ask(number: int) -> None:
        await postgres.fetch("SELECT pg_sleep(0.1)")
        served.append(number)

    await asyncio.gather(*(ask(number) for number in range(60)))  # 1.5 s and more, with 4 connections
    assert all(abs(number - place) < 8 for place, number in enumerate(served))


async def test_nobody_waits_for_ever(postgres: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moorage.kernel.postgres._BUSY_S_MAX", 0.5)
    asked = [postgres.fetch("SELECT pg_sleep(0.2)") for _ in range(60)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(result) for result in results} == {list, UnavailableError}
    assert await postgres.fetch("SELECT 1 AS one") == [{"one": 1}]


async def test_not_too_many_wait(postgres: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moorage.kernel.postgres._WAITERS_MAX", 2)
    results = await asyncio.gather(*(postgres.fetch("SELECT pg_sleep(0.1)") for _ in range(10)), return_exceptions=True)
    assert [type(result) for result in results] == [list] * 6 + [UnavailableError] * 4


async def test_who_leaves_the_queue_takes_no_turn_along(postgres: Postgres):
    at_work = [asyncio.create_task(postgres.fetch("SELECT pg_sleep(0.3)")) for _ in range(4)]
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(postgres.fetch("SELECT 1")) for _ in range(20)]
    await asyncio.sleep(0.1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*at_work)
    async with asyncio.timeout(5):
        await asyncio.gather(*(postgres.fetch("SELECT 1") for _ in range(20)))


# --- what callers may hand over ---------------------------------------------------------------------------------------


async def test_values_that_the_database_cannot_hold_are_the_callers_fault(postgres: Postgres):
    with pytest.raises(InvalidRequestError):
        await postgres.fetch("SELECT %s::text AS text", ("a\0b",))
    with pytest.raises(InvalidRequestError):
        await postgres.fetch("SELECT %s::text::jsonb AS json", ('"\\u0000"',))
    with pytest.raises(InvalidRequestError):
        await postgres.fetch("SELECT %s::text::int AS number", ("x",))


async def test_all_statements_or_none(postgres: Postgres):
    await postgres.execute("DROP TABLE IF EXISTS notes")
    await postgres.execute("CREATE TABLE notes (number int PRIMARY KEY)")
    insert = "INSERT INTO notes VALUES (%s)"
    with pytest.raises(psycopg.errors.UniqueViolation):
        await postgres.execute_all([(insert, [(1,)]), (insert, [(2,), (2,)])])
    assert await postgres.fetch("SELECT number FROM notes") == []
