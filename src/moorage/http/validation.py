"""Validation errors of bodies: for clients of the agent server one string in the style of JSON Schema, for clients of
the platform a list of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError

_INSTANCE_CHARS_MAX = 1000
_KEYWORDS = {
    "missing": "required",
    "literal_error": "enum",
    "enum": "enum",
    "greater_than_equal": "minimum",
    "less_than_equal": "maximum",
    "too_long": "maxItems",
    "too_short": "minItems",
    "uuid_parsing": "format",
}


class ErrorItem(TypedDict):
    """An invalid field. It leaves out `input`, `ctx` and `url` of pydantic, which would echo secrets."""

    loc: list[str | int]
    msg: str
    type: str


class InvalidFieldsError(InvalidRequestError):
    """The request has missing or invalid fields. Each item says where and why."""

    def __init__(self, text: str, items: list[ErrorItem]) -> None:
        super().__init__(text)
        self.items = items  # each item with its own place


def items_of(errors: Iterable[ErrorDetails | Mapping[str, Any]], *place: str) -> list[ErrorItem]:
    """Convert pydantic's errors to items. `place` is where the model was in the request, such as `body`."""
    return [{"loc": [*place, *error["loc"]], "msg": error["msg"], "type": error["type"]} for error in errors]


def describe(error: ValidationError) -> str:
    """Describe the first error: the value, the violated rule, and the part of the body."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "Invalid JSON in request body"
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    instance = _text(first["input"])
    return f'{_sentence(first)}\n\nFailed validating "{_keyword(first)}" in schema\n\nOn instance:\n    {instance}'


def _sentence(error: ErrorDetails) -> str:
    place = ".".join(str(step) for step in error["loc"])
    if error["type"] == "missing":
        return f'"{error["loc"][-1]}" is a required property'
    return f"{place}: {error['msg']}" if place else error["msg"]


def _keyword(error: ErrorDetails) -> str:
    return _KEYWORDS.get(error["type"], "type")


def _text(value: Any) -> str:
    try:
        text = encode(value).decode()
    except TypeError:  # an integer of more than 64 bits
        text = repr(value)
    return text if len(text) <= _INSTANCE_CHARS_MAX else text[:_INSTANCE_CHARS_MAX] + "..."
