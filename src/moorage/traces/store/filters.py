"""Filters in SQL: an expression over the columns of `trace_runs`, with every value of the caller as a bound parameter.

An expression is never NULL, so that `not` works as expected. Conditions on key columns are written bare, so that the
engine can use the key; all others are wrapped if they can be NULL. Cheap conditions come before expensive ones: the
engine evaluates a conjunction from left to right, and only on the remaining rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language.tree import (
    FIELDS,
    And,
    Compare,
    Exists,
    Expression,
    Field,
    Has,
    In,
    Kind,
    Not,
    Or,
    PairGroup,
    Scalar,
    Search,
    Value,
)
from moorage.traces.filter_language.values import json_leaves, scalar_text, search_tokens
from moorage.traces.records.words import USAGE_FIELDS
from moorage.traces.store.conditions import Condition, RunScope, time_text
from moorage.traces.store.json_nodes import all_nodes, escaped, text_of, unlisted, walked
from moorage.traces.store.run_columns import INDEXED_DIGITS, INDEXED_LETTERS, INDEXED_PAIRS, by_traces, runs_for

# Limits of the SQL of all filters of a search. The engine plans a statement before it reads, and a page takes several
# statements. At these limits the worst cases take 2 to 4 s of CPU on a busy machine, without any limits 8 s.
_SQL_CHARS_MAX = 32_000
_LOOKUPS_MAX = 48

_KEY_COLUMNS = frozenset({"id", "session_id", "start_time"})
_COLUMNS = {
    "latency": "latency_s",
    "first_token_latency": "dateDiff('microsecond', start_time, first_token_time) / 1e6",
    "execution_order": "if(is_root, 1, 2)",
    "metadata": "nullIf(metadata_json, '{}')",
    **{name: f"toFloat64({name})" for name in ("total_cost", "prompt_cost", "completion_cost")},
}
_TYPES = {
    Kind.ID: "UUID",
    Kind.TEXT: "String",
    Kind.SCALAR: "String",
    Kind.TIME: "DateTime64(6, 'UTC')",
    Kind.DURATION: "Float64",
    Kind.NUMBER: "Float64",
    Kind.FLAG: "Bool",
    Kind.TAGS: "String",
    Kind.JSON: "String",
}
_SIGNS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "like": "LIKE"}
_INVERSE = {"neq": "eq", "notlike": "like"}

_INDEXED_PAIRS_MAX = 16
_THREAD_KEY = "\0thread"
# An index of words is scanned for a part of a word only if the part is selective enough.
_INDEXED_WORD = re.compile(r"[A-Za-z0-9]{4,}")
_KEYS_WALKED_MAX = 8


def compile_filter(expression: Expression, scope: RunScope, *, prefix: str, indexed: bool = False) -> Condition:
    """Compile a filter. Its parameters' names begin with `prefix`, so that one statement can have several filters.

    `indexed`: the caller looks up candidates first. They are then returned separately, and the SQL only confirms them.
    Raises InvalidRequestError for a filter that is within the limits of the language but too complex for the engine.
    """
    compiler = _Compiler(scope, prefix, indexed=indexed)
    sql = compiler.expression(expression, required=True)
    check_cost(sql)
    return Condition(sql, compiler.parameters, compiler.candidates, compiler.proved)


def compile_trace_filter(expression: Expression, scope: RunScope, *, prefix: str) -> Condition:
    """Compile the condition that the root of a run's trace meets the expression."""
    return _of_trace(And((Compare("eq", FIELDS["is_root"], True), expression)), scope, prefix)


def compile_tree_filter(expression: Expression, scope: RunScope, *, prefix: str) -> Condition:
    """Compile the condition that any run of a run's trace meets the expression."""
    return _of_trace(expression, scope, prefix)


def _of_trace(expression: Expression, scope: RunScope, prefix: str) -> Condition:
    found = compile_filter(expression, replace(scope, runs=scope.traces), prefix=prefix)
    runs = runs_for("trace_id", found.sql)
    sql = f"ifNull(trace_id IN (SELECT trace_id FROM {runs} WHERE {scope.traces} AND {found.sql}), 0)"
    return Condition(sql, found.parameters)


