"""Group commit: one contract for all users of gathering, and tests of the gathering itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Protocol
from uuid import UUID

import pytest

from moorage.kernel.errors import UnavailableError
from moorage.kernel.gathering import Gathering
from moorage.kernel.group_commit import INT, TEXT, GroupCommit, Insert
from moorage.kernel.postgres import Postgres
from moorage.traces.records.run_rows import Row
from moorage.traces.run_buffer import RunBuffer

pytest_plugins = "tests.kernel.fixtures"

POISON = "\0"
_NOTE = Insert("INSERT INTO gathered (number, text) SELECT * FROM {rows}", (INT, TEXT))


class Door(Protocol):
    """A way to write numbered texts in groups. The text POISON cannot be written."""

    def write(self, number: int, text: str = "") -> Awaitable[None]: ...

    async def groups(self) -> list[list[int]]:
        """Return the written numbers, in groups."""

    async def finish(self) -> None: ...


class Work:
    """Work that takes a while, fails for given numbers, and records its rounds."""

    def __init__(self, *bad: int, error: type[Exception] = ValueError) -> None:
        self.rounds: list[list[int]] = []
        self.written: list[list[int]] = []
        self.began = asyncio.Event()
        self._bad, self._error = set(bad), error

    async def __call__(self, members: Sequence[list[int]]) -> None:
        numbers = [number for member in members for number in member]
        self.rounds.append(numbers)
        self.began.set()
        await asyncio.sleep(0.01)
        if self._bad.intersection(numbers):
            raise self._error("bad")
        self.written.append(numbers)

    def poison(self, number: int) -> None:
        self._bad.add(number)


class OfNumbers:
    def __init__(self) -> None:
        self._work = Work()
        self._gathering = Gathering[list[int]](self._work, (len, 100))

    def write(self, number: int, text: str = "") -> Awaitable[None]:
        if text == POISON:
            self._work.poison(number)
        return self._gathering.add([number])

    async def groups(self) -> list[list[int]]:
        return self._work.written

    async def finish(self) -> None:
        await self._gathering.finish(5)


class OfPostgres:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._commits = GroupCommit(postgres)

    def write(self, number: int, text: str = "") -> Awaitable[None]:
        return self._commits.write([(_NOTE, [(number, text)])])

    async def groups(self) -> list[list[int]]:
        rows = await self._postgres.fetch(
            "SELECT array_agg(number ORDER BY number) AS numbers FROM gathered GROUP BY xmin::text ORDER BY min(number)"
        )
        return [row["numbers"] for row in rows]

    async def finish(self) -> None:
        await self._commits.close()


class OfRuns:
    """The buffer of trace runs, before a store in memory that refuses the name POISON."""

    def __init__(self) -> None:
        self._written: list[list[int]] = []
        self._buffer = RunBuffer(self)  # type: ignore[arg-type]

    async def insert(self, rows: Sequence[Row]) -> None:
        await asyncio.sleep(0.01)
        if any(row["name"] == POISON for row in rows):
            raise ValueError("bad")
        self._written.append([row["start_time"] for row in rows])

    async def without_deleted(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    def write(self, number: int, text: str = "") -> Awaitable[None]:
        ids = {"tenant_id": UUID(int=0), "session_id": UUID(int=0), "id": str(UUID(int=number))}
        return self._buffer.add([{**ids, "start_time": number, "name": text}], 1)

    async def groups(self) -> list[list[int]]:
        return self._written

    async def finish(self) -> None:
        await self._buffer.stop()


@pytest.fixture(params=["numbers", "checkpoints", "trace runs"])
async def door(request: pytest.FixtureRequest, postgres: Postgres) -> AsyncIterator[Door]:
    await postgres.execute("DROP TABLE IF EXISTS gathered")
    await postgres.execute("CREATE TABLE gathered (number int PRIMARY KEY, text text)")
    made: dict[str, Any] = {"numbers": OfNumbers, "trace runs": OfRuns}
    opened: Door = OfPostgres(postgres) if request.param == "checkpoints" else made[request.param]()
    yield opened
    await opened.finish()


async def test_those_who_come_together_are_one_group(door: Door):
    await asyncio.gather(*(door.write(number) for number in range(20)))
    assert await door.groups() == [list(range(20))]


async def test_a_lone_one_does_not_wait_for_company(door: Door):
    for number in range(3):
        await door.write(number)
    assert await door.groups() == [[0], [1], [2]]


async def test_one_that_cannot_be_written_fails_alone(door: Door):
    texts = ["", "", POISON, ""]
    told = await asyncio.gather(*(door.write(*each) for each in enumerate(texts)), return_exceptions=True)
    assert [isinstance(each, Exception) for each in told] == [False, False, True, False]
    assert sorted(number for group in await door.groups() for number in group) == [0, 1, 3]


async def test_one_that_is_cancelled_leaves_the_others_alone(door: Door):
    async def write(number: int) -> None:
        await door.write(number)

    writers = [asyncio.create_task(write(number)) for number in range(6)]
    await asyncio.sleep(0)  # all wait
    for writer in writers[::3]:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    await door.finish()
    assert {1, 2, 4, 5} <= {number for group in await door.groups() for number in group}


async def test_finish_writes_what_waits(door: Door):
    writers = [asyncio.ensure_future(door.write(number)) for number in range(5)]
    await asyncio.sleep(0)  # all wait
    await door.finish()
    await asyncio.gather(*writers)
    assert [number for group in await door.groups() for number in group] == list(range(5))


# --- the gathering itself -----------------------------------------------------------------------------------------------


async def test_members_that_come_during_a_round_are_the_next_round():
    work = Work()
    gathering = Gathering[list[int]](work, (len, 100))
    first = gathering.add([1])
    await work.began.wait()
    await asyncio.gather(first, gathering.add([2]), gathering.add([3, 4]))
    assert work.rounds == [[1], [2, 3, 4]]


async def test_a_round_is_bounded_by_each_limit_but_takes_a_member_that_is_larger():
    work = Work()
    gathering = Gathering[list[int]](work, (len, 3), (sum, 20))
    await asyncio.gather(*(gathering.add(items) for items in ([1, 2], [3], [4], [5, 6, 7, 8], [9], [15])))
    assert work.rounds == [[1, 2, 3], [4], [5, 6, 7, 8], [9], [15]]


async def test_an_engine_that_is_away_fails_those_who_wait_behind_too():
    work = Work(1, error=UnavailableError)
    gathering = Gathering[list[int]](work, (len, 1))
    told = await asyncio.gather(*(gathering.add([item]) for item in (1, 2)), return_exceptions=True)
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    assert work.rounds == [[1]]
    await gathering.add([2])
    assert work.rounds == [[1], [2]]


async def test_a_member_that_is_withdrawn_while_it_waits_is_never_worked_on():
    work = Work()
    gathering = Gathering[list[int]](work, (len, 100))
    first, waiting = gathering.add([1]), [2]
    await work.began.wait()
    gathering.add(waiting)
    gathering.withdraw(waiting)
    await first
    await gathering.finish(5)
    assert work.rounds == [[1]]
