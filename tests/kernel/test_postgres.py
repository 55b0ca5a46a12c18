"""The pool and group commit, on a server that is killed now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from moorage.kernel.errors import InvalidRequestError, UnavailableError
from moorage.kernel.postgres import GroupCommit, Postgres, Statement
from tests.kernel.databases import Engine

pytest_plugins = "tests.kernel.fixtures"

INSERT = "INSERT INTO notes (number, text) VALUES (%s, %s)"
COUNT = "INSERT INTO counts (number) VALUES (%s::text::int)"


def note(number: int, text: str = "") -> list[Statement]:
    return [(INSERT, [(number, text)])]


@pytest.fixture
async def commits(postgres: Postgres) -> AsyncIterator[GroupCommit]:
    await postgres.execute("DROP TABLE IF EXISTS notes, counts")
    await postgres.execute("CREATE TABLE notes (number int PRIMARY KEY, text text)")
    await postgres.execute("CREATE TABLE counts (number int)")
    made = GroupCommit(postgres)
    yield made
    await made.close()


@pytest.fixture
def mortal(engine: Engine) -> Iterator[Engine]:
    """The server, for a test that kills it: it is up again afterwards, however the test went."""
    yield engine
    engine.start()


async def numbers(postgres: Postgres) -> list[int]:
    return [row["number"] for row in await postgres.fetch("SELECT number FROM notes ORDER BY number")]


async def until_it_answers(postgres: Postgres, bound_s: float) -> None:
    async with asyncio.timeout(bound_s):
        while True:
            try:
                await postgres.fetch("SELECT 1")
                return
            except UnavailableError:
                await asyncio.sleep(0.1)


# --- group commit -----------------------------------------------------------------------------------------------------


async def test_what_was_written_survives_a_kill_of_the_server_right_after(
    commits: GroupCommit, conninfo: str, mortal: Engine
):
    await asyncio.gather(*(commits.write(note(number)) for number in range(20)))
    mortal.kill()
    mortal.start()
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (20,)


async def test_writers_at_the_same_time_share_a_transaction(commits: GroupCommit, postgres: Postgres):
    await asyncio.gather(*(commits.write(note(number)) for number in range(200)))
    [row] = await postgres.fetch("SELECT count(*) AS rows, count(DISTINCT xmin::text) AS transactions FROM notes")
    assert row == {"rows": 200, "transactions": 1}


async def test_many_writers_need_few_transactions(commits: GroupCommit, postgres: Postgres):
    async def write(writer: int) -> None:
        for step in range(10):
            await commits.write(note(writer * 10 + step))

    await asyncio.gather(*(write(writer) for writer in range(30)))
    [row] = await postgres.fetch("SELECT count(*) AS rows, count(DISTINCT xmin::text) AS transactions FROM notes")
    assert row["rows"] == 300
    assert row["transactions"] <= 30


async def test_a_lone_writer_does_not_wait_for_company(commits: GroupCommit, postgres: Postgres):
    for number in range(3):
        await commits.write(note(number))
    [row] = await postgres.fetch("SELECT count(DISTINCT xmin::text) AS transactions FROM notes")
    assert row["transactions"] == 3


async def test_a_poisoned_member_fails_alone(commits: GroupCommit, postgres: Postgres):
    members = [commits.write(note(number, "a\0b" if number == 3 else "")) for number in range(6)]
    results = await asyncio.gather(*members, return_exceptions=True)
    assert isinstance(results.pop(3), InvalidRequestError)
    assert results == [None] * 5
    assert await numbers(postgres) == [0, 1, 2, 4, 5]


async def test_a_member_that_the_database_refuses_fails_alone(commits: GroupCommit, postgres: Postgres):
    await commits.write(note(2))
    results = await asyncio.gather(*(commits.write(note(number)) for number in (1, 2, 3)), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), psycopg.errors.UniqueViolation, type(None)]
    assert await numbers(postgres) == [1, 2, 3]


async def test_a_member_is_written_whole_or_not_at_all(commits: GroupCommit, postgres: Postgres):
    half_poisoned = [*note(1), (COUNT, [("1",), ("not a number",)])]
    results = await asyncio.gather(
        commits.write(half_poisoned), commits.write([*note(2), (COUNT, [("2",)])]), return_exceptions=True
    )
    assert isinstance(results[0], InvalidRequestError)
    assert await numbers(postgres) == [2]
    assert await postgres.fetch("SELECT number FROM counts") == [{"number": 2}]


async def test_after_a_poisoned_member_groups_go_on(commits: GroupCommit, postgres: Postgres):
    with pytest.raises(InvalidRequestError):
        await commits.write(note(1, "\0"))
    await asyncio.gather(*(commits.write(note(number)) for number in (2, 3)))
    assert await numbers(postgres) == [2, 3]


async def test_a_cancelled_writer_takes_nobody_along(commits: GroupCommit, postgres: Postgres):
    async def write(number: int) -> None:
        await commits.write(note(number))

    writers = [asyncio.create_task(write(number)) for number in range(30)]
    await asyncio.sleep(0)  # all have queued their rows
    for writer in writers[::3]:
        writer.cancel()
    late = [asyncio.create_task(write(number)) for number in range(30, 40)]  # gathered meanwhile
    results = await asyncio.gather(*writers, return_exceptions=True)
    await asyncio.gather(*late)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::3])
    kept = {number for number in range(40) if number >= 30 or number % 3}
    assert kept <= set(await numbers(postgres))


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
    await asyncio.sleep(4)  # they keep asking meanwhile
    mortal.start()
    async with asyncio.timeout(2):
        await asyncio.gather(*clients)


async def test_group_commit_fails_all_members_at_once_while_the_server_is_away(
    commits: GroupCommit, postgres: Postgres, mortal: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Not one after the other, each for as long as the pool waits for a connection."""
    monkeypatch.setattr("moorage.kernel.postgres._PATIENCE_S", 2)
    mortal.kill()
    async with asyncio.timeout(8):
        results = await asyncio.gather(*(commits.write(note(number)) for number in range(8)), return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    mortal.start()
    await until_it_answers(postgres, bound_s=5)
    await commits.write(note(100))
    assert await numbers(postgres) == [100]


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
        except UnavailableError:  # our own
            pass
    await until_it_answers(postgres, bound_s=3)


# --- more work than connections ---------------------------------------------------------------------------------------


async def test_who_waits_is_served_in_turn_however_long_it_takes(postgres: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moorage.kernel.postgres._PATIENCE_S", 0.5)
    served: list[int] = []

    async def ask(number: int) -> None:
        await postgres.fetch("SELECT pg_sleep(0.1)")
        served.append(number)

    await asyncio.gather(*(ask(number) for number in range(60)))  # 1.5 s and more, by 4 connections
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


async def test_all_statements_or_none(commits: GroupCommit, postgres: Postgres):
    with pytest.raises(psycopg.errors.UniqueViolation):
        await postgres.execute_all([(COUNT, [("1",)]), (INSERT, [(1, ""), (1, "again")])])
    assert await numbers(postgres) == []
    assert await postgres.fetch("SELECT number FROM counts") == []
