"""Gathering: rounds of work, and what they tell to whom."""

import asyncio

import pytest

from moorage.kernel.errors import UnavailableError
from moorage.worker.gathering import Gathering


class Work:
    """Takes a while, fails for what it is told to, and remembers its rounds."""

    def __init__(self, *bad, error=ValueError):
        self.rounds, self.bad, self.error = [], bad, error

    async def __call__(self, items):
        self.rounds.append(list(items))
        await asyncio.sleep(0.01)
        if any(item in self.bad for item in items):
            raise self.error("bad")


async def test_the_first_is_served_at_once_and_those_that_come_meanwhile_together():
    work = Work()
    gathering = Gathering(work, items_max=100)
    await asyncio.gather(gathering.add([1]), gathering.add([2, 3]), gathering.add([4]))
    assert work.rounds == [[1, 2, 3, 4]]
    first = asyncio.create_task(gathering.add([5]))
    await asyncio.sleep(0.002)
    await asyncio.gather(first, gathering.add([6]), gathering.add([7]))
    assert work.rounds[1:] == [[5], [6, 7]]


async def test_a_round_is_bounded_but_takes_whom_it_must():
    work = Work()
    gathering = Gathering(work, items_max=3)
    await asyncio.gather(*(gathering.add(items) for items in ([1, 2], [3], [4], [5, 6, 7, 8], [9])))
    assert work.rounds == [[1, 2, 3], [4], [5, 6, 7, 8], [9]]


async def test_one_that_fails_does_not_fail_its_neighbours():
    work = Work(2)
    gathering = Gathering(work, items_max=100)
    told = await asyncio.gather(*(gathering.add([item]) for item in (1, 2, 3)), return_exceptions=True)
    assert [type(each) for each in told] == [type(None), ValueError, type(None)]
    assert work.rounds == [[1, 2, 3], [1], [2], [3]]


async def test_when_an_engine_is_away_all_are_told_at_once():
    work = Work(1, error=UnavailableError)
    gathering = Gathering(work, items_max=100)
    told = await asyncio.gather(*(gathering.add([item]) for item in (1, 2)), return_exceptions=True)
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    assert len(work.rounds) == 1


async def test_who_is_cancelled_leaves_the_others_alone():
    work = Work()
    gathering = Gathering(work, items_max=100)
    one, other = asyncio.create_task(gathering.add([1])), asyncio.create_task(gathering.add([2]))
    await asyncio.sleep(0.002)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    await other
    assert work.rounds == [[1, 2]]
