"""JSON encoding and decoding, in one place, so that all JSON has one form."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

import orjson

from moorage.kernel.errors import InvalidRequestError

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_CONVERT: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((set, frozenset, deque), list),
    ((bytes, bytearray, memoryview), lambda value: bytes(value).decode("utf-8", "replace")),
    (Decimal, lambda value: int(value) if value.is_finite() and value % 1 == 0 else float(value)),
    (timedelta, timedelta.total_seconds),
    (re.Pattern, lambda value: value.pattern),
    ((PurePath, BaseException), str),
    (Enum, lambda value: value.value),
)


def plain(value: Any) -> Any:
    """Convert a Python object one step towards JSON. Raises TypeError for an object without a JSON form."""
    if isinstance(value, type):
        raise TypeError(f"the class {value.__name__} is not JSON-encodable")
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump()
    if hasattr(value, "_asdict"):  # named tuples
        return value._asdict()
    if is_dataclass(value):  # orjson encodes dataclasses itself, except those that it cannot inspect
        return asdict(cast(Any, value))
    for kinds, convert in _CONVERT:
        if isinstance(value, kinds):
            return convert(value)
    raise TypeError(f"an object of type {type(value).__name__} is not JSON-encodable")


def encode(value: Any, default: Callable[[Any], Any] = plain) -> bytes:
    """Encode as compact JSON. NaN and infinities become null, as JSON has neither. Raises TypeError with the reason."""
    try:
        return orjson.dumps(value, default, _OPTIONS)
    except orjson.JSONEncodeError as error:
        # orjson puts the reason of a failing default in __cause__.
        raise TypeError(str(error.__cause__ or error)) from error


def encode_with_z(value: Any) -> bytes:
    """Encode JSON with times that end in Z. Without Z, clients of traces assume local time (JavaScript) or UTC (Python)."""
    return orjson.dumps(value, plain, _OPTIONS | orjson.OPT_UTC_Z)


def decode(data: bytes | bytearray | str) -> Any:
    return orjson.loads(data)


def encode_for_storage(value: Any) -> bytes:
    """Encode a caller's JSON for a row. Raises InvalidRequestError if the database could not hold it."""
    try:
        return encode(value)
    except TypeError as error:
        raise InvalidRequestError(f"The request cannot be stored: {error}") from error


def without_nul(data: bytes) -> bytes:
    """Replace U+0000 by U+FFFD in JSON, since PostgreSQL's jsonb has no NUL."""
    return data if b"\\u0000" not in data else encode(_replace_nul(decode(data)))


def _replace_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_replace_nul(item) for item in value]
    if isinstance(value, dict):
        return {_replace_nul(key): _replace_nul(item) for key, item in value.items()}
    return value
