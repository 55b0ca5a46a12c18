"""The tree of a filter: its nodes, the fields that they name, and the values that fields accept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Literal
from uuid import UUID

import orjson

from moorage.traces.records.prices import plain
from moorage.traces.records.run_catalogue import RUN_CATALOGUE
from moorage.traces.records.words import in_utc

# Limits of the JSON object that `has` looks for.
JSON_DEPTH_MAX = 16
JSON_LEAVES_MAX = 128

Scalar = str | int | float | bool | None
Value = Scalar | UUID | datetime

Comparison = Literal["eq", "neq", "gt", "gte", "lt", "lte", "like", "notlike"]


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Expression


@dataclass(frozen=True, slots=True)
class Compare:
    operator: Comparison
    field: Field
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    field: Field
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Has:
    """A tag that must be there, or a JSON object (as text) whose keys and values must all be there."""

    field: Field
    value: str


@dataclass(frozen=True, slots=True)
class Exists:
    field: Field
    key: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """Search for words in a field; without a field, in inputs and outputs."""

    field: Field | None
    text: str


Expression = And | Or | Not | Compare | In | Has | Exists | Search


# --- values -------------------------------------------------------------------------------------------------------

# They occur in almost every text, so a search for them would not narrow anything.
_STOP_WORDS = re.compile(
    "a|an|and|are|as|at|be|but|by|for|if|in|into|is|it|no|not|of|on|or|such|that|the|their|then|there|these|they|this"
    "|to|was|will|with",
    re.IGNORECASE | re.ASCII,
)
_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FLAGS = {"true": True, "false": False}


def number_text(number: float) -> str:
    """Write a number as the engine does in JSON: whole numbers without fraction, an exponent only far from 1."""
    if isinstance(number, int):
        return str(number)
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        return plain(Decimal(repr(number)))
    mantissa, exponent = repr(number).split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def scalar_text(value: Scalar) -> str:
    """Write a scalar for comparison with metadata, inputs, outputs and feedback: text as it is, others as JSON."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return number_text(value)


def _text(value: Scalar) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _as_id(value: Scalar) -> UUID:
    return UUID(_text(value))


def _as_flag(value: Scalar) -> bool:
    return value if isinstance(value, bool) else _FLAGS[_text(value)]


def _as_time(value: Scalar) -> datetime:
    return in_utc(datetime.fromisoformat(_text(value)))


def _as_duration(value: Scalar) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _SECONDS[found[2]] if found else _as_number(value)


def _as_number(value: Scalar) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _as_json_object(value: Scalar) -> str:
    found = orjson.loads(_text(value))
    if not isinstance(found, dict) or sum(1 for _ in json_leaves(found)) > JSON_LEAVES_MAX:
        raise TypeError
    return str(value)


def json_leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """List the leaves of a JSON object as (path, value); a value is an object only when it is empty."""
    if not isinstance(value, dict) or (path and not value):
        yield path, value
    elif len(path) == JSON_DEPTH_MAX:
        raise ValueError
    else:
        for key, inner in value.items():
            yield from json_leaves(inner, (*path, key))


def search_tokens(text: str) -> list[str]:
    """Return the words of a search: at least two characters (non-ASCII: one), no stop words, in any order."""
    words = dict.fromkeys(re.findall(r"\w+", text))
    return [word for word in words if not _STOP_WORDS.fullmatch(word) and (len(word) > 1 or not word.isascii())]


# --- fields -------------------------------------------------------------------------------------------------------

EQUALITY = frozenset({"eq", "neq"})
ORDER = frozenset({"gt", "gte", "lt", "lte"})
PATTERN = frozenset({"like", "notlike"})
_ORDERED = EQUALITY | ORDER | {"in", "exists"}
_PAIR_OPERATORS = EQUALITY | ORDER | PATTERN | {"in"}


class Kind(Enum):
    """Kind of a field's values."""

    ID = "a UUID in quotes", EQUALITY | {"in", "exists"}, _as_id
    TEXT = "a text in quotes", _ORDERED | PATTERN | {"search"}, scalar_text
    SCALAR = "a text in quotes, a number, true or false", _PAIR_OPERATORS, lambda value: value
    TIME = 'a time such as "2026-01-31T12:00:00Z" or "2026-01-31"', _ORDERED, _as_time
    DURATION = 'seconds as a number, or a duration such as "5s" or "250ms"', _ORDERED, _as_duration
    NUMBER = "a number", _ORDERED, _as_number
    FLAG = "true or false", EQUALITY, _as_flag
    TAGS = "a tag in quotes", EQUALITY | PATTERN | {"in", "has", "exists", "search"}, scalar_text
    JSON = "a JSON object as a text in quotes", EQUALITY | PATTERN | {"has", "exists", "search"}, _as_json_object

    def __init__(self, meaning: str, operators: frozenset[str], convert: Callable[[Scalar], Value]) -> None:
        """`meaning`: its name in error messages. `convert` raises ValueError, TypeError, KeyError or OverflowError."""
        self.meaning = meaning
        self.operators = operators
        self.convert = convert


class PairGroup(Enum):
    """Group of fields that form pairs. Within one `and(...)`, conditions on parts of one group are read together:

    - If there is a positive condition on the key (eq, in, like), one pair must satisfy it and all conditions on the
      other parts.
    - Otherwise one pair must satisfy all positive conditions on the other parts, and each negative condition (neq,
      notlike) on them requires that no pair violates it.
    - A negative condition on the key always requires that no pair violates it.
    """

    METADATA = "metadata"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    pair: PairGroup | None = None
    is_key: bool = False


FIELDS = {
    field.name: field
    for field in (
        *(Field(column.name, Kind[column.filter]) for column in RUN_CATALOGUE if column.filter),
        Field("metadata_key", Kind.TEXT, PairGroup.METADATA, is_key=True),
        Field("metadata_value", Kind.SCALAR, PairGroup.METADATA),
        Field("input_key", Kind.TEXT, PairGroup.INPUTS, is_key=True),
        Field("input_value", Kind.SCALAR, PairGroup.INPUTS),
        Field("output_key", Kind.TEXT, PairGroup.OUTPUTS, is_key=True),
        Field("output_value", Kind.SCALAR, PairGroup.OUTPUTS),
        Field("feedback_key", Kind.TEXT, PairGroup.FEEDBACK, is_key=True),
        Field("feedback_score", Kind.NUMBER, PairGroup.FEEDBACK),
        Field("feedback_value", Kind.SCALAR, PairGroup.FEEDBACK),
        Field("feedback_comment", Kind.TEXT, PairGroup.FEEDBACK),
        Field("feedback_source", Kind.TEXT, PairGroup.FEEDBACK),
    )
}


def operators_of(field: Field) -> frozenset[str]:
    return field.kind.operators & _PAIR_OPERATORS if field.pair else field.kind.operators


def takes_null(field: Field) -> bool:
    """Tell whether `eq(field, null)` is allowed: a pair has a key, a run has a list of tags and is a root or not."""
    return field.kind not in {Kind.FLAG, Kind.TAGS} and not field.is_key
