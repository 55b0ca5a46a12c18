"""Filters in SQL: an expression over the columns of `trace_runs`, with every value of the caller as a bound parameter.

An expression is never NULL, so that `not` works as expected. Conditions on key columns are written bare, so that the
engine can use the key; all others are wrapped if they can be NULL. Cheap conditions come before expensive ones: the
engine evaluates a conjunction from left to right, and only on the remaining rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeGuard
from uuid import UUID

import orjson

from moorage.kernel.errors import InvalidRequestError
from moorage.traces.filter_language import tree
from moorage.traces.filter_language.tree import Compare, Expression, Field, In, Kind, PairGroup, Value, scalar_text
from moorage.traces.records.words import USAGE_FIELDS
from moorage.traces.store.json_nodes import all_nodes, text_of, unlisted, walked
from moorage.traces.store.run_columns import INDEXED_DIGITS, INDEXED_LETTERS, INDEXED_PAIRS, runs_for
from moorage.traces.store.selections import Condition, RunScope, time_text

# Limits of the SQL of all filters of a search. The engine plans a statement before it reads, and a page takes several
# statements. At these limits the worst cases take 2 to 4 s of CPU on a busy machine, without any limits 8 s.
_SQL_CHARS_MAX = 32_000
_LOOKUPS_MAX = 48

_KEY_COLUMNS = frozenset({"id", "session_id", "start_time"})
# SQL of the fields that are no column of the view, or that are compared in another form.
_COLUMNS = {
    "latency": "latency_s",
    "first_token_latency": "dateDiff('microsecond', start_time, first_token_time) / 1e6",
    "execution_order": "if(is_root, 1, 2)",
    "metadata": "nullIf(metadata_json, '{}')",
    **{name: f"toFloat64({name})" for name in ("total_cost", "prompt_cost", "completion_cost")},
    "feedback_key": "key",
    "feedback_score": "score",
    "feedback_value": "if(startsWith(value, '\"'), JSONExtractString(value), nullIf(value, 'null'))",
    "feedback_comment": "comment",
    "feedback_source": "source_type",
}
_TYPES = {
    Kind.ID: "UUID",
    Kind.TIME: "DateTime64(6, 'UTC')",
    Kind.DURATION: "Float64",
    Kind.NUMBER: "Float64",
    Kind.FLAG: "Bool",
}
_SIGNS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "like": "LIKE"}
_INVERSE = {"neq": "eq", "notlike": "like"}

_METADATA = "ifNull(metadata_json, '')"
_INDEXED_PAIRS_MAX = 16
_THREAD_KEY = "\0thread"
# An index of words is scanned for a part of a word only if the part is selective enough.
_INDEXED_WORD = re.compile(r"[A-Za-z0-9]{4,}")
_KEYS_WALKED_MAX = 8
# Candidates are not judged by SQL that reads other rows than the run's, which costs as much as a separate statement, or
# columns that may be long, since all candidates are in memory at once.
_DEAR_OF_CANDIDATES = re.compile(
    r"\b(?:SELECT|inputs|outputs|events|serialized|attachments|extra|extra_without_metadata)\b"
)


def compile_filter(
    expression: Expression, scope: RunScope, *, of_traces: Sequence[Expression] = (), indexed: bool = False
) -> Condition:
    """Compile a filter of runs. `of_traces`: filters that any run of a run's trace must meet, each for itself.

    `indexed`: the caller looks up candidates first. They are then returned separately, and the SQL only confirms them.
    Raises InvalidRequestError for a filter that is within the limits of the language but too complex for the engine.
    """
    compiler = _Compiler(scope, indexed=indexed)
    sql = _every([compiler.expression(expression), *map(compiler.of_trace, of_traces)])
    _check_cost(sql)
    alone = sql.replace(compiler.proved, "true") if compiler.proved else sql
    if _DEAR_OF_CANDIDATES.search(alone):
        alone = ""
    return Condition(sql, compiler.parameters, compiler.candidates, alone)


def _check_cost(sql: str) -> None:
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
    return text_of(f"JSONExtractRaw({_METADATA}, {key})")


def has_any(pairs: Iterable[str]) -> str:
    """Write the condition that a row of `trace_run_rows` has one of the metadata pairs (SQL); an index answers it."""
    first, *others = pairs
    return f"({' OR '.join([f'has({INDEXED_PAIRS} AS pairs, {first})', *(f'has(pairs, {each})' for each in others)])})"


def like_pattern(pattern: str) -> str:
    """Drop a lone backslash from the end of a pattern, which the engine refuses."""
    return pattern + "\\" if (len(pattern) - len(pattern.rstrip("\\"))) % 2 else pattern


class _Compiler:
    """Compiler of one filter.

    `candidates`: the condition of an index that every selected run meets with one of its rows, once it is known.
    `proved`: the part of the SQL that this condition proves for a run of one row.
    """

    def __init__(self, scope: RunScope, *, indexed: bool) -> None:
        self.parameters: dict[str, Any] = {}
        self.candidates = ""
        self.proved = ""
        self._scope = scope
        # Every selected run must meet the nodes that are written now, so an index may look them up first.
        self._may_look_up = indexed

    def expression(self, node: Expression) -> str:
        match node:
            case tree.And(parts):
                return self._all(parts)
            case tree.Or(parts):
                return _some(map(self._optional, parts))
            case tree.Not(part):
                return f"(NOT {self._optional(part)})"
            case Compare() | In() if node.field.pair:
                return self._pairs(node.field.pair, [node])
            case Compare(operator=operator) if operator in _INVERSE:
                return self.expression(tree.Not(_inverse(node)))
            case Compare() | In():
                return self._comparison(node)
            case tree.Has():
                return self._has(node)
            case tree.Exists():
                return self._exists(node)
            case tree.Search():
                return self._search(node)

    def of_trace(self, node: Expression) -> str:
        """Write the condition that any run of the trace meets the expression."""
        scope, self._scope = self._scope, replace(self._scope, runs=self._scope.traces)
        found = self._optional(node)
        self._scope = scope
        runs = runs_for("trace_id", found)
        return f"ifNull(trace_id IN (SELECT trace_id FROM {runs} WHERE {scope.traces} AND {found}), 0)"

    def _optional(self, node: Expression) -> str:
        before, self._may_look_up = self._may_look_up, False
        found = self.expression(node)
        self._may_look_up = before
        return found

    def _all(self, parts: Sequence[Expression]) -> str:
        cheap, dear = list[str](), list[str]()
        paired: dict[PairGroup, list[Compare | In]] = {}
        for part in parts:
            match part:
                case Compare() | In() if part.field.pair:
                    paired.setdefault(part.field.pair, []).append(part)
                case Compare(field=Field(kind=kind)) | In(field=Field(kind=kind)) if kind is not Kind.JSON:
                    cheap.append(self.expression(part))
                case _:
                    dear.append(self.expression(part))
        cheap += [self._pairs(group, conditions) for group, conditions in paired.items()]
        return _every(cheap + dear) if parts else "true"

    def _bind(self, value: Any, kind: str) -> str:
        name = f"f{len(self.parameters)}"
        self.parameters[name] = value
        return f"{{{name}:{kind}}}"

    # --- fields of the run itself -------------------------------------------------------------------------------------

    def _comparison(self, node: Compare | In) -> str:
        field, values = node.field, _values(node)
        if values == (None,):
            return f"(NOT {self._exists(tree.Exists(field, None))})"
        if field.kind is Kind.TAGS:
            return f"arrayExists(tag -> {self._holds('tag', node)}, tags)"
        if field.name in USAGE_FIELDS:
            return self._usage(node)
        if field.name in {"id", "trace_id"}:
            return self._located(field, values)
        holds = self._holds(_column(field), node)
        if field.name in _KEY_COLUMNS:
            return holds
        if field.name == "thread_id" and _is_equality(node):
            # The index of metadata also contains the thread, under a key that no metadata uses.
            return _every([self._indexed([_THREAD_KEY], values), f"ifNull({holds}, 0)"])
        return f"ifNull({holds}, 0)"

    def _holds(self, value: str, node: Compare | In) -> str:
        """Write a positive comparison of an SQL value with a constant other than null. NULL if the value is NULL."""
        kind = node.field.kind
        if isinstance(node, In):
            values = [_plain(each, kind) for each in node.values]
            array = f"Array({_TYPES.get(kind, 'String')})"
            return f"{value} IN {self._bind(values, array)}" if values else "false"
        given = node.value
        if node.operator == "like":
            given = like_pattern(str(given))
        elif kind is Kind.SCALAR and node.operator != "eq" and not isinstance(given, str | bool):
            # Text compares as text, but for a number the caller expects 9 before 10.
            value, kind = f"toFloat64OrNull({value})", Kind.NUMBER
        return f"{value} {_SIGNS[node.operator]} {self._bind(_plain(given, kind), _TYPES.get(kind, 'String'))}"

    def _located(self, field: Field, values: Sequence[Value]) -> str:
        """Select by id. A subselect looks up the places of the runs first, since the table is not ordered by ids."""
        if field.name == "id":
            found = f"trace_run_keys WHERE id IN {self._bind([str(value) for value in values], 'Array(UUID)')}"
        else:
            nums = [value.bytes for value in values if isinstance(value, UUID)]
            found = f"trace_keys WHERE UUIDToNum(trace_id) IN {self._bind(nums, 'Array(FixedString(16))')}"
        return f"((session_id, start_time, id) IN ({_PLACES} {found} AND tenant_id = {{tenant_id:UUID}}))"

    def _usage(self, node: Compare | In) -> str:
        """Write the run's own tokens or costs; for a run without any, the sum over its descendants."""
        own, total = _column(node.field), self._holds(f"sum({_column(node.field)})", node)
        return f"""if(isNotNull({own}), ifNull({self._holds(own, node)}, 0), id IN (
            SELECT arrayJoin(parent_run_ids) AS ancestor FROM {runs_for("parent_run_ids", own)}
            WHERE {self._scope.traces} AND isNotNull({own}) GROUP BY ancestor HAVING {total}))"""

    def _exists(self, node: tree.Exists) -> str:
        name = node.field.name
        if node.key is not None and name == "metadata":
            return f"JSONHas({_METADATA}, {self._bind(node.key, 'String')})"
        if node.key is not None:
            return f"notEmpty({walked(name, node.key, self._bind)})"
        if name == "tags":
            return "notEmpty(tags)"
        if name in USAGE_FIELDS:
            return f"""(isNotNull({name}) OR id IN (
                SELECT arrayJoin(parent_run_ids) FROM {runs_for("parent_run_ids", name)}
                WHERE {self._scope.traces} AND isNotNull({name})))"""
        return f"isNotNull({_column(node.field)})"

    # --- JSON ---------------------------------------------------------------------------------------------------------

    def _has(self, node: tree.Has) -> str:
        if node.field.kind is Kind.TAGS:
            return self._comparison(Compare("eq", node.field, node.value))
        leaves = [(path, value) for path, value in tree.json_leaves(orjson.loads(node.value)) if path]
        if not leaves:
            return self._exists(tree.Exists(node.field, None))
        return _every(self._has_leaf(node.field.name, path, value) for path, value in leaves)

    def _has_leaf(self, name: str, path: Sequence[str], value: Any) -> str:
        keys = ", ".join(self._bind(key, "String") for key in path)
        found = f"JSONExtractRaw({_json(name)}, {keys})"
        if isinstance(value, dict | list):
            # JSONExtractRaw normalises both sides.
            return f"({found} = JSONExtractRaw({self._bind(orjson.dumps(value).decode(), 'String')}))"
        exact = f"({found} != '' AND {text_of(found)} = {self._bind(scalar_text(value), 'String')})"
        return _every([self._indexed(path, [value]) if name == "metadata" and len(path) == 1 else "", exact])

    def _indexed(self, keys: Sequence[str], values: Sequence[Value]) -> str:
        """Select runs with a row that has one of the pairs. Includes runs that only had it before a PATCH. Empty for
        too many pairs.
        """
        pairs = [f"{key}={_plain(value, Kind.SCALAR)}" for key in keys for value in values]
        if not 0 < len(pairs) <= _INDEXED_PAIRS_MAX:
            return ""
        return self._candidates(has_any(self._bind(pair, "String") for pair in pairs))

    def _candidates(self, indexed: str) -> str:
        """Select runs by keys from an index. The index must not be used in a merged read, where it would lose runs."""
        if self._may_look_up:
            # Only one indexed condition: another one may hold for another row of the same run.
            self.candidates = self.candidates or indexed
            return ""
        return f"(session_id, start_time, id) IN ({_PLACES} trace_run_rows WHERE {self._scope.runs} AND {indexed})"

    # --- pairs --------------------------------------------------------------------------------------------------------

    def _pairs(self, group: PairGroup, conditions: Sequence[Compare | In]) -> str:
        """Read the conditions of one PairGroup together."""
        together = [each for each in conditions if not _is_negative(each)]
        names_key = any(each.field.is_key for each in together)
        negative = [each for each in conditions if _is_negative(each)]
        together += [each for each in negative if names_key and not each.field.is_key]
        apart = [each for each in negative if each.field.is_key or not names_key]
        clauses = [self._pair(group, together)] if together else []
        return " AND ".join(clauses + [f"(NOT {self._optional(_inverse(each))})" for each in apart])

    def _pair(self, group: PairGroup, conditions: Sequence[Compare | In]) -> str:
        """Write the condition that at least one pair meets all conditions."""
        if group is PairGroup.FEEDBACK:
            tests = [self._part_holds(_column(each.field), each, "isNull({})") for each in conditions]
            return f"""id IN (SELECT assumeNotNull(run_id) FROM feedback
                WHERE {self._scope.feedback} AND isNotNull(run_id) AND {" AND ".join(tests)})"""
        keys = [each for each in conditions if each.field.is_key]
        values = [each for each in conditions if not each.field.is_key]
        named = [str(key) for key in _values(keys[0])] if len(keys) == 1 and _is_equality(keys[0]) else None
        if named == []:
            return "false"
        clauses = []
        if named is not None and group is PairGroup.METADATA:
            equal = next((each for each in values if _is_equality(each)), None)
            clauses.append(self._indexed(named, _values(equal)) if equal else "")
        if named is not None and len(named) <= _KEYS_WALKED_MAX:
            nodes = f"arrayConcat({', '.join(self._nodes(group, key) for key in named)})"
            tests = ["node != ''", *self._values_hold(text_of("node"), values)]
        else:
            nodes = f"JSONExtractKeysAndValuesRaw({_METADATA})"
            if group is not PairGroup.METADATA:
                nodes = f"arrayFilter(node -> node.1 != '', {all_nodes(group.value)})"
            tests = [*(self._holds("node.1", each) for each in keys), *self._values_hold(text_of("node.2"), values)]
        return _every([*clauses, f"arrayExists(node -> {_every(tests)}, {nodes})"])

    def _nodes(self, group: PairGroup, key: str) -> str:
        """Write the array of values that have this key."""
        if group is PairGroup.METADATA:
            return f"[JSONExtractRaw({_METADATA}, {self._bind(key, 'String')})]"
        return unlisted(walked(group.value, key, self._bind), keep=True)

    def _values_hold(self, value: str, nodes: Iterable[Compare | In]) -> list[str]:
        return [self._part_holds(value, each, "{} = 'null'") for each in nodes]

    def _part_holds(self, value: str, node: Compare | In, is_null: str) -> str:
        """Compare a part of a pair. Null is an ordinary value here, which `is_null` recognises."""
        if isinstance(node, Compare) and node.operator in _INVERSE:
            return f"(NOT {self._part_holds(value, _inverse(node), is_null)})"
        if _values(node) == (None,):
            return is_null.format(value)
        return f"ifNull({self._holds(value, node)}, 0)"

    # --- search -------------------------------------------------------------------------------------------------------

    def _search(self, node: tree.Search) -> str:
        if node.field is None:
            columns = ["inputs", "outputs"]
        elif node.field.kind is Kind.TAGS:
            columns = ["arrayStringConcat(tags, '\\n')"]
        else:
            columns = [_column(node.field)]
        words = tree.search_tokens(node.text)
        tests = [_some(self._finds(column, word) for column in columns) for word in words]
        indexed = [word for word in words if _INDEXED_WORD.fullmatch(word)]
        if indexed and {*columns} <= {"inputs", "outputs"}:
            # Only one word: another word may be in another row of the same run.
            word = max(indexed, key=len).lower()
            found = f"{INDEXED_LETTERS if word.isalpha() else INDEXED_DIGITS} LIKE {self._bind(f'%{word}%', 'String')}"
            tests.insert(0, self._candidates(found))
            if self.candidates == found and words == indexed and len(words) == 1 and len(columns) == 2:
                self.proved = tests[-1]
        return _every(tests) if tests else "true"

    def _finds(self, column: str, word: str) -> str:
        if word.isascii():
            return f"ifNull(positionCaseInsensitive({column}, {self._bind(word, 'String')}) > 0, 0)"
        # Some clients encode JSON with \u escapes.
        spelled = dict.fromkeys([word, *(json.dumps(form)[1:-1] for form in (word, word.lower(), word.upper()))])
        found = [f"positionCaseInsensitiveUTF8({column}, {self._bind(form, 'String')}) > 0" for form in spelled]
        return f"ifNull({' OR '.join(found)}, 0)"


