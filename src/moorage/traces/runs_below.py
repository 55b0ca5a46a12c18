"""What a run says of the runs below it: their tokens and costs where it has none of its own, and who they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_reads import Row, RunInTrace

CHILDREN = frozenset({"child_run_ids", "direct_child_run_ids"})
_NUMBERS: dict[str, type[int | Decimal]] = {name: int if name.endswith("tokens") else Decimal for name in USAGE_FIELDS}


def below(runs: Sequence[RunInTrace], wanted: Collection[UUID]) -> dict[UUID, list[RunInTrace]]:
    """By each wanted run, those of the runs that are below it. A run that does not say who is above it is still below the
    root of its trace.
    """
    found: dict[UUID, list[RunInTrace]] = {}
    for run in runs:
        for ancestor in {run.trace_id, *run.parent_run_ids} - {run.id}:
            if ancestor in wanted:
                found.setdefault(ancestor, []).append(run)
    return found


def add_below(run: Row, below_it: Sequence[RunInTrace], names: Collection[str]) -> None:
    """Sets the named fields of the run: its own where it has some, else what the runs below it add up to. Children come
    in the order in which they began.
    """
    usages = [each.usage for each in below_it if each.usage]
    for name in names:
        if name == "first_token_below":
            run[name] = min((each.first_token_time for each in below_it if each.first_token_time), default=None)
        elif name in CHILDREN:
            direct = name == "direct_child_run_ids"
            children = [each for each in below_it if not direct or each.parent_run_ids[-1:] == [run["id"]]]
            run[name] = [each.id for each in sorted(children, key=lambda each: (each.start_time, each.id))]
        elif name in USAGE_DETAILS:
            details = [run[name]] if run[name] else [usage[name] for usage in usages]
            run[name] = _added_up(text for text in details if text)
        elif run.get(name) is None:
            run[name] = _sum(name, usages)


def _sum(name: str, usages: Iterable[Mapping[str, str | None]]) -> Any:
    """None where none says anything."""
    texts = [text for usage in usages if (text := usage[name]) is not None]
    return sum(map(_NUMBERS[name], texts)) if texts else None


def _added_up(details: Iterable[str]) -> dict[str, Decimal] | None:
    """Tokens or costs by kind, from JSON texts."""
    total: dict[str, Decimal] = {}
    for text in details:
        for kind, amount in orjson.loads(text).items():
            total[kind] = total.get(kind, Decimal(0)) + Decimal(str(amount))
    return total or None
