"""Identifiers that grow with time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest

from moorage.kernel.ids import uuid7


def millis(identifier: UUID) -> int:
    return identifier.int >> 80


def test_an_id_is_a_uuid_of_version_7():
    for identifier in (uuid7() for _ in range(1000)):
        assert identifier.version == 7
        assert identifier.variant == RFC_4122


def test_an_id_tells_when_it_was_made():
    before = time.time_ns() // 1_000_000
    identifier = uuid7()
    after = time.time_ns() // 1_000_000
    assert before <= millis(identifier) <= after


def test_ids_grow_even_inside_one_millisecond():
    made = [uuid7() for _ in range(20_000)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_sort_as_text_in_the_same_order():
    made = [str(uuid7()) for _ in range(1000)]
    assert made == sorted(made)


def test_ids_of_all_threads_grow_together():
    made: list[UUID] = []
    in_turn = threading.Lock()

    def make() -> None:
        for _ in range(2000):
            with in_turn:
                made.append(uuid7())

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(make) for _ in range(4)]:
            done.result()
    assert len(made) == 8000
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_of_threads_that_do_not_wait_for_each_other_are_distinct():
    with ThreadPoolExecutor(4) as threads:
        batches = list(threads.map(lambda _: [uuid7() for _ in range(5000)], range(4)))
    assert len({identifier for batch in batches for identifier in batch}) == 20_000
    assert all(batch == sorted(batch) for batch in batches)


def test_ids_grow_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    before = uuid7()
    hour_ago = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: hour_ago)
    assert before < uuid7() < uuid7()
