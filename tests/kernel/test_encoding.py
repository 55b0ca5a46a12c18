"""JSON of any values that callers and graphs return, and JSON that PostgreSQL can store."""

from __future__ import annotations

import math
import re
from collections import deque, namedtuple
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from moorage.kernel.encoding import decode, encode, encode_for_storage, without_nul
from moorage.kernel.errors import InvalidRequestError


class Model(BaseModel):
    number: int


@dataclass
class Record:
    name: str


@dataclass
class SlottedRecord:
    __slots__ = ("name",)
    name: str


class Colour(Enum):
    RED = "red"


class Pair(Enum):
    EMPTY = frozenset()


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is what old code has


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (math.inf, None),
        ([1.0, -math.inf], [1.0, None]),
        ({1}, [1]),
        (frozenset({"a"}), ["a"]),
        (deque([1, 2]), [1, 2]),
        ((1, 2), [1, 2]),
        (b"raw", "raw"),
        (bytearray(b"raw"), "raw"),
        (b"\xff", "\ufffd"),
        (Decimal(10), 10),
        (Decimal("0.5"), 0.5),
        (timedelta(minutes=1), 60.0),
        (re.compile("a+"), "a+"),
        (PurePosixPath("a/b"), "a/b"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Model(number=1), {"number": 1}),
        (Record("r"), {"name": "r"}),
        (SlottedRecord("r"), {"name": "r"}),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Colour.RED, "red"),
        (Pair.EMPTY, []),
        (ValueError("boom"), "boom"),
        ({1: "one", None: "none", Colour.RED: 1}, {"1": "one", "null": "none", "red": 1}),
        ({"deep": [{Record("r").name: {Decimal(1)}}]}, {"deep": [{"r": [1]}]}),
    ],
)
def test_a_value_becomes_plain_json(value: Any, expected: Any):
    assert decode(encode(value)) == expected


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")])
def test_a_decimal_that_is_no_number_becomes_null_like_a_float(value: Decimal):
    assert encode(value) == b"null"


@pytest.mark.parametrize(
    ("value", "reason"),
    [(Model, "class Model"), ({"kind": Record}, "class Record"), (object(), "type object"), (2**64, "64-bit")],
)
def test_what_has_no_json_form_is_refused_with_the_reason(value: Any, reason: str):
    with pytest.raises(TypeError, match=reason):
        encode(value)


def endless() -> list[Any]:
    nested: list[Any] = []
    nested.append(nested)
    return nested


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", {"\udfff": 1}, object(), Model, endless()])
def test_a_request_that_cannot_be_stored_is_the_callers_fault(value: Any):
    with pytest.raises(InvalidRequestError, match="cannot be stored"):
        encode_for_storage({"input": value})


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63), 1.5e300, "\U0001f600"])
def test_the_largest_values_are_stored_as_they_are(value: Any):
    assert decode(encode_for_storage(value)) == value


# PostgreSQL cannot store U+0000, written \u0000 in JSON.


def test_nul_is_replaced_in_values_and_keys():
    data = encode({"a\0": ["x\0y", {"k": "\0"}], "n": 1})
    assert decode(without_nul(data)) == {"a\ufffd": ["x\ufffdy", {"k": "\ufffd"}], "n": 1}


def test_text_that_only_looks_like_an_escaped_nul_survives():
    value = {"shown": "\\u0000", "doubled": "\\\\u0000"}
    assert decode(without_nul(encode(value))) == value


def test_a_nul_beside_text_that_looks_like_one_is_replaced_alone():
    assert decode(without_nul(encode("\\u0000\0\\\0"))) == "\\u0000\ufffd\\\ufffd"


def test_json_without_nul_is_not_touched():
    data = b'{"a": 1.50}'
    assert without_nul(data) is data


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Many backslashes and NULs, which plain text() hardly ever generates side by side.
    | st.text(st.sampled_from('\0\\u0"a\ufffd'), max_size=12)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from("\0\\u0k"), max_size=4), inner),
    max_leaves=12,
)


def expected_without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return "\ufffd".join(value.split("\0"))
    if isinstance(value, list):
        return [expected_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {expected_without_nul(key): expected_without_nul(item) for key, item in value.items()}
    return value


@given(JSON)
def test_any_json_loses_its_nuls_and_nothing_else(value: Any):
    stored = without_nul(encode(value))
    assert decode(stored) == expected_without_nul(value)
    assert without_nul(stored) == stored
