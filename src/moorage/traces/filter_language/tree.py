"""The tree of a filter: its nodes, and the fields that they name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal
from uuid import UUID

from moorage.traces.records.run_catalogue import RUN_CATALOGUE

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


# --- fields -------------------------------------------------------------------------------------------------------


class Kind(Enum):
    """Kind of a field's values. The enum's value is its name in error messages."""

    ID = "a UUID in quotes"
    TEXT = "a text in quotes"
    SCALAR = "a text in quotes, a number, true or false"
    TIME = 'a time such as "2026-01-31T12:00:00Z" or "2026-01-31"'
    DURATION = 'seconds as a number, or a duration such as "5s" or "250ms"'
    NUMBER = "a number"
    FLAG = "true or false"
    TAGS = "a tag in quotes"
    JSON = "a JSON object as a text in quotes"


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

EQUALITY = frozenset({"eq", "neq"})
ORDER = frozenset({"gt", "gte", "lt", "lte"})
PATTERN = frozenset({"like", "notlike"})
_OPERATORS: dict[Kind, frozenset[str]] = {
    Kind.ID: EQUALITY | {"in", "exists"},
    Kind.TEXT: EQUALITY | ORDER | PATTERN | {"in", "exists", "search"},
    Kind.SCALAR: EQUALITY | ORDER | PATTERN | {"in"},
    Kind.TIME: EQUALITY | ORDER | {"in", "exists"},
    Kind.DURATION: EQUALITY | ORDER | {"in", "exists"},
    Kind.NUMBER: EQUALITY | ORDER | {"in", "exists"},
    Kind.FLAG: EQUALITY,
    Kind.TAGS: EQUALITY | PATTERN | {"in", "has", "exists", "search"},
    Kind.JSON: EQUALITY | PATTERN | {"has", "exists", "search"},
}
_PAIR_OPERATORS = EQUALITY | ORDER | PATTERN | {"in"}


def operators_of(field: Field) -> frozenset[str]:
    allowed = _OPERATORS[field.kind]
    return allowed & _PAIR_OPERATORS if field.pair else allowed


def takes_null(field: Field) -> bool:
    """Tell whether `eq(field, null)` is allowed: a pair has a key, a run has a list of tags and is a root or not."""
    return field.kind not in {Kind.FLAG, Kind.TAGS} and not field.is_key