def check_cost(sql: str) -> None:
    """Raises InvalidRequestError for filters that are within the limits of the language but too expensive to plan.

    Counting words of the SQL is safe, since it contains no values of the caller.
    """
    if sql.count("SELECT ") > _LOOKUPS_MAX:
        raise InvalidRequestError(
            f"The filters are too complex: they look up ids, threads, metadata, feedback, tokens or words more than "
            f"{_LOOKUPS_MAX} times; name several values in one condition, as in(field, [...])"
        )
    if len(sql) > _SQL_CHARS_MAX:
        raise InvalidRequestError(
            "The filters are too complex: use fewer conditions on inputs, outputs, metadata and tokens"
        )


def text_of_metadata(key: str) -> str:
    """Write the value of a metadata key as text for comparison; empty if there is none. `key` is SQL."""
    return text_of(f"JSONExtractRaw(ifNull(metadata_json, ''), {key})")


def has_any(pairs: Iterable[str]) -> str:
    """Write the condition that a row of `trace_run_rows` has one of the metadata pairs (SQL); an index answers it."""
    first, *others = pairs
    return f"({' OR '.join([f'has({INDEXED_PAIRS} AS pairs, {first})', *(f'has(pairs, {each})' for each in others)])})"


def like_pattern(pattern: str) -> str:
    """Drop a lone backslash from the end of a pattern, which the engine refuses."""
    return pattern + "\\" if (len(pattern) - len(pattern.rstrip("\\"))) % 2 else pattern


