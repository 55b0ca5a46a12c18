"""What a run says of the runs below it: their tokens and costs where it has none of its own, and who they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any

import orjson

from moorage.traces.records.words import USAGE_DETAILS

Row = dict[str, Any]

CHILDREN = frozenset({"child_run_ids", "direct_child_run_ids"})


def fields_below(names: Collection[str]) -> set[str]:
    """The fields to read of the runs below for these fields of the run."""
    fields = {"parent_run_ids", *names} - CHILDREN - {"first_token_below"}
    if "first_token_below" in names:
        fields.add("first_token_time")
    if CHILDREN & set(names):
        fields |= {"dotted_order", "parent_run_id"}
    return fields


def has_part(row: Row, names: Collection[str]) -> bool:
    """Most runs of a trace have no usage of their own, and need not be kept for adding up."""
    return bool(CHILDREN & set(names)) or any(
        row["first_token_time" if name == "first_token_below" else name] is not None for name in names
    )


def add_below(run: Row, below: Sequence[Row], names: Collection[str]) -> None:
    """Sets the named fields of the run: its own where it has some, else what the runs below it add up to. Children come
    in the order in which they began.
    """
    for name in names:
        if name == "first_token_below":
            run[name] = min((row["first_token_time"] for row in below if row["first_token_time"]), default=None)
        elif name in CHILDREN:
            direct = name == "direct_child_run_ids"
            children = [row for row in below if not direct or row["parent_run_id"] == run["id"]]
            run[name] = [row["id"] for row in sorted(children, key=lambda row: (row["dotted_order"] or "", row["id"]))]
        elif name in USAGE_DETAILS:
            run[name] = _added_up([run[name]] if run[name] else [row[name] for row in below if row[name]])
        elif run.get(name) is None:
            own = [row[name] for row in below if row[name] is not None]
            run[name] = sum(own) if own else None


def _added_up(details: Iterable[str]) -> dict[str, Decimal] | None:
    """Tokens or costs by kind, from JSON texts."""
    total: dict[str, Decimal] = {}
    for text in details:
        for kind, amount in orjson.loads(text).items():
            total[kind] = total.get(kind, Decimal(0)) + Decimal(str(amount))
    return total or None
