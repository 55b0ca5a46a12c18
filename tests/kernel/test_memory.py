"""A cache keeps each answer for a while, and drops the oldest ones when it is full."""

import asyncio

from moorage.kernel.memory import Memory


def test_the_oldest_entry_makes_room():
    memory = Memory[str, int](2)
    memory.keep("a", 1, 60)
    memory.keep("b", 2, 60)
    memory.keep("a", 3, 60)
    memory.keep("c", 4, 60)
    assert [memory.recall(key) for key in "abc"] == [3, None, 4]


async def test_an_entry_ends():
    memory = Memory[str, int](2)
    memory.keep("a", 1, 0.01)
    memory.keep("b", 2, 60)
    await asyncio.sleep(0.02)
    assert [memory.recall(key) for key in "ab"] == [None, 2]


def test_entries_are_forgotten_by_key_or_value():
    memory = Memory[str, int](3)
    for value, key in enumerate("abc"):
        memory.keep(key, value, 60)
    memory.forget(lambda key, value: key == "a" or value == 2)
    assert [memory.recall(key) for key in "abc"] == [None, 1, None]
