"""Roll-up: tokens, costs and children of a run, from the runs below it in its trace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_reads import Row, RunKey
from moorage.traces.store.trace_reads import TraceMember

CHILDREN = frozenset({"child_run_ids", "direct_child_run_ids"})
# Fields of a run that are computed from its trace.
ROLLUP_FIELDS = frozenset({*USAGE_FIELDS, *USAGE_DETAILS, *CHILDREN, "first_token_below"})
_NUMBERS: dict[str, type[int | Decimal]] = {name: int if name.endswith("tokens") else Decimal for name in USAGE_FIELDS}


class Subtree(NamedTuple):
    """A run and the runs below it in its trace. `None` as the run: the index of traces does not have it."""

    own: TraceMember | None
    below: Sequence[TraceMember]


def subtrees(members: Sequence[TraceMember], wanted: Collection[RunKey]) -> dict[RunKey, Subtree]:
    """Find the runs below each wanted run. A run that names no parents is still below the root of its trace."""
    own = {member.key.place: member for member in members}
    below: dict[tuple[UUID, UUID], list[TraceMember]] = {(key.session_id, key.id): [] for key in wanted}
    for member in members:
        for ancestor in {member.key.trace_id, *member.parent_run_ids} - {member.key.id}:
            if (place := (member.key.session_id, ancestor)) in below:
                below[place].append(member)
    return {key: Subtree(own.get(key.place), below[key.session_id, key.id]) for key in wanted}


def add_rollup(run: Row, subtree: Subtree, names: Collection[str]) -> None:
    """Set the named fields: the run's own values if it has any, else the sums over the runs below it. Children are
    ordered by start time.
    """
    own = (subtree.own and subtree.own.usage) or {}
    usages = [each.usage for each in subtree.below if each.usage]
    for name in names:
        if name == "first_token_below":
            run[name] = min((each.first_token_time for each in subtree.below if each.first_token_time), default=None)
        elif name in CHILDREN:
            direct = name == "direct_child_run_ids"
            children = [each for each in subtree.below if not direct or each.parent_run_ids[-1:] == [run["id"]]]
            run[name] = [each.key.id for each in sorted(children, key=lambda each: (each.key.start_time, each.key.id))]
        elif name in USAGE_DETAILS:
            details = [text] if (text := own.get(name)) else [usage[name] for usage in usages]
            run[name] = _sum_by_kind(text for text in details if text)
        else:
            run[name] = _sum(name, usages if own.get(name) is None else [own])


def _sum(name: str, usages: Iterable[Mapping[str, str | None]]) -> Any:
    """Add up one field; None when no run has a value."""
    texts = [text for usage in usages if (text := usage[name]) is not None]
    return sum(map(_NUMBERS[name], texts)) if texts else None


def _sum_by_kind(details: Iterable[str]) -> dict[str, Decimal] | None:
    """Tokens or costs by kind, from JSON texts."""
    total: dict[str, Decimal] = {}
    for text in details:
        for kind, amount in orjson.loads(text).items():
            total[kind] = total.get(kind, Decimal(0)) + Decimal(str(amount))
    return total or None
