"""Filters as text: a recursive-descent parser, and a writer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import ClassVar, TypeVar
from uuid import UUID

from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language.tree import (
    EQUALITY,
    FIELDS,
    PATTERN,
    And,
    Compare,
    Comparison,
    Exists,
    Expression,
    Field,
    Has,
    In,
    Kind,
    Not,
    Or,
    Scalar,
    Search,
    Value,
    operators_of,
    takes_null,
)
from moorage.traces.filter_language.values import CONVERT, scalar_text

TEXT_CHARS_MAX = 64_000
DEPTH_MAX = 16
NODES_MAX = 128
LIST_MAX = 1000

Item = TypeVar("Item")


class FilterSyntaxError(InvalidRequestError):
    """A filter expression is malformed, or compares a field with an impossible value. The message has the position."""

    code = "invalid_filter"

    def __init__(self, position: int, complaint: str) -> None:
        super().__init__(f"Invalid filter at character {position + 1}: {complaint}")
        self.position = position


def parse(text: str) -> Expression:
    """Raises FilterSyntaxError."""
    if len(text) > TEXT_CHARS_MAX:
        raise FilterSyntaxError(TEXT_CHARS_MAX, f"a filter has at most {TEXT_CHARS_MAX} characters")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent, one method for each rule. `_at` is the current position."""

    _WORD: ClassVar = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
    _NUMBER: ClassVar = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?(?![\w.])")
    _WORD_VALUES: ClassVar[dict[str, Scalar]] = {"true": True, "false": False, "null": None}
    _ESCAPES: ClassVar = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/"} | {c: c for c in "\\\"'"}

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nodes = 0

    def whole(self) -> Expression:
        found = self._expression(1)
        self._skip_space()
        if self._at < len(self._text):
            raise self._expected("the end of the filter")
        return found

    def _expression(self, depth: int) -> Expression:
        self._skip_space()
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
            case "and":
                return And(tuple(self._listed(lambda: self._expression(depth + 1))))
            case "or":
                return Or(tuple(self._listed(lambda: self._expression(depth + 1))))
            case "not":
                return Not(self._expression(depth + 1))
            case "eq" | "neq" | "gt" | "gte" | "lt" | "lte" | "like" | "notlike":
                return self._comparison(operator)
            case "in":
                return self._membership()
            case "has":
                field = self._field(operator)
                self._symbol(",")
                return Has(field, str(self._value(field.kind)))
            case "exists":
                return self._existence()
            case "search":
                return self._search()
        raise FilterSyntaxError(start, f"there is no operator {_shown(operator)}")

    def _comparison(self, operator: Comparison) -> Compare:
        field = self._field(operator)
        at = self._comma()
        if self._takes_null(at):
            if operator not in EQUALITY or not takes_null(field):
                raise FilterSyntaxError(at, f"{operator}({field.name}, ...) does not take null")
            return Compare(operator, field, None)
        if field.kind is Kind.JSON and operator in EQUALITY:
            raise FilterSyntaxError(at, f"{field.name} equals only null here; use has, like or search")
        return Compare(operator, field, self._value(Kind.TEXT if operator in PATTERN else field.kind))

    def _membership(self) -> In:
        field = self._field("in")
        self._symbol(",")
        self._symbol("[")
        self._skip_space()
        if self._next() == "]":
            self._at += 1
            return In(field, ())
        values = tuple(self._listed(lambda: self._value(field.kind), most=LIST_MAX))
        self._symbol("]")
        return In(field, values)

    def _existence(self) -> Exists:
        field = self._field("exists")
        self._skip_space()
        if self._next() != ",":
            return Exists(field, None)
        at = self._comma()
        if field.kind is not Kind.JSON:
            raise FilterSyntaxError(at, f"exists({field.name}) takes no key")
        return Exists(field, str(self._value(Kind.TEXT)))

    def _search(self) -> Search:
        self._skip_space()
        if self._next() in "\"'":
            return Search(None, self._quoted())
        field = self._field("search")
        self._symbol(",")
        return Search(field, str(self._value(Kind.TEXT)))

    def _field(self, operator: str) -> Field:
        self._skip_space()
        start = self._at
        name = self._word("the name of a field")
        field = FIELDS.get(name)
        if field is None:
            raise FilterSyntaxError(start, f"there is no field {_shown(name)}")
        if operator not in operators_of(field):
            raise FilterSyntaxError(start, f"{operator} does not apply to {name}")
        return field

    def _value(self, kind: Kind) -> Value:
        self._skip_space()
        at = self._at
        value = self._scalar()
        if value is None:
            raise FilterSyntaxError(at, f"expected {kind.value}, found null")
        try:
            return CONVERT[kind](value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise FilterSyntaxError(at, f"expected {kind.value}") from None

    def _takes_null(self, at: int) -> bool:
        if self._text.startswith("null", at) and self._WORD.match(self._text, at)[0] == "null":  # type: ignore[index]
            self._at = at + len("null")
            return True
        return False

    def _scalar(self) -> Scalar:
        self._skip_space()
        if self._next() in ('"', "'"):
            return self._quoted()
        start = self._at
        if number := self._NUMBER.match(self._text, start):
            self._at = number.end()
            value = int(number[0]) if number[0].lstrip("-").isdigit() else float(number[0])
            if math.isinf(value):
                raise FilterSyntaxError(start, "the number is too large")
            return value
        word = self._WORD.match(self._text, start)
        if word is None or word[0] not in self._WORD_VALUES:
            raise self._expected("a value: a text in quotes, a number, true, false or null")
        self._at = word.end()
        return self._WORD_VALUES[word[0]]

    def _quoted(self) -> str:
        start, quote = self._at, self._next()
        self._at += 1
        pieces: list[str] = []
        while (char := self._next()) != quote:
            if not char:
                raise FilterSyntaxError(start, "the text that begins here is not closed")
            self._at += 1
            pieces.append(self._escaped() if char == "\\" else char)
        self._at += 1
        try:
            return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16")  # joins pairs of \u escapes
        except UnicodeDecodeError:
            raise FilterSyntaxError(start, "the text that begins here holds half a character") from None

    def _escaped(self) -> str:
        char = self._next()
        self._at += 1
        if char == "u" and (digits := re.compile(r"[0-9A-Fa-f]{4}").match(self._text, self._at)):
            self._at = digits.end()
            return chr(int(digits[0], 16))
        # Unknown escapes are kept, since `like` uses \% and \_.
        return self._ESCAPES.get(char, "\\" + char)

    def _listed(self, read: Callable[[], Item], most: int = NODES_MAX) -> Iterator[Item]:
        yield read()
        count = 1
        while self._comes(","):
            count += 1
            if count > most:
                raise FilterSyntaxError(self._at, f"a list has at most {most} members")
            yield read()

    def _comma(self) -> int:
        """Read a comma; returns the position of the next argument."""
        self._symbol(",")
        self._skip_space()
        return self._at

    def _comes(self, symbol: str) -> bool:
        self._skip_space()
        if self._next() != symbol:
            return False
        self._at += 1
        return True

    def _symbol(self, symbol: str) -> None:
        if not self._comes(symbol):
            raise self._expected(f'"{symbol}"')

    def _word(self, expected: str) -> str:
        word = self._WORD.match(self._text, self._at)
        if word is None:
            raise self._expected(expected)
        self._at = word.end()
        return word[0]

    def _next(self) -> str:
        """Return the next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while self._next().isspace():
            self._at += 1

    def _expected(self, what: str) -> FilterSyntaxError:
        found = _shown(self._next()) if self._next() else "the end"
        return FilterSyntaxError(self._at, f"expected {what}, found {found}")


def _shown(text: str) -> str:
    return f'"{text[:40]}"'


def render(expression: Expression) -> str:
    """Write a tree as text, so that `parse(render(tree)) == tree`."""
    match expression:
        case And(parts):
            return _call("and", *map(render, parts))
        case Or(parts):
            return _call("or", *map(render, parts))
        case Not(part):
            return _call("not", render(part))
        case Compare(operator, field, value):
            return _call(operator, field.name, _literal(value))
        case In(field, values):
            return _call("in", field.name, f"[{', '.join(map(_literal, values))}]")
        case Has(field, text):
            return _call("has", field.name, _literal(text))
        case Exists(field, key):
            return _call("exists", field.name, *([] if key is None else [_literal(key)]))
        case Search(named, text):
            return _call("search", *([named.name] if named else []), _literal(text))


def _call(operator: str, *arguments: str) -> str:
    return f"{operator}({', '.join(arguments)})"


def _literal(value: Value) -> str:
    if isinstance(value, UUID):
        return f'"{value}"'
    if isinstance(value, datetime):
        return f'"{value.isoformat().replace("+00:00", "Z")}"'
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return scalar_text(value) if not isinstance(value, float) else repr(value)
