"""A plain model of trace runs: what a reader must see of them, from what was sent and acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# Fields of a POST or a PATCH. A PATCH wins in any order of arrival; among patches the last one to arrive wins.
FIELDS = (
    *("name", "run_type", "end_time", "error", "inputs", "outputs", "extra", "events", "serialized", "tags"),
    "reference_example_id",
)
_UNSAID = {"name": "", "run_type": "chain", "tags": []}


@dataclass
class Operation:
    """A POST or a PATCH of one run, which may have been sent several times."""

    kind: str  # post or patch
    run: Run
    fields: dict[str, Any]
    attachment: str = ""
    # An update without the run's place is written once its run is known.
    by_id_alone: bool = False


@dataclass(eq=False)
class Run:
    """A run's operations: the acknowledged ones in their order, and those that may or may not have been accepted."""

    id: str
    trace: list[Run]
    parent: Run | None
    start_time: str
    dotted_order: str
    session_name: str
    acknowledged: list[Operation] = field(default_factory=list)
    uncertain: list[Operation] = field(default_factory=list)

    @property
    def must_be_there(self) -> bool:
        return any(not operation.by_id_alone for operation in self.acknowledged)

    @property
    def may_be_there(self) -> bool:
        return any(not operation.by_id_alone for operation in (*self.acknowledged, *self.uncertain))

    def values(self, name: str) -> list[Any]:
        """Return the values that a reader may see: the last acknowledged one, or any that may have
        been accepted since.
        """
        unsure = [
            operation.fields[name]
            for kind in ("patch", "post")
            for operation in self.uncertain
            if operation.kind == kind and name in operation.fields
        ]
        for kind in ("patch", "post"):
            said = [each.fields[name] for each in self.acknowledged if each.kind == kind and name in each.fields]
            if said:
                return [said[-1], *unsure]
        return [_UNSAID.get(name), *unsure]

    def attachments(self) -> set[str]:
        return {operation.attachment for operation in self.acknowledged if operation.attachment}


def compare(run: Run, shown: Mapping[str, Any]) -> Iterator[str]:
    """Return every difference between the shown run and what was said of it."""
    for name in FIELDS:
        value = _timed(shown[name]) if name.endswith("_time") else shown[name]
        allowed = [_timed(each) if name.endswith("_time") else each for each in run.values(name)]
        if value not in allowed:
            yield f"run {run.id}: {name} is {_short(value)}, not {_short(allowed)}"
    metadata = (shown["extra"] or {}).get("metadata") or {}
    tokens = [event["time"] for event in shown["events"] or () if event["name"] == "new_token"]
    attached = set(shown["s3_urls"] or ())
    expected = {
        "trace_id": run.trace[0].id,
        "dotted_order": run.dotted_order,
        "parent_run_id": run.parent.id if run.parent else None,
        "parent_run_ids": [segment[22:] for segment in run.dotted_order.split(".")[:-1]],
        "start_time": _timed(run.start_time),
        "status": "error" if shown["error"] else "success" if shown["end_time"] else "pending",
        "thread_id": metadata.get("session_id"),
        "first_token_time": _timed(tokens[0]) if tokens else None,
    }
    for name, value in expected.items():
        if (_timed(shown[name]) if name.endswith("_time") else shown[name]) != value:
            yield f"run {run.id}: {name} is {_short(shown[name])}, not {_short(value)}"
    if not {f"attachment.{name}" for name in run.attachments()} <= attached:
        yield f"run {run.id}: of its attachments there are {attached}, not {run.attachments()}"


def compare_sums(run: Run, shown: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Compare tokens, costs and children: a run's own sums, or else those of the runs below it, as these are shown."""
    own = _usage(shown[run.id])
    below = [each for each in run.trace if each.id in shown and run.id in each.dotted_order[:-36]]
    parts = [own] if own else [usage for each in below if (usage := _usage(shown[each.id]))]
    for name, wire in (("total_tokens", "total_tokens"), ("prompt_tokens", "input_tokens")):
        if shown[run.id][name] != sum(part[wire] for part in parts):
            yield f"run {run.id}: {name} is {shown[run.id][name]}, not the sum of {parts}"
    cost = f"{sum(part['total_cost'] for part in parts):.6f}".rstrip("0").rstrip(".") if parts else None
    if shown[run.id]["total_cost"] != cost:
        yield f"run {run.id}: total_cost is {shown[run.id]['total_cost']}, not {cost}"
    if sorted(shown[run.id]["child_run_ids"]) != sorted(each.id for each in below):
        yield f"run {run.id}: child_run_ids are not {len(below)} runs"


def _usage(shown: Mapping[str, Any]) -> Any:
    return (shown["outputs"] or {}).get("usage_metadata")


def _timed(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _short(value: Any) -> str:
    return json.dumps(value, default=str)[:200]


def judge(runs: Iterable[Run], found: list[dict[str, Any]]) -> list[str]:
    """Return all faults in what a reader found, in all projects together."""
    known = {run.id: run for run in runs}
    shown = {each["id"]: each for each in found}
    wrongs = [f"run {each['id']}: nobody sent it" for each in found if each["id"] not in known]
    if len(shown) != len(found):
        wrongs.append(f"{len(found) - len(shown)} runs are there more than once")
    for run in known.values():
        if run.id not in shown:
            wrongs += [f"run {run.id}: acknowledged and lost"] if run.must_be_there else []
        elif not run.may_be_there:
            wrongs.append(f"run {run.id}: is there, and only an update by its id came")
        else:
            wrongs += [*compare(run, shown[run.id]), *compare_sums(run, shown)]
    return wrongs
