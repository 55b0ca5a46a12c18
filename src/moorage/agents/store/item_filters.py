"""Filters of item searches as SQL. Field names and values are always parameters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from psycopg.types.json import Jsonb

from moorage.kernel.errors import InvalidRequestError

_DEPTH_MAX = 20
_CONDITIONS_MAX = 200
_ORDERS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def compile_filter(wanted: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a condition on `i.value` and its parameters.

    The rules are those of LangGraph's own stores: a value means equality, an object of fields descends a level, and an
    object of operators ($eq, $ne, $gt, $gte, $lt, $lte) compares. Raises InvalidRequestError for any other operator.
    """
    compiler = _Compiler()
    return compiler.fields([], wanted), compiler.values


class _Compiler:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._numbers = count()

    def fields(self, path: list[str], wanted: Mapping[str, Any]) -> str:
        if len(path) >= _DEPTH_MAX:
            raise InvalidRequestError(f"The filter is nested deeper than {_DEPTH_MAX} levels")
        return " AND ".join(["TRUE", *(self._field([*path, name], value) for name, value in wanted.items())])

    def _field(self, path: list[str], wanted: Any) -> str:
        place = f"(i.value #> {self._parameter(path)}::text[])"
        if not isinstance(wanted, Mapping):
            return self._equal(place, wanted)
        if any(name.startswith("$") for name in wanted):
            return " AND ".join(self._operator(place, name, value) for name, value in wanted.items())
        return f"({self.fields(path, wanted)} AND coalesce(jsonb_typeof({place}), '') = 'object')"

    def _operator(self, place: str, operator: str, wanted: Any) -> str:
        if operator == "$eq":
            return self._equal(place, wanted)
        if operator == "$ne":
            return f"NOT ({self._equal(place, wanted)})"
        if operator in _ORDERS:
            return self._ordered(place, _ORDERS[operator], wanted)
        raise InvalidRequestError(
            f"Unsupported operator in filter: {operator}; known are $eq, $ne, {', '.join(_ORDERS)}"
        )

    def _equal(self, place: str, wanted: Any) -> str:
        """Compare for equality. A missing field is null, as with a dictionary's `get`."""
        return f"coalesce({place}, 'null') = {self._parameter(Jsonb(wanted))}::jsonb"

    def _ordered(self, place: str, sign: str, wanted: Any) -> str:
        """Compare numbers with numbers and texts with texts. Other types never match."""
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            parameter = f"{self._parameter(str(wanted))}::numeric"
            return f"CASE WHEN jsonb_typeof({place}) = 'number' THEN {place}::numeric {sign} {parameter} ELSE false END"
        if isinstance(wanted, str):
            text = f"({place} #>> '{{}}') COLLATE \"C\""
            return f"CASE WHEN jsonb_typeof({place}) = 'string' THEN {text} {sign} {self._parameter(wanted)} ELSE false END"
        raise InvalidRequestError("Operators of order in a filter compare with a number or a text")

    def _parameter(self, value: Any) -> str:
        if len(self.values) > _CONDITIONS_MAX:
            raise InvalidRequestError(f"The filter has more than {_CONDITIONS_MAX // 2} conditions")
        name = f"filter_{next(self._numbers)}"
        self.values[name] = value
        return f"%({name})s"
