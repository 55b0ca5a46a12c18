"""Filters as text: a recursive-descent parser, and a writer of comparisons.

    expression := and(expression, ...) | or(expression, ...) | not(expression)
                | eq|neq|gt|gte|lt|lte(field, value) | like|notlike(field, text) | in(field, [value, ...])
                | has(tags, text) | has(metadata|inputs|outputs|extra, json object as text)
                | exists(field) | exists(metadata|inputs|outputs|extra, key) | search(text) | search(field, text)
    value      := "text" | 'text' | number | true | false | null

Rules for all expressions:

- Every condition is either true or false, never unknown. A missing value equals only null, and every other comparison
  with it is false; `neq(f, x)` is `not(eq(f, x))`, `notlike` is `not(like)`.
- Conditions on the parts of a pair (metadata_key and metadata_value, input_*, output_*, feedback_*) side by side in one
  `and(...)` apply to the same pair. See `PairGroup`.
- Depth, size and length are limited. An error names the position and the expected symbol.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language import tree
from moorage.traces.filter_language.tree import FIELDS, Expression, Field, Kind, Scalar, Value, scalar_text

TEXT_CHARS_MAX = 64_000
DEPTH_MAX = 16
NODES_MAX = 128
LIST_MAX = 1000

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?(?![\w.])")
_QUOTED = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", **{char: char for char in "/\\\"'"}}
_NULL = re.compile(r"null(?!\w)", re.ASCII)
_WORD_VALUE = re.compile(r"(?:true|false|null)(?!\w)", re.ASCII)
_WORD_VALUES = {"true": True, "false": False, "null": None}

Item = TypeVar("Item")


class FilterSyntaxError(InvalidRequestError):
    """A filter expression is malformed, or compares a field with an impossible value. The message has the position."""

    code = "invalid_filter"

    def __init__(self, position: int, complaint: str) -> None:
        super().__init__(f"Invalid filter at character {position + 1}: {complaint}")


def parse(text: str) -> Expression:
    """Parse a filter. Raises FilterSyntaxError."""
    if len(text) > TEXT_CHARS_MAX:
        raise FilterSyntaxError(TEXT_CHARS_MAX, f"a filter has at most {TEXT_CHARS_MAX} characters")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent, one method for each rule. `_at` is the position of the next symbol, after any space."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._nodes = 0
        self._move_to(0)

    def whole(self) -> Expression:
        found = self._expression(1)
        if self._at < len(self._text):
            raise self._expected("the end of the filter")
        return found

    def _expression(self, depth: int) -> Expression:
        start = self._at
        operator = self._word("an operator such as eq, and or has")
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise FilterSyntaxError(start, f"a filter has at most {NODES_MAX} conditions")
        if depth > DEPTH_MAX:
            raise FilterSyntaxError(start, f"conditions are nested at most {DEPTH_MAX} deep")
        self._symbol("(")
        found = self._operation(operator, start, depth)
        self._symbol(")")
        return found

    def _operation(self, operator: str, start: int, depth: int) -> Expression:
        match operator:
            case "and" | "or":
                parts = self._listed(lambda: self._expression(depth + 1))
                return tree.And(parts) if operator == "and" else tree.Or(parts)
            case "not":
                return tree.Not(self._expression(depth + 1))
            case "eq" | "neq" | "gt" | "gte" | "lt" | "lte" | "like" | "notlike":
                return self._comparison(operator)
            case "in":
                return self._membership()
            case "has":
                field = self._field(operator)
                self._symbol(",")
                return tree.Has(field, str(self._value(field.kind)))
            case "exists":
                return self._existence()
            case "search":
                return self._search()
        raise FilterSyntaxError(start, f"there is no operator {_shown(operator)}")

    def _comparison(self, operator: tree.Comparison) -> tree.Compare:
        field = self._field(operator)
        self._symbol(",")
        at = self._at
        if self._takes(_NULL):
            if operator not in tree.EQUALITY or not tree.takes_null(field):
                raise FilterSyntaxError(at, f"{operator}({field.name}, ...) does not take null")
            return tree.Compare(operator, field, None)
        if field.kind is Kind.JSON and operator in tree.EQUALITY:
            raise FilterSyntaxError(at, f"{field.name} equals only null here; use has, like or search")
        return tree.Compare(operator, field, self._value(Kind.TEXT if operator in tree.PATTERN else field.kind))

    def _membership(self) -> tree.In:
        field = self._field("in")
        self._symbol(",")
        self._symbol("[")
        if self._comes("]"):
            return tree.In(field, ())
        values = self._listed(lambda: self._value(field.kind))
        self._symbol("]")
        return tree.In(field, values)

    def _existence(self) -> tree.Exists:
        field = self._field("exists")
        if not self._comes(","):
            return tree.Exists(field, None)
        if field.kind is not Kind.JSON:
            raise FilterSyntaxError(self._at, f"exists({field.name}) takes no key")
        return tree.Exists(field, str(self._value(Kind.TEXT)))

    def _search(self) -> tree.Search:
        field = None
        if self._next() not in ('"', "'"):
            field = self._field("search")
            self._symbol(",")
        return tree.Search(field, str(self._value(Kind.TEXT)))

    def _field(self, operator: str) -> Field:
        start = self._at
        name = self._word("the name of a field")
        if name not in FIELDS:
            raise FilterSyntaxError(start, f"there is no field {_shown(name)}")
        if operator not in tree.operators_of(FIELDS[name]):
            raise FilterSyntaxError(start, f"{operator} does not apply to {name}")
        return FIELDS[name]

    def _value(self, kind: Kind) -> Value:
        at = self._at
        value = self._scalar()
        if value is None:
            raise FilterSyntaxError(at, f"expected {kind.meaning}, found null")
        try:
            return kind.convert(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise FilterSyntaxError(at, f"expected {kind.meaning}") from None

    def _scalar(self) -> Scalar:
        start = self._at
        if self._next() in ('"', "'"):
            return self._quoted()
        if number := self._takes(_NUMBER):
            value = int(number) if number.lstrip("-").isdigit() else float(number)
            if math.isinf(value):
                raise FilterSyntaxError(start, "the number is too large")
            return value
        if word := self._takes(_WORD_VALUE):
            return _WORD_VALUES[word]
        raise self._expected("a value: a text in quotes, a number, true, false or null")

    def _quoted(self) -> str:
        start, quoted = self._at, self._takes(_QUOTED)
        if quoted is None:
            raise FilterSyntaxError(start, "the text that begins here is not closed")
        text = _ESCAPE.sub(_unescaped, quoted[1:-1])
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")  # joins pairs of \u escapes
        except UnicodeDecodeError:
            raise FilterSyntaxError(start, "the text that begins here holds half a character") from None

    def _listed(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        items = [read()]
        while self._comes(","):
            if len(items) == LIST_MAX:
                raise FilterSyntaxError(self._at, f"a list has at most {LIST_MAX} members")
            items.append(read())
        return tuple(items)

    def _comes(self, symbol: str) -> bool:
        if self._next() != symbol:
            return False
        self._move_to(self._at + 1)
        return True

    def _symbol(self, symbol: str) -> None:
        if not self._comes(symbol):
            raise self._expected(f'"{symbol}"')

    def _word(self, expected: str) -> str:
        word = self._takes(_WORD)
        if word is None:
            raise self._expected(expected)
        return word

    def _takes(self, pattern: re.Pattern[str]) -> str | None:
        """Read what matches the pattern; None if it does not come next."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._move_to(found.end())
        return found[0]

    def _move_to(self, at: int) -> None:
        self._at = _SPACE.match(self._text, at).end()  # type: ignore[union-attr]

    def _next(self) -> str:
        """Return the next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _expected(self, what: str) -> FilterSyntaxError:
        found = _shown(self._next()) if self._next() else "the end"
        return FilterSyntaxError(self._at, f"expected {what}, found {found}")


def _unescaped(escape: re.Match[str]) -> str:
    char = escape[1]
    # Unknown escapes are kept, since `like` uses \% and \_.
    return chr(int(char[1:], 16)) if len(char) > 1 else _ESCAPES.get(char, escape[0])


def _shown(text: str) -> str:
    return f'"{text[:40]}"'


def render(comparison: tree.Compare) -> str:
    """Write a comparison as text, so that `parse(render(comparison)) == comparison`."""
    return f"{comparison.operator}({comparison.field.name}, {literal(comparison.value)})"


def literal(value: Value) -> str:
    if isinstance(value, UUID):
        return f'"{value}"'
    if isinstance(value, datetime):
        return f'"{value.isoformat().replace("+00:00", "Z")}"'
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value) if isinstance(value, float) else scalar_text(value)