class _Compiler:
    """Compiler of one filter. `required`: every selected run must meet the node."""

    def __init__(self, scope: RunScope, prefix: str, *, indexed: bool) -> None:
        self.parameters: dict[str, Any] = {}
        self.candidates = ""
        self.proved = ""
        self._scope = scope
        self._prefix = prefix
        self._indexed_apart = indexed

    def expression(self, node: Expression, *, required: bool = False) -> str:
        match node:
            case And(parts):
                return self._all(parts, required=required)
            case Or(parts):
                return f"({' OR '.join(map(self.expression, parts))})"
            case Not(part):
                return f"(NOT {self.expression(part)})"
            case Compare() | In() if node.field.pair:
                return self._pairs(node.field.pair, [node], required=required)
            case Compare():
                return self._comparison(node, required=required)
            case In():
                return self._membership(node, required=required)
            case Has():
                return self._has(node, required=required)
            case Exists():
                return self._exists(node)
            case Search():
                return self._search(node, required=required)

    def _all(self, parts: Sequence[Expression], *, required: bool) -> str:
        cheap, dear = list[str](), list[str]()
        paired: dict[PairGroup, list[Compare | In]] = {}
        for part in parts:
            match part:
                case Compare() | In() if part.field.pair:
                    paired.setdefault(part.field.pair, []).append(part)
                case Compare(field=Field(kind=kind)) | In(field=Field(kind=kind)) if kind is not Kind.JSON:
                    cheap.append(self.expression(part, required=required))
                case _:
                    dear.append(self.expression(part, required=required))
        cheap += [self._pairs(group, conditions, required=required) for group, conditions in paired.items()]
        return f"({' AND '.join(cheap + dear)})"

    def _bind(self, value: Any, kind: str) -> str:
        name = f"{self._prefix}{len(self.parameters)}"
        self.parameters[name] = value
        return f"{{{name}:{kind}}}"

    def _bound(self, value: Value, kind: Kind) -> str:
        return self._bind(_plain(value, kind), _TYPES[kind])

    # --- fields of the run itself -------------------------------------------------------------------------------------

    def _comparison(self, node: Compare, *, required: bool = False) -> str:
        if node.operator in _INVERSE:
            return f"(NOT {self._comparison(_inverse(node))})"
        field = node.field
        if node.value is None:
            return f"(NOT {self._exists(Exists(field, None))})"
        if field.kind is Kind.TAGS:
            return self._tag(node)
        if field.name in USAGE_FIELDS:
            return self._usage(node)
        if field.name in {"id", "trace_id"}:
            return self._located(field, [node.value])
        if field.name == "thread_id" and node.operator == "eq":
            return self._in_thread(node, [node.value], required=required)
        holds = self._holds(_column(field), node)
        return holds if field.name in _KEY_COLUMNS else f"ifNull({holds}, 0)"

    def _membership(self, node: In, *, required: bool) -> str:
        field = node.field
        if field.kind is Kind.TAGS:
            return f"hasAny(tags, {self._bind(list(node.values), 'Array(String)')})"
        if field.name in {"id", "trace_id"}:
            return self._located(field, node.values)
        if field.name in USAGE_FIELDS:
            return self._any(Compare("eq", field, value) for value in node.values)
        if field.name == "thread_id":
            return self._in_thread(node, node.values, required=required)
        holds = self._holds(_column(field), node)
        return holds if field.name in _KEY_COLUMNS else f"ifNull({holds}, 0)"

    def _any(self, parts: Any) -> str:
        found = [self.expression(part) for part in parts]
        return f"({' OR '.join(found)})" if found else "false"

    def _holds(self, value: str, node: Compare | In) -> str:
        """Write a positive comparison of an SQL value with a constant other than null. NULL if the value is NULL."""
        kind = node.field.kind
        if isinstance(node, In):
            if not node.values:
                return "false"
            return f"{value} IN {self._bind([_plain(each, kind) for each in node.values], f'Array({_TYPES[kind]})')}"
        if node.operator == "like":
            return f"{value} LIKE {self._bind(like_pattern(str(node.value)), 'String')}"
        ordered = node.operator != "eq"
        if kind is Kind.SCALAR and ordered and _is_number(node.value):
            # Text compares as text, but for a number the caller expects 9 before 10.
            return f"toFloat64OrNull({value}) {_SIGNS[node.operator]} {self._bound(node.value, Kind.NUMBER)}"
        return f"{value} {_SIGNS[node.operator]} {self._bound(node.value, kind)}"

    def _located(self, field: Field, values: Sequence[Value]) -> str:
        """Select by id. A subselect looks up the places of the runs first, since the table is not ordered by ids."""
        ids = self._bind([str(value) for value in values], "Array(UUID)")
        table, by_key = ("trace_run_keys", f"id IN {ids}") if field.name == "id" else ("trace_keys", by_traces(ids))
        found = f"SELECT session_id, start_time, id FROM {table} WHERE tenant_id = {{tenant_id:UUID}} AND {by_key}"
        return f"((session_id, start_time, id) IN ({found}))"

    def _in_thread(self, node: Compare | In, threads: Sequence[Value], *, required: bool) -> str:
        # The index of metadata also contains the thread, under a key that no metadata uses.
        indexed = self._indexed([_THREAD_KEY], [str(thread) for thread in threads], required=required)
        holds = f"ifNull({self._holds('thread_id', node)}, 0)"
        return f"({' AND '.join(filter(None, [indexed, holds]))})"

    def _usage(self, node: Compare) -> str:
        """Write the run's own tokens or costs; for a run without any, the sum over its descendants."""
        own, total = _column(node.field), self._holds(f"sum({_column(node.field)})", node)
        return f"""if(isNotNull({own}), ifNull({self._holds(own, node)}, 0), id IN (
            SELECT arrayJoin(parent_run_ids) AS ancestor FROM {runs_for("parent_run_ids", own)}
            WHERE {self._scope.traces} AND isNotNull({own}) GROUP BY ancestor HAVING {total}))"""

    def _tag(self, node: Compare) -> str:
        if node.operator == "like":
            return f"arrayExists(tag -> {self._holds('tag', node)}, tags)"
        return f"has(tags, {self._bind(node.value, 'String')})"

    def _exists(self, node: Exists) -> str:
        field = node.field
        if node.key is not None:
            return self._has_key(field, node.key)
        if field.kind is Kind.TAGS:
            return "notEmpty(tags)"
        if field.name in USAGE_FIELDS:
            return f"""(isNotNull({field.name}) OR id IN (
                SELECT arrayJoin(parent_run_ids) FROM {runs_for("parent_run_ids", field.name)}
                WHERE {self._scope.traces} AND isNotNull({field.name})))"""
        return f"isNotNull({_column(field)})"

    # --- JSON ---------------------------------------------------------------------------------------------------------

    def _has_key(self, field: Field, key: str) -> str:
        if field.name == "metadata":
            return f"JSONHas(ifNull(metadata_json, ''), {self._bind(key, 'String')})"
        return f"notEmpty({walked(field.name, key, self._bind)})"

    def _has(self, node: Has, *, required: bool) -> str:
        if node.field.kind is Kind.TAGS:
            return f"has(tags, {self._bind(node.value, 'String')})"
        column = "metadata_json" if node.field.name == "metadata" else node.field.name
        found = [(path, value) for path, value in json_leaves(orjson.loads(node.value)) if path]
        leaves = [self._has_leaf(column, path, value, required=required) for path, value in found]
        return f"({' AND '.join(leaves)})" if leaves else self._exists(Exists(node.field, None))

    def _has_leaf(self, column: str, path: Sequence[str], value: Any, *, required: bool) -> str:
        keys = ", ".join(self._bind(key, "String") for key in path)
        found = f"JSONExtractRaw(ifNull({column}, ''), {keys})"
        if isinstance(value, dict | list):
            # JSONExtractRaw normalises both sides.
            return f"({found} = JSONExtractRaw({self._bind(orjson.dumps(value).decode(), 'String')}))"
        exact = f"({found} != '' AND {text_of(found)} = {self._bind(scalar_text(value), 'String')})"
        is_pair = column == "metadata_json" and len(path) == 1
        indexed = self._indexed([path[0]], [value], required=required) if is_pair else ""
        return " AND ".join(filter(None, [indexed, exact]))

    def _indexed(self, keys: Sequence[str], values: Sequence[Scalar], *, required: bool) -> str:
        """Select runs with a row that has one of the pairs. Includes runs that only had it before a PATCH. Empty for
        too many pairs.
        """
        pairs = [f"{key}={scalar_text(value)}" for key in keys for value in values]
        if not 0 < len(pairs) <= _INDEXED_PAIRS_MAX:
            return ""
        return self._candidates(has_any(self._bind(pair, "String") for pair in pairs), required=required)

    def _candidates(self, indexed: str, *, required: bool) -> str:
        """Select runs by keys from an index. The index must not be used in a merged read, where it would lose runs."""
        if self._indexed_apart and required:
            # Only one indexed condition: another one may hold for another row of the same run.
            self.candidates = self.candidates or indexed
            return ""
        return f"""(session_id, start_time, id) IN (
            SELECT session_id, start_time, id FROM trace_run_rows WHERE {self._scope.runs} AND {indexed})"""

    # --- pairs --------------------------------------------------------------------------------------------------------

    def _pairs(self, group: PairGroup, conditions: Sequence[Compare | In], *, required: bool) -> str:
        """Read the conditions of one PairGroup together."""
        positive = [each for each in conditions if not _is_negative(each)]
        negative = [each for each in conditions if _is_negative(each)]
        bound, apart = positive, negative
        if any(each.field.is_key for each in positive):
            bound = positive + [each for each in negative if not each.field.is_key]
            apart = [each for each in negative if each.field.is_key]
        clauses = [self._pair(group, bound, required=required)] if bound else []
        clauses += [f"(NOT {self._pair(group, [_inverse(each)])})" for each in apart]
        return " AND ".join(clauses)

    def _pair(self, group: PairGroup, conditions: Sequence[Compare | In], *, required: bool = False) -> str:
        """Write the condition that at least one pair meets all conditions."""
        if group is PairGroup.FEEDBACK:
            return self._feedback(conditions)
        keys = [each for each in conditions if each.field.is_key]
        values = [each for each in conditions if not each.field.is_key]
        named = _named_keys(keys)
        if group is PairGroup.METADATA:
            return self._metadata(keys, values, named, required=required)
        column = group.value
        if named == []:
            return "false"
        if named is not None and len(named) <= _KEYS_WALKED_MAX:
            found = ", ".join(unlisted(walked(column, key, self._bind), keep=True) for key in named)
            tested = self._pair_holds("", text_of("node"), [], values)
            return f"arrayExists(node -> {tested}, arrayConcat({found}))"
        tested = self._pair_holds("node.1", text_of("node.2"), keys, values)
        return f"arrayExists(node -> node.1 != '' AND {tested}, {all_nodes(column)})"

    def _metadata(
        self, keys: Sequence[Compare | In], values: Sequence[Compare | In], named: list[str] | None, *, required: bool
    ) -> str:
        clauses = []
        equal = next((each for each in values if isinstance(each, In) or each.operator == "eq"), None)
        if named is not None and equal is not None:
            wanted = equal.values if isinstance(equal, In) else (equal.value,)
            scalars = [value for value in wanted if not isinstance(value, UUID | datetime)]
            clauses.append(self._indexed(named, scalars, required=required))
        clauses.append(self._pairs_hold(keys, values, named))
        return f"({' AND '.join(filter(None, clauses))})"

    def _pairs_hold(self, keys: Sequence[Compare | In], values: Sequence[Compare | In], named: list[str] | None) -> str:
        if named is not None and len(named) == 1:
            node = f"JSONExtractRaw(ifNull(metadata_json, ''), {self._bind(named[0], 'String')})"
            return f"({node} != '' AND {self._pair_holds('', text_of(node), [], values)})"
        tested = self._pair_holds("pair.1", text_of("pair.2"), keys, values)
        return f"arrayExists(pair -> {tested}, JSONExtractKeysAndValuesRaw(ifNull(metadata_json, '')))"

    def _pair_holds(self, key: str, value: str, keys: Sequence[Compare | In], values: Sequence[Compare | In]) -> str:
        tests = [self._holds(key, each) for each in keys] + [self._value_holds(value, each) for each in values]
        return " AND ".join(tests) or "true"

    def _value_holds(self, value: str, node: Compare | In) -> str:
        """Compare a JSON value; null is an ordinary value here."""
        if _is_negative(node):
            return f"(NOT {self._value_holds(value, _inverse(node))})"
        if isinstance(node, Compare) and node.value is None:
            return f"{value} {'=' if node.operator == 'eq' else '!='} 'null'"
        return f"ifNull({self._holds(value, node)}, 0)"

    def _feedback(self, conditions: Sequence[Compare | In]) -> str:
        tests = [self._feedback_holds(each) for each in conditions]
        return f"""id IN (SELECT assumeNotNull(run_id) FROM feedback
            WHERE {self._scope.feedback} AND isNotNull(run_id) AND {" AND ".join(tests)})"""

    def _feedback_holds(self, node: Compare | In) -> str:
        column = _FEEDBACK_COLUMNS[node.field.name]
        if isinstance(node, Compare) and node.value is None:
            return f"{'isNull' if node.operator == 'eq' else 'isNotNull'}({column})"
        if _is_negative(node):
            return f"(NOT {self._feedback_holds(_inverse(node))})"
        return f"ifNull({self._holds(column, node)}, 0)"

    # --- search -------------------------------------------------------------------------------------------------------

    def _search(self, node: Search, *, required: bool) -> str:
        if node.field is None:
            columns = ["inputs", "outputs"]
        elif node.field.kind is Kind.TAGS:
            columns = ["arrayStringConcat(tags, '\\n')"]
        else:
            columns = [_column(node.field)]
        words = search_tokens(node.text)
        tests = [f"({' OR '.join(self._finds(column, word) for column in columns)})" for word in words]
        indexed = [word for word in words if _INDEXED_WORD.fullmatch(word)]
        if indexed and {*columns} <= {"inputs", "outputs"}:
            # Only one word: another word may be in another row of the same run.
            word = max(indexed, key=len).lower()
            found = f"{INDEXED_LETTERS if word.isalpha() else INDEXED_DIGITS} LIKE {self._bind(f'%{word}%', 'String')}"
            tests.insert(0, self._candidates(found, required=required))
            if self.candidates == found and words == indexed and len(words) == 1 and len(columns) == 2:
                self.proved = tests[-1]
        return f"({' AND '.join(filter(None, tests))})" if tests else "true"

    def _finds(self, column: str, word: str) -> str:
        if word.isascii():
            return f"ifNull(positionCaseInsensitive({column}, {self._bind(word, 'String')}) > 0, 0)"
        # Some clients encode JSON with \u escapes.
        spelled = dict.fromkeys([word, *(escaped(form) for form in (word, word.lower(), word.upper()))])
        found = [f"positionCaseInsensitiveUTF8({column}, {self._bind(form, 'String')}) > 0" for form in spelled]
        return f"ifNull({' OR '.join(found)}, 0)"


