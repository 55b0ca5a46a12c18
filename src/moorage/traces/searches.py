"""Searches for trace runs: arguments and filters, parsed and compiled to a selection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from uuid import UUID

from moorage.kernel.errors import BadRequestError, InvalidRequestError
from moorage.traces.filter_language.text import FilterSyntaxError, parse
from moorage.traces.filter_language.tree import (
    FIELDS,
    And,
    Compare,
    Exists,
    Expression,
    Field,
    In,
    Not,
    Or,
    PairGroup,
    Search,
)
from moorage.traces.records.runs import FilterFault, RunsFilter
from moorage.traces.store.conditions import Condition
from moorage.traces.store.filters import (
    check_cost,
    compile_filter,
    compile_trace_filter,
    compile_tree_filter,
)
from moorage.traces.store.selections import EVER, NEVER, TICK, Selection, scope_of

_UNSCOPED = "At least one of 'session', 'id', 'parent_run', 'trace' or 'reference_example' must be specified"


class InvalidFiltersError(InvalidRequestError):
    """Filters of a search that cannot be parsed; `faults` names each filter, the position and the reason."""

    code = "invalid_filter"

    def __init__(self, faults: Sequence[FilterFault]) -> None:
        super().__init__("; ".join(f"{fault['field']}: {fault['message']}" for fault in faults))
        self.faults = faults


@dataclass(frozen=True)
class _Filters:
    """Parsed filters of a search."""

    own: Sequence[Expression] = ()
    trace: Expression | None = None
    tree: Expression | None = None


_ROOTS = _Filters([Compare("eq", FIELDS["is_root"], True)])


def faults_of(search: RunsFilter) -> list[FilterFault]:
    """List the faults of the filters of a search; empty when all can be parsed."""
    faults: list[FilterFault] = []
    for name in ("filter", "trace_filter", "tree_filter", "search_filter"):
        try:
            _parsed(getattr(search, name))
        except FilterSyntaxError as error:
            faults.append({"field": name, "message": str(error)})
    return faults


def selection_of(workspace_id: UUID, search: RunsFilter, *, indexed: bool = False, anywhere: bool = False) -> Selection:
    """Compile a search. `indexed`: the caller looks up candidates first, as pages do.

    Raises InvalidFiltersError, InvalidRequestError for filters that are too complex together, and BadRequestError for a
    search that names nothing to search in, unless `anywhere`.
    """
    if search.id:
        return _compiled(workspace_id, RunsFilter(), _Filters([In(FIELDS["id"], tuple(search.id))]), indexed=False)
    if not anywhere and not any((search.session, search.trace, search.parent_run, search.reference_example)):
        raise BadRequestError(_UNSCOPED)
    if faults := faults_of(search):
        raise InvalidFiltersError(faults)
    own = [*_plain_conditions(search), *_all_parsed(search.filter, search.search_filter)]
    filters = _Filters(own, _parsed(search.trace_filter), _parsed(search.tree_filter))
    all_of_them = [tree for tree in (*own, filters.trace, filters.tree) if tree is not None]
    asks_when = search.min_feedback_modified_at or search.max_feedback_modified_at
    if asks_when and not any(map(_speaks_of_feedback, all_of_them)):
        raise BadRequestError("When feedback was modified can only be asked together with a condition on feedback")
    return _compiled(workspace_id, search, filters, indexed=indexed)


def _parsed(text: str | None) -> Expression | None:
    return parse(text) if text and not text.isspace() else None


def _all_parsed(*texts: str | None) -> list[Expression]:
    return [tree for tree in map(_parsed, texts) if tree is not None]


def _plain_conditions(search: RunsFilter) -> Iterator[Expression]:
    """Translate the other arguments of a search into expressions of the filter language."""
    equal = {
        "trace_id": search.trace,
        "parent_run_id": search.parent_run,
        "run_type": search.run_type,
        "is_root": True if search.execution_order == 1 else search.is_root,
    }
    yield from (Compare("eq", FIELDS[name], value) for name, value in equal.items() if value is not None)
    if search.reference_example:
        yield In(FIELDS["reference_example_id"], tuple(search.reference_example))
    if search.error is not None:
        failed = Exists(FIELDS["error"], None)
        yield failed if search.error else Not(failed)
    if search.query:
        yield Search(None, search.query)


def _compiled(workspace_id: UUID, search: RunsFilter, filters: _Filters, *, indexed: bool) -> Selection:
    sessions = list(dict.fromkeys(search.session or ())) or None
    scope = scope_of(sessions)
    conditions = []
    if filters.own:
        conditions.append(compile_filter(And(tuple(filters.own)), scope, prefix="f", indexed=indexed))
    if filters.trace is not None:
        conditions.append(compile_trace_filter(filters.trace, scope, prefix="r"))
    if filters.tree is not None:
        conditions.append(compile_tree_filter(filters.tree, scope, prefix="t"))
    return Selection(
        workspace_id,
        sessions,
        since=max(search.start_time or EVER, EVER),
        until=min(max(search.end_time, EVER), NEVER - TICK) + TICK if search.end_time else NEVER,
        condition=_joined(conditions),
        located=any(map(_locates, filters.own)),
        trace_id=_only_trace(filters),
        of_roots=filters == _ROOTS,
        feedback_since=max(search.min_feedback_modified_at or EVER, EVER),
        feedback_until=min(search.max_feedback_modified_at or NEVER, NEVER),
    )


def _only_trace(filters: _Filters) -> UUID | None:
    match filters:
        case _Filters([Compare("eq", Field(name="trace_id"), UUID() as trace_id)], None, None):
            return trace_id
    return None


def _joined(conditions: Sequence[Condition]) -> Condition | None:
    if not conditions:
        return None
    parameters: dict[str, Any] = reduce(lambda all_, each: {**all_, **each.parameters}, conditions, {})
    candidates, proved = next(((each.candidates, each.proved) for each in conditions if each.candidates), ("", ""))
    sql = " AND ".join(each.sql for each in conditions)
    check_cost(sql)
    return Condition(sql, parameters, candidates, proved)


def _speaks_of_feedback(expression: Expression) -> bool:
    match expression:
        case And(parts) | Or(parts):
            return any(map(_speaks_of_feedback, parts))
        case Not(part):
            return _speaks_of_feedback(part)
        case Compare() | In():
            return expression.field.pair is PairGroup.FEEDBACK
    return False


def _locates(expression: Expression) -> bool:
    """Tell whether the expression names runs or traces, which are looked up by their keys."""
    match expression:
        case And(parts):
            return any(map(_locates, parts))
        case Compare(operator="eq") | In():
            return expression.field.name in {"id", "trace_id"}
    return False
