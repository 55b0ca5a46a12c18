"""Runs as v2 of the wire shows them: what was selected and is known, numbers as numbers, kinds in capitals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from moorage.traces.records.words import RunType
from moorage.traces.routes.run_bodies import (
    AttachmentUrl,
    BodyField,
    Row,
    Shown,
    app_path,
    attachments,
    extra,
    fragment,
    status,
    whole_numbers,
)
from moorage.traces.run_texts import PREVIEW_CHARS, preview

# Shown as null while a run goes on; anything else that is not known is left out.
_NULLABLE = frozenset({"end_time"})
_OPS = {run_type.value: number for number, run_type in enumerate(RunType)}


def _plain(name: str) -> BodyField:
    return BodyField((name,), lambda shown: shown.row[name])


def _json(name: str) -> BodyField:
    return BodyField((name,), lambda shown: fragment(shown.row[name]))


def _cost(name: str) -> BodyField:
    return BodyField((name,), lambda shown: dollars(shown.row[name]))


def _token_details(name: str) -> BodyField:
    return BodyField((name,), lambda shown: _raw(whole_numbers(shown.row[name])))


def _cost_details(name: str) -> BodyField:
    return BodyField((name,), lambda shown: _raw(_dollars_by_kind(shown.row[name])))


def dollars(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def _dollars_by_kind(details: Mapping[str, Decimal] | None) -> dict[str, float] | None:
    return None if details is None else {kind: float(cost) for kind, cost in details.items()}


def _raw(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if details is None else {"raw": details}


def _latency(shown: Shown) -> float | None:
    ended = shown.row["end_time"]
    return None if ended is None else (ended - shown.row["start_time"]).total_seconds()


def _error_preview(shown: Shown) -> str | None:
    error = shown.row["error"]
    return None if error is None else error[:PREVIEW_CHARS]


_UNKNOWN = BodyField((), lambda _: None)
_USAGE = {
    **{name.upper(): _plain(name) for name in ("total_tokens", "prompt_tokens", "completion_tokens")},
    **{name.upper(): _cost(name) for name in ("total_cost", "prompt_cost", "completion_cost")},
    **{name.upper(): _token_details(name) for name in ("prompt_token_details", "completion_token_details")},
    **{name.upper(): _cost_details(name) for name in ("prompt_cost_details", "completion_cost_details")},
}
_SHARED = {
    **_USAGE,
    "NAME": BodyField(("name",), lambda shown: shown.row["name"] or ""),
    "START_TIME": _plain("start_time"),
    "END_TIME": _plain("end_time"),
    "FIRST_TOKEN_TIME": _plain("first_token_time"),
    "ERROR": _plain("error"),
    "ERROR_PREVIEW": BodyField(("error",), _error_preview),
    "INPUTS": _json("inputs"),
    "INPUTS_PREVIEW": BodyField(("inputs_head",), lambda shown: preview(shown.row["inputs_head"])),
    "OUTPUTS": _json("outputs"),
    "OUTPUTS_PREVIEW": BodyField(("outputs_head",), lambda shown: preview(shown.row["outputs_head"], last=True)),
    "TRACE_ID": BodyField(("trace_id",), lambda shown: shown.row["trace_id"] or shown.row["id"]),
    "THREAD_ID": _plain("thread_id"),
}
RUN_PARTS: dict[str, BodyField] = {
    **_SHARED,
    "ID": _plain("id"),
    "RUN_TYPE": BodyField(("run_type",), lambda shown: (shown.row["run_type"] or "chain").upper()),
    "STATUS": BodyField(("error", "end_time"), lambda shown: status(shown).upper()),
    "LATENCY_SECONDS": BodyField(("end_time",), _latency),
    "EXTRA": BodyField(("extra_without_metadata", "metadata_json"), extra),
    "METADATA": _json("metadata_json"),
    "EVENTS": _json("events"),
    "MANIFEST": _json("serialized"),
    "PARENT_RUN_IDS": _plain("parent_run_ids"),
    "PROJECT_ID": _plain("session_id"),
    "DOTTED_ORDER": _plain("dotted_order"),
    "IS_ROOT": _plain("is_root"),
    "REFERENCE_EXAMPLE_ID": _plain("reference_example_id"),
    "TAGS": _plain("tags"),
    "APP_PATH": BodyField(("trace_id",), app_path),
    "ATTACHMENTS": BodyField(
        ("attachments",), lambda shown: {name: url for name, (url, _) in attachments(shown).items()}
    ),
    "IS_IN_DATASET": BodyField(("reference_example_id",), lambda shown: shown.row["reference_example_id"] is not None),
    "FEEDBACK_STATS": _plain("feedback_stats"),
    "REFERENCE_DATASET_ID": _UNKNOWN,
    "PRICE_MODEL_ID": _UNKNOWN,
    "THREAD_EVALUATION_TIME": _UNKNOWN,
    "LAST_QUEUED_AT": _UNKNOWN,
    "SHARE_URL": _UNKNOWN,
    "LS_USER_ID": _UNKNOWN,
}
# What a trace as a whole shows, beside its root run.
AGGREGATES: dict[str, BodyField] = {
    "TOTAL_TOKENS": RUN_PARTS["TOTAL_TOKENS"],
    "TOTAL_COST": RUN_PARTS["TOTAL_COST"],
    "FIRST_TOKEN_TIME": BodyField(("first_token_time", "first_token_below"), lambda shown: _first_token(shown.row)),
}
THREAD_TRACE_PARTS: dict[str, BodyField] = {
    **_SHARED,
    "OP": BodyField(("run_type",), lambda shown: _OPS.get(shown.row["run_type"])),
    "LATENCY": BodyField(("end_time",), _latency),
    "TURN_NUMBER": BodyField((), lambda shown: shown.row.get("turn_number")),
}


def _first_token(row: Row) -> Any:
    return min((at for at in (row["first_token_time"], row["first_token_below"]) if at is not None), default=None)


class FormV2:
    """Writer of runs for one `selects`."""

    def __init__(self, selects: Iterable[str], parts: Mapping[str, BodyField] = RUN_PARTS) -> None:
        chosen = {name: parts[name] for name in selects}
        self._writers: list[tuple[str, Callable[[Shown], Any]]] = [
            (name.lower(), part.write) for name, part in chosen.items()
        ]
        self.needs: Collection[str] = frozenset(need for part in chosen.values() for need in part.needs)

    def body(self, row: Row, workspace_id: UUID, attachment_url: AttachmentUrl) -> dict[str, Any]:
        shown = Shown(row, workspace_id, attachment_url)
        written = ((name, write(shown)) for name, write in self._writers)
        return {name: value for name, value in written if value is not None or name in _NULLABLE}
