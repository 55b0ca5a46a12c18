"""Searches for trace runs: arguments and filters, parsed and compiled to a selection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from moorage.kernel.errors import BadRequestError, InvalidRequestError
from moorage.traces.filter_language import tree
from moorage.traces.filter_language.text import FilterSyntaxError, parse
from moorage.traces.filter_language.tree import FIELDS, Compare, Expression, Field, In
from moorage.traces.records.runs import FilterFault, RunsFilter
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.selections import EVER, NEVER, TICK, Selection, scope_of

_UNSCOPED = "At least one of 'session', 'id', 'parent_run', 'trace' or 'reference_example' must be specified"
_IS_ROOT = Compare("eq", FIELDS["is_root"], True)


class InvalidFiltersError(InvalidRequestError):
    """Filters of a search that cannot be parsed; `faults` names each filter, the position and the reason."""

    code = "invalid_filter"

    def __init__(self, faults: Sequence[FilterFault]) -> None:
        super().__init__("; ".join(f"{fault['field']}: {fault['message']}" for fault in faults))
        self.faults = faults


def faults_of(search: RunsFilter) -> list[FilterFault]:
    """List the faults of the filters of a search; empty when all can be parsed."""
    return _parsed(search)[1]


def _parsed(search: RunsFilter) -> tuple[Mapping[str, Expression], list[FilterFault]]:
    """Return the filters of a search by name, and the faults of those that cannot be parsed."""
    parsed: dict[str, Expression] = {}
    faults: list[FilterFault] = []
    for name in ("filter", "trace_filter", "tree_filter", "search_filter"):
        text: str | None = getattr(search, name)
        try:
            if text and not text.isspace():
                parsed[name] = parse(text)
        except FilterSyntaxError as error:
            faults.append({"field": name, "message": str(error)})
    return parsed, faults


def selection_of(workspace_id: UUID, search: RunsFilter, *, indexed: bool = False, anywhere: bool = False) -> Selection:
    """Compile a search. `indexed`: the caller looks up candidates first, as pages do.

    Raises InvalidFiltersError, InvalidRequestError for filters that are too complex together, and BadRequestError for a
    search that names nothing to search in, unless `anywhere`.
    """
    if search.id:
        return _compiled(workspace_id, RunsFilter(), [In(FIELDS["id"], tuple(search.id))], [], indexed=False)
    if not anywhere and not any((search.session, search.trace, search.parent_run, search.reference_example)):
        raise BadRequestError(_UNSCOPED)
    parsed, faults = _parsed(search)
    if faults:
        raise InvalidFiltersError(faults)
    own = [*_plain_conditions(search), *(parsed[name] for name in ("filter", "search_filter") if name in parsed)]
    of_traces: list[Expression] = []
    if "trace_filter" in parsed:
        of_traces.append(tree.And((_IS_ROOT, parsed["trace_filter"])))
    if "tree_filter" in parsed:
        of_traces.append(parsed["tree_filter"])
    selection = _compiled(workspace_id, search, own, of_traces, indexed=indexed)
    asks_when = search.min_feedback_modified_at or search.max_feedback_modified_at
    if asks_when and not (selection.condition and "{feedback_since:" in selection.condition.sql):
        raise BadRequestError("When feedback was modified can only be asked together with a condition on feedback")
    return selection


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
        failed = tree.Exists(FIELDS["error"], None)
        yield failed if search.error else tree.Not(failed)
    if search.query:
        yield tree.Search(None, search.query)


def _compiled(
    workspace_id: UUID, search: RunsFilter, own: list[Expression], of_traces: list[Expression], *, indexed: bool
) -> Selection:
    sessions = list(dict.fromkeys(search.session or ())) or None
    condition = None
    if own or of_traces:
        condition = compile_filter(tree.And(tuple(own)), scope_of(sessions), of_traces=of_traces, indexed=indexed)
    return Selection(
        workspace_id,
        sessions,
        since=max(search.start_time or EVER, EVER),
        until=min(max(search.end_time, EVER), NEVER - TICK) + TICK if search.end_time else NEVER,
        condition=condition,
        located=any(map(_locates, own)),
        trace_id=_only_trace(own) if not of_traces else None,
        of_roots=own == [_IS_ROOT] and not of_traces,
        feedback_since=max(search.min_feedback_modified_at or EVER, EVER),
        feedback_until=min(search.max_feedback_modified_at or NEVER, NEVER),
    )


def _only_trace(own: Sequence[Expression]) -> UUID | None:
    match own:
        case [Compare("eq", Field(name="trace_id"), UUID() as trace_id)]:
            return trace_id
    return None


def _locates(expression: Expression) -> bool:
    """Tell whether the expression names runs or traces, which are looked up by their keys."""
    match expression:
        case tree.And(parts):
            return any(map(_locates, parts))
        case Compare(operator="eq") | In():
            return expression.field.name in {"id", "trace_id"}
    return False
