"""What a run says of its trace: tokens and costs, its own or those of the runs below it, and who these are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_reads import Row, RunKey
from moorage.traces.store.trace_reads import RunInTrace

CHILDREN = frozenset({"child_run_ids", "direct_child_run_ids"})
_NUMBERS: dict[str, type[int | Decimal]] = {name: int if name.endswith("tokens") else Decimal for name in USAGE_FIELDS}


class Family(NamedTuple):
    """A run as it stands in its trace, when it says something there, and the runs below it."""

    own: RunInTrace | None
    below: Sequence[RunInTrace]


def families(runs: Sequence[RunInTrace], wanted: Collection[RunKey]) -> dict[RunKey, Family]:
    """Of each wanted run. A run that does not say who is above it is still below the root of its trace."""
    own = {run.key.place: run for run in runs}
    below: dict[tuple[UUID, UUID], list[RunInTrace]] = {(key.session_id, key.id): [] for key in wanted}
    for run in runs:
        for ancestor in {run.key.trace_id, *run.parent_run_ids} - {run.key.id}:
            if (place := (run.key.session_id, ancestor)) in below:
                below[place].append(run)
    return {key: Family(own.get(key.place), below[key.session_id, key.id]) for key in wanted}


def add_family(run: Row, family: Family, names: Collection[str]) -> None:
    """Sets the named fields of the run: its own where it has some, else what the runs below it add up to. Children come
    in the order in which they began.
    """
    own = (family.own and family.own.usage) or {}
    usages = [each.usage for each in family.below if each.usage]
    for name in names:
        if name == "first_token_below":
            run[name] = min((each.first_token_time for each in family.below if each.first_token_time), default=None)
        elif name in CHILDREN:
            direct = name == "direct_child_run_ids"
            children = [each for each in family.below if not direct or each.parent_run_ids[-1:] == [run["id"]]]
            run[name] = [each.key.id for each in sorted(children, key=lambda each: (each.key.start_time, each.key.id))]
        elif name in USAGE_DETAILS:
            details = [text] if (text := own.get(name)) else [usage[name] for usage in usages]
            run[name] = _added_up(text for text in details if text)
        else:
            run[name] = _sum(name, usages if own.get(name) is None else [own])


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
