"""A trace run as v1 of the wire shows it: which fields each name of `select` needs, and how they are written.

JSON that was stored goes out as the text that it is, without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.traces.records.runs import RunSelect
from moorage.traces.records.words import RunStatus
from moorage.traces.run_texts import messages, payload, preview

Row = Mapping[str, Any]
AttachmentUrl = Callable[[str, str], str]


class Shown(NamedTuple):
    """Values that a body is written from."""

    row: Row
    workspace_id: UUID
    attachment_url: AttachmentUrl


class BodyField(NamedTuple):
    """A field of a body: the fields of the row that it is made of, and how."""

    needs: tuple[str, ...]
    write: Callable[[Shown], Any]


def json_part(name: str) -> BodyField:
    return BodyField((name,), lambda shown: fragment(shown.row[name]))


def fragment(text: str | None) -> Any:
    return None if text is None else orjson.Fragment(text)


def _plain(name: str) -> BodyField:
    return BodyField((name,), lambda shown: shown.row[name])


def _nothing(value: Any = None) -> BodyField:
    """A field of the wire that has no meaning here yet."""
    return BodyField((), lambda _: value)


def _tokens(name: str) -> BodyField:
    return BodyField((name,), lambda shown: shown.row[name] or 0)


def _cost(name: str) -> BodyField:
    return BodyField((name,), lambda shown: cost_text(shown.row[name]))


def _token_details(name: str) -> BodyField:
    return BodyField((name,), lambda shown: whole_numbers(shown.row[name]))


def _cost_details(name: str) -> BodyField:
    def write(shown: Shown) -> dict[str, str | None] | None:
        details = shown.row[name]
        return details and {kind: cost_text(cost) for kind, cost in details.items()}

    return BodyField((name,), write)


def cost_text(cost: Decimal | None) -> str | None:
    """A decimal without an exponent and without trailing zeros: clients compare it as text."""
    if cost is None:
        return None
    text = format(cost, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def whole_numbers(details: Mapping[str, Decimal] | None) -> dict[str, int] | None:
    return None if details is None else {kind: int(count) for kind, count in details.items()}


def status(shown: Shown) -> RunStatus:
    if shown.row["error"] is not None:
        return RunStatus.ERROR
    return RunStatus.PENDING if shown.row["end_time"] is None else RunStatus.SUCCESS


def extra(shown: Shown) -> Any:
    """The metadata is stored by itself, and stands inside of extra again here."""
    rest, metadata = shown.row["extra_without_metadata"], shown.row["metadata_json"]
    if metadata is None:
        return fragment(rest)
    inside = rest[1:] if rest and len(rest) > 2 else "}"
    return orjson.Fragment(f'{{"metadata":{metadata}{"," if inside != "}" else ""}{inside}')


def app_path(shown: Shown) -> str:
    row = shown.row
    begun = row["start_time"].isoformat().replace(":", "%3A").replace("+", "%2B")  # as quoted, for a page of runs
    place = f"/o/{shown.workspace_id}/projects/p/{row['session_id']}/r/{row['id']}"
    return f"{place}?trace_id={row['trace_id'] or row['id']}&start_time={begun}"


def attachments(shown: Shown) -> dict[str, tuple[str, str]]:
    """Return, by name, a temporary address of each attachment and its MIME type."""
    stored = orjson.loads(shown.row["attachments"] or "{}")
    return {
        name: (shown.attachment_url(facts["key"], facts["mime_type"]), facts["mime_type"])
        for name, facts in stored.items()
    }


def _s3_urls(shown: Shown) -> dict[str, dict[str, str]] | None:
    found = {
        f"attachment.{name}": {"presigned_url": url, "mime_type": mime_type}
        for name, (url, mime_type) in attachments(shown).items()
    }
    return found or None


def _messages(shown: Shown) -> list[dict[str, Any]]:
    return messages(payload(shown.row["inputs"]), payload(shown.row["outputs"]))


# What every body has, since clients build their models from it whatever was selected.
_ALWAYS: dict[str, BodyField] = {
    "id": _plain("id"),
    "name": BodyField(("name",), lambda shown: shown.row["name"] or ""),
    "run_type": BodyField(("run_type",), lambda shown: shown.row["run_type"] or "chain"),
    "start_time": _plain("start_time"),
    "status": BodyField(("error", "end_time"), status),
    "trace_id": BodyField(("trace_id",), lambda shown: shown.row["trace_id"] or shown.row["id"]),
    "dotted_order": BodyField(("dotted_order",), lambda shown: shown.row["dotted_order"] or ""),
    "session_id": _plain("session_id"),
    "app_path": BodyField(("trace_id",), app_path),
    "execution_order": _nothing(1),
}
_PARTS: dict[str, BodyField] = {
    **_ALWAYS,
    "end_time": _plain("end_time"),
    "error": _plain("error"),
    "extra": BodyField(("extra_without_metadata", "metadata_json"), extra),
    "events": json_part("events"),
    "inputs": json_part("inputs"),
    "inputs_preview": BodyField(("inputs_head",), lambda shown: preview(shown.row["inputs_head"])),
    "inputs_s3_urls": _nothing(),
    "outputs": json_part("outputs"),
    "outputs_preview": BodyField(("outputs_head",), lambda shown: preview(shown.row["outputs_head"], last=True)),
    "outputs_s3_urls": _nothing(),
    "s3_urls": BodyField(("attachments",), _s3_urls),
    "serialized": json_part("serialized"),
    "parent_run_id": _plain("parent_run_id"),
    "parent_run_ids": _plain("parent_run_ids"),
    "child_run_ids": _plain("child_run_ids"),
    "direct_child_run_ids": _plain("direct_child_run_ids"),
    "reference_example_id": _plain("reference_example_id"),
    "reference_dataset_id": _nothing(),
    "in_dataset": BodyField(("reference_example_id",), lambda shown: shown.row["reference_example_id"] is not None),
    "feedback_stats": _plain("feedback_stats"),
    "tags": _plain("tags"),
    "thread_id": _plain("thread_id"),
    "first_token_time": _plain("first_token_time"),
    **{name: _tokens(name) for name in ("total_tokens", "prompt_tokens", "completion_tokens")},
    **{name: _cost(name) for name in ("total_cost", "prompt_cost", "completion_cost")},
    **{name: _token_details(name) for name in ("prompt_token_details", "completion_token_details")},
    **{name: _cost_details(name) for name in ("prompt_cost_details", "completion_cost_details")},
    "messages": BodyField(("inputs", "outputs"), _messages),
    "price_model_id": _nothing(),
    "manifest_id": _nothing(),
    "manifest_s3_id": _nothing(),
    "share_token": _nothing(),
    "last_queued_at": _nothing(),
    "trace_tier": _plain("trace_tier"),
    "trace_first_received_at": _plain("first_ingested_at"),
    "trace_upgrade": _nothing(False),
    "ttl_seconds": _nothing(),
    "trace_min_start_time": BodyField(("trace_id", "trace_times"), lambda shown: _of_trace(shown, 0)),
    "trace_max_start_time": BodyField(("trace_id", "trace_times"), lambda shown: _of_trace(shown, 1)),
}
# Other names of the wire for what is asked for, and what comes along with it.
_ALIASES: dict[str, tuple[str, ...]] = {
    # The SDK's default select names tokens and costs and no details, and its model of a run has the details.
    "prompt_tokens": ("prompt_tokens", "prompt_token_details"),
    "completion_tokens": ("completion_tokens", "completion_token_details"),
    "prompt_cost": ("prompt_cost", "prompt_cost_details"),
    "completion_cost": ("completion_cost", "completion_cost_details"),
    "inputs_or_signed_url": ("inputs",),
    "outputs_or_signed_url": ("outputs",),
    "error_or_signed_url": ("error",),
    "events_or_signed_url": ("events",),
    "extra_or_signed_url": ("extra",),
    "serialized_or_signed_url": ("serialized",),
    "manifest": ("serialized",),
    "child_run_ids": ("child_run_ids", "direct_child_run_ids"),
    "trace_min_max_start_time": ("trace_min_start_time", "trace_max_start_time"),
    "inserted_at": (),
}


def _of_trace(shown: Shown, end: int) -> datetime | None:
    times = shown.row["trace_times"]
    return None if times is None else times[end]


class Form:
    """Writer of runs for one `select`."""

    def __init__(self, select: Iterable[RunSelect]) -> None:
        names = dict.fromkeys(_ALWAYS)
        for name in select:
            names.update(dict.fromkeys(_ALIASES.get(name, (name,))))
        self._parts = [(name, _PARTS[name].write) for name in names]
        self.needs: Collection[str] = frozenset(need for name in names for need in _PARTS[name].needs)

    def body(self, row: Row, workspace_id: UUID, attachment_url: AttachmentUrl) -> dict[str, Any]:
        shown = Shown(row, workspace_id, attachment_url)
        return {name: write(shown) for name, write in self._parts}
