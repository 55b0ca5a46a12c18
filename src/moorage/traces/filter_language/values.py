"""Values of a filter: the values that fields accept, and the text form of numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import orjson

from moorage.traces.filter_language.tree import Kind, Scalar, Value

# Limit of the JSON object that `has` looks for.
JSON_DEPTH_MAX = 16
JSON_LEAVES_MAX = 128

# Stop words: they occur in almost every text, so a search for them would not narrow anything.
_STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of"}
    | {
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    }
)

_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def number_text(number: float) -> str:
    """Write a number as the engine does in JSON: whole numbers without fraction, an exponent only far from 1."""
    if isinstance(number, int):
        return str(number)
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        text = format(Decimal(repr(number)), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return re.sub(r"e([+-]?)0*(\d+)", lambda found: f"e{found[1].strip('+')}{found[2]}", repr(number)).replace(
        ".0e", "e"
    )


def scalar_text(value: Scalar) -> str:
    """Write a scalar for comparison with metadata, inputs, outputs and feedback: text as it is, others as JSON."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return number_text(value)


def _as_id(value: Scalar) -> UUID:
    if not isinstance(value, str):
        raise TypeError
    return UUID(value)


def _as_time(value: Scalar) -> datetime:
    if not isinstance(value, str):
        raise TypeError
    at = datetime.fromisoformat(value)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _as_duration(value: Scalar) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _SECONDS[found[2]] if found else _as_number(value)


def _as_number(value: Scalar) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _as_flag(value: Scalar) -> bool:
    named = {"true": True, "false": False}
    if not isinstance(value, bool | str):
        raise TypeError
    return value if isinstance(value, bool) else named[value]


def _as_given(value: Scalar) -> Scalar:
    return value


def _as_json_object(value: Scalar) -> str:
    found = orjson.loads(value) if isinstance(value, str) else None
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


CONVERT: dict[Kind, Callable[[Scalar], Value]] = {
    Kind.ID: _as_id,
    Kind.TEXT: scalar_text,
    Kind.SCALAR: _as_given,
    Kind.TIME: _as_time,
    Kind.DURATION: _as_duration,
    Kind.NUMBER: _as_number,
    Kind.FLAG: _as_flag,
    Kind.TAGS: scalar_text,
    Kind.JSON: _as_json_object,
}


def search_tokens(text: str) -> list[str]:
    """Return the words of a search: at least two characters (non-ASCII: one), no stop words, in any order."""
    words = re.findall(r"\w+", text)
    kept = (word for word in words if word.lower() not in _STOP_WORDS and (len(word) > 1 or not word.isascii()))
    return list(dict.fromkeys(kept))
