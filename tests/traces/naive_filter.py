"""The meaning of filters as plainly as possible: Python over whole runs, without SQL, indexes or shortcuts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from moorage.traces.filter_language.tree import (
    And,
    Compare,
    Exists,
    Expression,
    Has,
    In,
    Not,
    Or,
    PairGroup,
    Search,
    number_text,
    search_tokens,
)


@dataclass
class Feedback:
    key: str
    score: float | None = None
    value: Any = None
    comment: str | None = None
    source: str | None = "api"
    id: UUID | None = None
    modified_at: datetime | None = None


@dataclass
class StoredRun:
    tenant_id: UUID
    session_id: UUID
    start_time: datetime
    id: UUID
    trace_id: UUID
    dotted_order: str
    parent_run_ids: list[UUID] = field(default_factory=list)
    name: str | None = "run"
    run_type: str | None = "chain"
    end_time: datetime | None = None
    first_token_time: datetime | None = None
    error: str | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)  # without the metadata
    tags: list[str] = field(default_factory=list)
    events: list[Any] | None = None
    thread_id: str | None = None
    trace_tier: str | None = "longlived"
    reference_example_id: UUID | None = None
    total_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_cost: Decimal | None = None
    prompt_cost: Decimal | None = None
    completion_cost: Decimal | None = None
    prompt_token_details: dict[str, int] | None = None
    attachments: dict[str, Any] | None = None
    feedback: list[Feedback] = field(default_factory=list)

    @property
    def parent_run_id(self) -> UUID | None:
        return self.parent_run_ids[-1] if self.parent_run_ids else None

    @property
    def is_root(self) -> bool:
        return not self.parent_run_ids

    @property
    def status(self) -> str:
        if self.error is not None:
            return "error"
        return "success" if self.end_time else "pending"

    @property
    def latency(self) -> float | None:
        return (self.end_time - self.start_time).total_seconds() if self.end_time else None

    @property
    def first_token_latency(self) -> float | None:
        return (self.first_token_time - self.start_time).total_seconds() if self.first_token_time else None

    @property
    def execution_order(self) -> int:
        return 1 if self.is_root else 2


_USAGE = ("total_tokens", "prompt_tokens", "completion_tokens", "total_cost", "prompt_cost", "completion_cost")


@dataclass
class World:
    runs: list[StoredRun]

    def select(
        self, expression: Expression, trace_filter: Expression | None = None, tree_filter: Expression | None = None
    ) -> set[UUID]:
        return {
            run.id
            for run in self.runs
            if self.holds(expression, run)
            and (
                trace_filter is None
                or any(self.holds(trace_filter, other) for other in self.trace(run) if other.is_root)
            )
            and (tree_filter is None or any(self.holds(tree_filter, other) for other in self.trace(run)))
        }

    def trace(self, run: StoredRun) -> list[StoredRun]:
        return [other for other in self.runs if other.trace_id == run.trace_id]

    def holds(self, node: Expression, run: StoredRun) -> bool:
        match node:
            case And(parts):
                return self._all(parts, run)
            case Or(parts):
                return any(self.holds(part, run) for part in parts)
            case Not(part):
                return not self.holds(part, run)
            case Compare() | In() if node.field.pair:
                return self._all([node], run)
            case Compare() | In():
                return _matches(self.value(node.field.name, run), node)
            case Search(None, text):
                return all(_finds(run.inputs, word) or _finds(run.outputs, word) for word in search_tokens(text))
            case Search(named, text):
                return all(_finds(self.value(named.name, run), word) for word in search_tokens(text))
            case _:
                return self._is_there(node, run)

    def _is_there(self, node: Has | Exists, run: StoredRun) -> bool:
        match node:
            case Has(named, text) if named.name == "tags":
                return text in run.tags
            case Has(named, text):
                return _contains(self.value(named.name, run), orjson.loads(text))
            case Exists(named, None):
                return self.value(named.name, run) not in (None, [])
            case Exists(named, key) if named.name == "extra":
                return any(path == key for path, _ in _nodes("", self.value("extra", run)))
            case Exists(named, key):
                return any(path == key for path, _ in _pairs(PairGroup(named.name), run))

    def value(self, name: str, run: StoredRun) -> Any:
        if name == "metadata":
            return run.metadata or None
        if name == "extra":
            return {"metadata": run.metadata, **run.extra}
        own = getattr(run, name)
        if name in _USAGE and own is None:
            below = [getattr(other, name) for other in self.runs if run.id in other.parent_run_ids]
            own = sum(filter(None, below), Decimal(0)) if any(each is not None for each in below) else None
        return float(own) if isinstance(own, Decimal) else own

    def _all(self, parts: Sequence[Expression], run: StoredRun) -> bool:
        for group in PairGroup:
            conditions = [part for part in parts if isinstance(part, Compare | In) and part.field.pair is group]
            if conditions and not _pairs_hold(list(_pairs(group, run)), conditions):
                return False
        rest = [part for part in parts if not (isinstance(part, Compare | In) and part.field.pair)]
        return all(self.holds(part, run) for part in rest)


def _pairs_hold(pairs: list[Any], conditions: list[Compare | In]) -> bool:
    def says_no(node: Compare | In) -> bool:
        return isinstance(node, Compare) and node.operator in ("neq", "notlike") and node.value is not None

    drawn = any(node.field.is_key and not says_no(node) for node in conditions)
    of_one = [node for node in conditions if not says_no(node) or (drawn and not node.field.is_key)]
    nowhere = [node for node in conditions if node not in of_one]
    if of_one and not any(all(_of_pair(pair, node) for node in of_one) for pair in pairs):
        return False
    return all(_of_pair(pair, node) for node in nowhere for pair in pairs)


def _of_pair(pair: Any, node: Compare | In) -> bool:
    if isinstance(pair, Feedback):
        value = getattr(pair, node.field.name.removeprefix("feedback_"))
        if node.field.name == "feedback_value" and value is not None:
            value = _text(value)
    else:
        value = pair[0 if node.field.is_key else 1]
        if isinstance(node, Compare) and node.value is None:
            return (value == "null") is (node.operator == "eq")
    return _matches(value, node)


def _pairs(group: PairGroup, run: StoredRun) -> Iterator[Any]:
    match group:
        case PairGroup.METADATA:
            yield from ((key, _text(value)) for key, value in run.metadata.items())
        case PairGroup.FEEDBACK:
            yield from run.feedback
        case PairGroup.INPUTS:
            yield from _nodes("", run.inputs)
        case PairGroup.OUTPUTS:
            yield from _nodes("", run.outputs)


def _nodes(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if path:
        yield path, _text(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _nodes(f"{path}.{key}" if path else key, inner)
    if isinstance(value, list):
        for inner in value:
            yield from _nodes(path, inner)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    return orjson.dumps(value).decode()


def _matches(value: Any, node: Compare | In) -> bool:
    if isinstance(node, In):
        return any(_matches(value, Compare("eq", node.field, each)) for each in node.values)
    if node.operator == "neq":
        return not _matches(value, Compare("eq", node.field, node.value))
    if node.operator == "notlike":
        return not _matches(value, Compare("like", node.field, node.value))
    if isinstance(value, list):  # tags
        return any(_matches(each, node) for each in value)
    if node.value is None:
        return value is None
    if value is None:
        return False
    if node.operator == "like":
        return _like(_json(value) if isinstance(value, dict) else value, str(node.value))
    return _compares(value, node.operator, node.value)


def _compares(value: Any, operator: str, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, int | float) and not isinstance(wanted, bool) and operator != "eq":
        try:
            value = float(value)
        except ValueError:
            return False
    elif isinstance(value, str):
        wanted = _text(wanted)
    match operator:
        case "eq":
            return bool(value == wanted)
        case "gt":
            return bool(value > wanted)
        case "gte":
            return bool(value >= wanted)
        case "lt":
            return bool(value < wanted)
    return bool(value <= wanted)


def _like(text: str, pattern: str) -> bool:
    pieces = {"%": ".*", "_": "."}
    expression, at = "", 0
    while at < len(pattern):
        if pattern[at] == "\\" and pattern[at + 1 : at + 2] in ("%", "_", "\\"):
            expression += re.escape(pattern[at + 1])
            at += 2
        else:
            expression += pieces.get(pattern[at], re.escape(pattern[at]))
            at += 1
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _contains(value: Any, wanted: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return False
    for key, inner in wanted.items():
        if key not in value:
            return False
        if isinstance(inner, dict) and inner:
            if not _contains(value[key], inner):
                return False
        elif _text(value[key]) != _text(inner):
            return False
    return True


def _finds(value: Any, word: str) -> bool:
    if isinstance(value, list):
        return any(_finds(each, word) for each in value)
    return value is not None and word.lower() in (_json(value) if isinstance(value, dict) else value).lower()


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