_PLACES = "SELECT session_id, start_time, id FROM"


def _every(clauses: Iterable[str]) -> str:
    """Join the clauses that are not empty."""
    return f"({' AND '.join(filter(None, clauses))})"


def _some(clauses: Iterable[str]) -> str:
    return f"({' OR '.join(clauses)})"


def _column(field: Field) -> str:
    return _COLUMNS.get(field.name, field.name)


def _json(name: str) -> str:
    return _METADATA if name == "metadata" else f"ifNull({name}, '')"


def _plain(value: Value, kind: Kind) -> Any:
    """Convert a value to the form in which it is bound."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, UUID):
        return str(value)
    return scalar_text(value) if kind is Kind.SCALAR else value


def _values(node: Compare | In) -> tuple[Value, ...]:
    return node.values if isinstance(node, In) else (node.value,)


def _is_equality(node: Compare | In) -> bool:
    return isinstance(node, In) or node.operator == "eq"


def _is_negative(node: Compare | In) -> TypeGuard[Compare]:
    """Tell whether a condition is negative. `neq(x, null)` is not: it requires a value."""
    return isinstance(node, Compare) and node.operator in _INVERSE and node.value is not None


def _inverse(node: Compare) -> Compare:
    return Compare(_INVERSE[node.operator], node.field, node.value)  # type: ignore[arg-type]
