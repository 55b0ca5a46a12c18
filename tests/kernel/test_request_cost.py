"""Costs of request bodies: memory of all together, JSON values of each."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.kernel import request_cost
from moorage.kernel.errors import BodyTooLargeError, OverloadedError
from moorage.kernel.request_cost import MemoryBudget, RequestCost, parse

VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.text(st.sampled_from('\\",[{}]:')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def values_in(value: object) -> int:
    """Count commas, colons and opening brackets outside of strings, and add one."""
    if not isinstance(value, list | dict):
        return 0
    items = list(value.values()) if isinstance(value, dict) else value
    keys = len(items) if isinstance(value, dict) else 0
    return 1 + max(len(items) - 1, 0) + keys + sum(map(values_in, items))


def cost(values_max: int) -> RequestCost:
    return RequestCost(MemoryBudget(2**30), values_max)


@given(VALUES, st.integers(1, 9), st.booleans())
def test_values_are_counted_outside_of_strings(value: object, window: int, escaped: bool) -> None:
    data = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_cost, "_WINDOW_BYTES", window)
        assert request_cost._count_outside_strings(data, 10**9) == 1 + values_in(value)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 2000,
        b"[" + b"{}," * 1000 + b"{}]",
        b'{"a":' * 2000,
        b"[" + b"1," * 1999 + b"1]",
        b'["' + b'","' * 2000 + b'"]',
        b"{" + b'"a":1,' * 800 + b'"a":1}',
    ],
    ids=["deep lists", "objects", "deep objects", "numbers", "texts", "keys"],
)
async def test_more_values_than_a_request_may_hold_are_refused(data: bytes) -> None:
    with pytest.raises(BodyTooLargeError, match="1500"):
        await cost(1500).take_json(data)


@pytest.mark.parametrize(
    ("letter", "character_bytes"), [("x", 1), ("é", 2), ("\\u00e9", 2), ("🙂", 4), ("\\ud83d\\ude42", 4)]
)
async def test_one_wide_letter_widens_the_memory_of_a_large_text(letter: str, character_bytes: int) -> None:
    budget, text = MemoryBudget(2**30), f'"{"x" * 3_000_000}{letter}"'.encode()
    await RequestCost(budget, 10).take_json(text)
    assert budget.taken_bytes == pytest.approx(5 * character_bytes * len(text), rel=0.01)


async def test_a_text_with_wide_letters_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cost, "WIDE_BYTES_MAX", 3_000_000)
    await cost(10).take_json(f'"{"x" * 3_000_000}é"'.encode())
    with pytest.raises(BodyTooLargeError, match="3000000"):
        await cost(10).take_json(f'"{"x" * 3_000_000}🙂"'.encode())


async def test_commas_of_a_text_are_no_values() -> None:
    await cost(10).take_json(json.dumps({"table": '1,2,"3",[{' * 100_000}).encode())


async def test_the_texts_of_one_request_count_together() -> None:
    one = cost(10)
    await one.take_json(b"[1,2,3,4,5]")
    with pytest.raises(BodyTooLargeError):
        await one.take_json(b"[1,2,3,4,5]")


def test_all_requests_share_the_memory_and_one_alone_may_take_more() -> None:
    budget = MemoryBudget(1000)
    large, small = RequestCost(budget, 10), RequestCost(budget, 10)
    large.take(5000)
    with pytest.raises(OverloadedError):
        small.take(1)
    large.give_back()
    small.take(1)
    with pytest.raises(OverloadedError):
        large.take(1000)
    small.give_back()
    assert budget.taken_bytes == 0


async def test_large_bodies_are_parsed_off_the_event_loop() -> None:
    assert await parse(threading.get_ident, 2**10) == threading.get_ident()
    assert await parse(threading.get_ident, 2**24) != threading.get_ident()