_FEEDBACK_COLUMNS = {
    "feedback_key": "key",
    "feedback_score": "score",
    "feedback_value": "if(startsWith(value, '\"'), JSONExtractString(value), nullIf(value, 'null'))",
    "feedback_comment": "comment",
    "feedback_source": "source_type",
}


def _column(field: Field) -> str:
    return _COLUMNS.get(field.name, field.name)


def _plain(value: Value, kind: Kind) -> Any:
    """Convert a value to the form in which it is bound."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, UUID):
        return str(value)
    return scalar_text(value) if kind is Kind.SCALAR else value


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_negative(node: Compare | In) -> bool:
    """Tell whether a condition is negative. `neq(x, null)` is not: it requires a value."""
    return isinstance(node, Compare) and node.operator in _INVERSE and node.value is not None


def _inverse(node: Compare | In) -> Compare:
    assert isinstance(node, Compare)
    return Compare(_INVERSE[node.operator], node.field, node.value)  # type: ignore[arg-type]


def _named_keys(keys: Sequence[Compare | In]) -> list[str] | None:
    """List the keys if a single condition names them exactly; else None."""
    match keys:
        case [Compare(operator="eq", value=str(name))]:
            return [name]
        case [In(values=names)]:
            return [str(name) for name in names]
    return None
