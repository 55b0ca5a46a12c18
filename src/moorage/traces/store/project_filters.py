"""Filters on projects in SQL: the filter language of runs, restricted to the fields that projects have.

An expression is never NULL, so that `not` works as expected. Every value of the caller is a bound parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from moorage.kernel.encoding import decode
from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language import tree
from moorage.traces.filter_language.tree import scalar_text
from moorage.traces.store.filters import like_pattern

_COLUMNS = {
    "id": "id",
    "session_id": "id",
    "name": "name",
    "start_time": "start_time",
    "end_time": "end_time",
    "trace_tier": "trace_tier",
    "metadata": "extra->'metadata'",
    "tags": "extra->'tags'",
    "extra": "extra",
}
_SIGNS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "like": "LIKE"}
_INVERSE = {"neq": "eq", "notlike": "like"}
_PAIRS = """EXISTS (SELECT FROM jsonb_each_text(
    CASE jsonb_typeof(extra->'metadata') WHEN 'object' THEN extra->'metadata' ELSE '{{}}' END) AS pair WHERE {})"""
_TAGS = """EXISTS (SELECT FROM jsonb_array_elements_text(
    CASE jsonb_typeof(extra->'tags') WHEN 'array' THEN extra->'tags' ELSE '[]' END) AS tag WHERE {})"""
_PAIR_PARTS = {"metadata_key": "pair.key", "metadata_value": "coalesce(pair.value, 'null')"}


def compile_project_filter(expression: tree.Expression) -> tuple[str, dict[str, Any]]:
    """Compile a condition on `projects`, and its values. Raises InvalidRequestError for fields that projects lack."""
    compiler = _Compiler()
    return compiler.expression(expression), compiler.values


class _Compiler:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def expression(self, node: tree.Expression) -> str:
        match node:
            case tree.And(parts):
                return self._all(parts)
            case tree.Or(parts):
                return f"({' OR '.join(map(self.expression, parts))})"
            case tree.Not(part):
                return f"(NOT {self.expression(part)})"
            case tree.Compare() | tree.In():
                return self._pairs([node]) if node.field.pair else self._compared(node)
            case tree.Has():
                return self._has(node)
            case tree.Exists():
                return self._exists(node)
            case tree.Search():
                return self._search(node)

    def _all(self, parts: Sequence[tree.Expression]) -> str:
        paired = [part for part in parts if isinstance(part, tree.Compare | tree.In) and part.field.pair]
        clauses = [self.expression(part) for part in parts if part not in paired]
        if paired:
            clauses.append(self._pairs(paired))
        return f"({' AND '.join(clauses)})"

    def _pairs(self, conditions: Sequence[tree.Compare | tree.In]) -> str:
        """Read the conditions of one `PairGroup` together."""
        for each in conditions:
            if each.field.pair is not tree.PairGroup.METADATA:
                raise _unknown(each.field)
        bound = [each for each in conditions if not _is_negative(each)]
        apart = [each for each in conditions if _is_negative(each)]
        if any(each.field.is_key for each in bound):
            bound += [each for each in apart if not each.field.is_key]
            apart = [each for each in apart if each.field.is_key]
        clauses = [self._pair(bound)] if bound else []
        clauses += [f"(NOT {self._pair([_inverse(each)])})" for each in apart]
        return f"({' AND '.join(clauses)})"

    def _pair(self, conditions: Sequence[tree.Compare | tree.In]) -> str:
        tests = [self._holds(_PAIR_PARTS[each.field.name], each) for each in conditions]
        return _PAIRS.format(" AND ".join(tests))

    def _compared(self, node: tree.Compare | tree.In) -> str:
        column = _column(node.field)
        if node.field.kind is tree.Kind.TAGS:
            return self._tagged(node)
        if isinstance(node, tree.Compare) and node.operator in {"like", "notlike"}:
            column = f"({column})::text"
        return self._holds(column, node)

    def _tagged(self, node: tree.Compare | tree.In) -> str:
        if _is_negative(node):
            return f"(NOT {self._tagged(_inverse(node))})"
        return _TAGS.format(self._holds("tag", node))

    def _holds(self, value: str, node: tree.Compare | tree.In) -> str:
        as_text = node.field.pair is not None
        if isinstance(node, tree.In):
            wanted = [scalar_text(each) if as_text else each for each in node.values]  # type: ignore[arg-type]
            return f"coalesce({value} = ANY({self._bind(wanted)}), false)" if wanted else "false"
        if node.operator in _INVERSE:
            return f"(NOT {self._holds(value, _inverse(node))})"
        if node.value is None and not as_text:
            return f"({value} IS NULL)"
        given = scalar_text(node.value) if as_text else node.value  # type: ignore[arg-type]
        if node.operator == "like":
            given = like_pattern(str(given))
        return f"coalesce({value} {_SIGNS[node.operator]} {self._bind(given)}, false)"

    def _has(self, node: tree.Has) -> str:
        wanted = [node.value] if node.field.name == "tags" else decode(node.value)
        return f"coalesce({_column(node.field)} @> {self._bind(Jsonb(wanted))}, false)"

    def _exists(self, node: tree.Exists) -> str:
        if node.key is None:
            return f"({_column(node.field)} IS NOT NULL)"
        return f"coalesce(jsonb_exists({_column(node.field)}, {self._bind(node.key)}), false)"

    def _search(self, node: tree.Search) -> str:
        column = "concat_ws(' ', name, description)" if node.field is None else f"({_column(node.field)})::text"
        return f"coalesce(position(lower({self._bind(node.text)}) IN lower({column})) > 0, false)"

    def _bind(self, value: Any) -> str:
        name = f"f{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"


def _column(field: tree.Field) -> str:
    column = _COLUMNS.get(field.name)
    if column is None:
        raise _unknown(field)
    return column


def _unknown(field: tree.Field) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid filter: a session has no {field.name}; it has {', '.join(_COLUMNS)}")


def _is_negative(node: tree.Compare | tree.In) -> bool:
    return isinstance(node, tree.Compare) and node.operator in _INVERSE


def _inverse(node: tree.Compare | tree.In) -> tree.Compare:
    assert isinstance(node, tree.Compare)
    return tree.Compare(_INVERSE[node.operator], node.field, node.value)  # type: ignore[arg-type]
