"""Group commit, on a server that is killed at times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from moorage.kernel.errors import InvalidRequestError, UnavailableError
from moorage.kernel.group_commit import BIGINT, BYTES, ID, INT, JSON, TEXT, GroupCommit, Insert, Write
from moorage.kernel.postgres import Postgres
from tests.kernel.databases import Engine
from tests.kernel.test_postgres import until_it_answers

pytest_plugins = "tests.kernel.fixtures"

NOTE = Insert("INSERT INTO notes (number, text) SELECT * FROM {rows}", (INT, TEXT))
COUNT = Insert("INSERT INTO counts (number) SELECT text::int FROM {rows} AS rows (text)", (TEXT,))


def note(number: int, text: str = "") -> list[Write]:
    return [(NOTE, [(number, text)])]


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
    """Return the server to a test that kills it. It is up again afterwards, however the test ends."""
    yield engine
    engine.start()


async def numbers(postgres: Postgres) -> list[int]:
    return [row["number"] for row in await postgres.fetch("SELECT number FROM notes ORDER BY number")]


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
    half_poisoned: list[Write] = [*note(1), (COUNT, [("1",), ("not a number",)])]
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
    await asyncio.sleep(0)  # all rows are queued
    for writer in writers[::3]:
        writer.cancel()
    late = [asyncio.create_task(write(number)) for number in range(30, 40)]  # rows that were gathered meanwhile
    results = await asyncio.gather(*writers, return_exceptions=True)
    await asyncio.gather(*late)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::3])
    kept = {number for number in range(40) if number >= 30 or number % 3}
    assert kept <= set(await numbers(postgres))


async def test_group_commit_fails_all_members_at_once_while_the_server_is_away(
    commits: GroupCommit, postgres: Postgres, mortal: Engine, monkeypatch: pytest.MonkeyPatch
):
    """They must not fail one after the other, each after waiting as long as the pool waits for a connection."""
    monkeypatch.setattr("moorage.kernel.postgres._PATIENCE_S", 2)
    mortal.kill()
    async with asyncio.timeout(8):
        results = await asyncio.gather(*(commits.write(note(number)) for number in range(8)), return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    mortal.start()
    await until_it_answers(postgres, bound_s=5)
    await commits.write(note(100))
    assert await numbers(postgres) == [100]


# --- values -----------------------------------------------------------------------------------------------------------

ALL_KINDS = Insert(
    "INSERT INTO kinds SELECT * FROM {rows}",
    (TEXT, BYTES, JSON, INT, BIGINT, ID),
)
FULL = ("ä\n", b"\0\xff", b'{"a": [1, null]}', -(2**31), 2**63 - 1, UUID(int=7))
EMPTY: tuple[Any, ...] = ("", b"", b"null", 0, 0, UUID(int=0))
NONE = (None,) * 6


async def test_values_of_each_kind_come_back_as_they_went(commits: GroupCommit, postgres: Postgres):
    await postgres.execute("DROP TABLE IF EXISTS kinds")
    await postgres.execute("CREATE TABLE kinds (a text, b bytea, c jsonb, d int, e bigint, f uuid)")
    await commits.write([(ALL_KINDS, [FULL, EMPTY, NONE])])
    rows = [tuple(row.values()) for row in await postgres.fetch("SELECT * FROM kinds")]
    assert rows == [(*FULL[:2], {"a": [1, None]}, *FULL[3:]), (*EMPTY[:2], None, *EMPTY[3:]), NONE]


@pytest.mark.parametrize("row", [(2**31, ""), (1, "\ud800"), (1, 2)], ids=["too big", "no text", "another type"])
async def test_a_value_that_fits_no_column_fails_its_member_alone(commits: GroupCommit, postgres: Postgres, row: Any):
    results = await asyncio.gather(commits.write([(NOTE, [row])]), commits.write(note(7)), return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert results[1] is None
    assert await numbers(postgres) == [7]


async def test_what_is_too_much_for_one_statement_goes_in_several(postgres: Postgres):
    commits = GroupCommit(postgres, group_bytes_max=10)
    await postgres.execute("DROP TABLE IF EXISTS blobs")
    await postgres.execute("CREATE TABLE blobs (blob bytea)")
    blob = Insert("INSERT INTO blobs SELECT * FROM {rows}", (BYTES,))
    await asyncio.gather(*(commits.write([(blob, [(bytes(size),)])]) for size in (4, 4, 4, 100, 1)))
    [row] = await postgres.fetch("SELECT count(*) AS rows, count(DISTINCT xmin::text) AS transactions FROM blobs")
    assert row == {"rows": 5, "transactions": 4}
    await commits.close()
