"""Random filters as trees and as text, with values that the random runs of `trace_data` have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from moorage.traces.filter_language.text import literal, render
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
    Search,
    operators_of,
    takes_null,
)
from tests.traces.trace_data import KEYS, NAMES, SCALARS, TAGS, WORDS

_OBJECTS = ('{"k": "x"}', '{"a": 5, "b": true}', '{"a": {"b": "alpha"}}', '{"deep": [1, 2]}', "{}", '{"user": null}')
_PATHS = (*KEYS, "a.b", "deep.a", "a.b.deep", "k.user", "b.a")
_PATTERNS = ("%a%", "alpha%", "%", "_", "50\\%", "%\\\\%", "%\\", "a\\_b", "%l_ha%", "gam%", "日%", '%"%', "")
_QUERIES = ("alpha", "ALP", "beta x", "the and of", "日本", "É", "quo slash", "", "50%", "alpha failed")


def expressions(ids: Sequence[UUID], times: Sequence[datetime]) -> st.SearchStrategy[Expression]:
    leaves = st.sampled_from(sorted(FIELDS)).flatmap(lambda name: _leaf(FIELDS[name], ids, times))
    searches = st.builds(Search, st.none(), st.sampled_from(_QUERIES))
    return st.recursive(
        st.one_of(leaves, leaves, leaves, leaves, searches),
        lambda inner: st.one_of(
            st.builds(And, st.lists(inner, min_size=1, max_size=4).map(tuple)),
            _pair_groups(ids, times),
            st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
            st.builds(Not, inner),
        ),
        max_leaves=8,
    )


def _pair_groups(ids: Sequence[UUID], times: Sequence[datetime]) -> st.SearchStrategy[And]:
    """Return a strategy of conditions that refer to the same pair."""
    groups = {group: [field for field in FIELDS.values() if field.pair is group] for group in _pairs()}
    one = st.sampled_from(list(groups)).flatmap(
        lambda group: st.lists(
            st.sampled_from(groups[group]).flatmap(lambda field: _leaf(field, ids, times)), min_size=1, max_size=4
        )
    )
    return st.builds(And, one.map(tuple))


def _pairs() -> set[Any]:
    return {field.pair for field in FIELDS.values() if field.pair}


def _leaf(field: Field, ids: Sequence[UUID], times: Sequence[datetime]) -> st.SearchStrategy[Expression]:
    values = _values(field, ids, times)
    nothing = [st.none()] if takes_null(field) else []

    def of(operator: str) -> st.SearchStrategy[Expression]:
        match operator:
            case "in":
                return st.builds(In, st.just(field), st.lists(values, max_size=3).map(tuple))
            case "has":
                return st.builds(Has, st.just(field), values)
            case "exists":
                keys = st.sampled_from(KEYS if field.name == "metadata" else _PATHS)
                return st.builds(Exists, st.just(field), st.one_of(st.none(), keys) if _is_json(field) else st.none())
            case "search":
                return st.builds(Search, st.just(field), st.sampled_from(_QUERIES))
            case "like" | "notlike":
                return st.builds(Compare, st.just(operator), st.just(field), st.sampled_from(_PATTERNS))
            case "eq" | "neq":
                compared = st.one_of(*([] if _is_json(field) else [values]), *nothing)
                return st.builds(Compare, st.just(operator), st.just(field), compared)
        return st.builds(Compare, st.just(operator), st.just(field), values)

    return st.sampled_from(sorted(operators_of(field))).flatmap(of)


def _is_json(field: Field) -> bool:
    return field.kind is Kind.JSON


def _values(field: Field, ids: Sequence[UUID], times: Sequence[datetime]) -> st.SearchStrategy[Any]:
    match field.kind:
        case Kind.ID:
            return st.sampled_from([*ids, UUID(int=7)])
        case Kind.TIME:
            return st.sampled_from(times)
        case Kind.DURATION:
            return st.sampled_from((0, 0.25, 5.0, 60, -1.5))
        case Kind.NUMBER:
            return st.sampled_from((0, 1, 2, 4.5, 5, 12, 0.005, 0.012, 105, 1e9, -3))
        case Kind.FLAG:
            return st.booleans()
        case Kind.TAGS:
            return st.sampled_from((*TAGS, "absent"))
        case Kind.JSON:
            return st.sampled_from(_OBJECTS)
        case Kind.SCALAR:
            return st.sampled_from((*[each for each in SCALARS if each is not None], "good", "alpha"))
    if field.is_key:
        return st.sampled_from(("score", "note") if field.name == "feedback_key" else _PATHS)
    words = {"name": NAMES, "run_type": ("llm", "tool"), "status": ("error", "success", "pending")}
    return st.sampled_from((*words.get(field.name, ("t1", "boom", "longlived", "api", "alpha comment")), *WORDS))


def written(expression: Expression) -> str:
    """Return the text of a filter, so that `parse(written(tree)) == tree`."""
    match expression:
        case And(parts):
            return f"and({', '.join(map(written, parts))})"
        case Or(parts):
            return f"or({', '.join(map(written, parts))})"
        case Not(part):
            return f"not({written(part)})"
        case Compare():
            return render(expression)
        case In(field, values):
            return f"in({field.name}, [{', '.join(map(literal, values))}])"
        case Has(field, text):
            return f"has({field.name}, {literal(text)})"
        case Exists(field, key):
            return f"exists({', '.join([field.name] if key is None else [field.name, literal(key)])})"
        case Search(named, text):
            return f"search({', '.join([literal(text)] if named is None else [named.name, literal(text)])})"
