"""Fields of a run on the wire: for each its types in both versions, the fields of the row that it is made of, and its
writer. The names to select, the schemas of answers and the bodies are made from these tables.

JSON that was stored goes out as the text that it is, without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

import orjson
from typing_extensions import TypedDict

from moorage.traces.records.prices import plain
from moorage.traces.records.run_texts import PREVIEW_CHARS, messages, payload, preview
from moorage.traces.records.words import (
    USAGE_DETAILS,
    USAGE_FIELDS,
    FeedbackStat,
    JsonObject,
    RunStatus,
    RunType,
    TraceTier,
    schema,
)

# Columns of a run as read, with `workspace_id`, and `attachment_url`, a function that makes addresses of attachments.
Row = Mapping[str, Any]
AttachmentUrl = Callable[[str, str], str]

RunTypeV2 = Literal["TOOL", "CHAIN", "LLM", "RETRIEVER", "EMBEDDING", "PROMPT", "PARSER"]
RunStatusV2 = Literal["SUCCESS", "ERROR", "PENDING"]
TokenDetails = schema("TokenDetails", "", {"raw": dict[str, int]}, total=True)
CostDetails = schema("CostDetails", "", {"raw": dict[str, float]}, total=True)


class EventV2(TypedDict, total=False):
    name: str
    time: datetime
    kwargs: Any


class WireField(NamedTuple):
    """A field of a body: its type, the fields of the row that it is made of, and how."""

    type: Any
    needs: tuple[str, ...]
    write: Callable[[Row], Any]


def _of(kind: Any, name: str, write: Callable[[Any], Any] = lambda value: value) -> WireField:
    """Make a field of one field of the row."""
    return WireField(kind, (name,), lambda row: write(row[name]))


def _fixed(kind: Any, value: Any = None) -> WireField:
    """Make a field that has no meaning here yet."""
    return WireField(kind, (), lambda _: value)


def _usage(**kinds: tuple[Any, Callable[[Any], Any]]) -> dict[str, WireField]:
    """Make the fields of tokens and costs. `kinds`: type and writer by the last words of a name."""
    return {
        name: _of(kind, name, write)
        for end, (kind, write) in kinds.items()
        for name in (*USAGE_FIELDS, *USAGE_DETAILS)
        if name.partition("_")[2] == end
    }


# --- how values are written ---------------------------------------------------------------------------------------


def _json(text: str | None) -> Any:
    return None if text is None else orjson.Fragment(text)


def cost_text(cost: Decimal | None) -> str | None:
    """Write a decimal without exponent and trailing zeros: clients compare it as text."""
    return None if cost is None else plain(cost)


def dollars(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def _by_kind(write: Callable[[Decimal], Any]) -> Callable[[Mapping[str, Decimal] | None], dict[str, Any] | None]:
    """Write tokens or costs by kind."""
    return lambda details: None if details is None else {kind: write(each) for kind, each in details.items()}


def _raw(write: Callable[[Decimal], Any]) -> Callable[[Mapping[str, Decimal] | None], dict[str, Any] | None]:
    by_kind = _by_kind(write)
    return lambda details: None if details is None else {"raw": by_kind(details)}


def _status(row: Row) -> RunStatus:
    if row["error"] is not None:
        return RunStatus.ERROR
    return RunStatus.PENDING if row["end_time"] is None else RunStatus.SUCCESS


def _extra(row: Row) -> Any:
    """Put the metadata, which is stored separately, back into `extra`."""
    rest, metadata = row["extra_without_metadata"], row["metadata_json"]
    if metadata is None:
        return _json(rest)
    inside = rest[1:] if rest and len(rest) > 2 else "}"
    return orjson.Fragment(f'{{"metadata":{metadata}{"," if inside != "}" else ""}{inside}')


def _app_path(row: Row) -> str:
    begun = row["start_time"].isoformat().replace(":", "%3A").replace("+", "%2B")  # like quote(), but faster
    place = f"/o/{row['workspace_id']}/projects/p/{row['session_id']}/r/{row['id']}"
    return f"{place}?trace_id={row['trace_id'] or row['id']}&start_time={begun}"


def _parent_run_ids(dotted_order: str | None) -> list[UUID]:
    """List the ids from the root to the parent. A segment is 22 characters of time, then the id."""
    return [UUID(segment[22:]) for segment in (dotted_order or "").split(".")[:-1]]


_ATTACHMENTS = ("posted_attachments", "patched_attachments")


def _attachments(row: Row) -> dict[str, tuple[str, str]]:
    """Return, by name, a temporary address of each attachment and its MIME type."""
    posted, patched = (orjson.loads(row[name] or "{}") for name in _ATTACHMENTS)
    return {
        name: (row["attachment_url"](facts["key"], facts["mime_type"]), facts["mime_type"])
        for name, facts in (posted | patched).items()
    }


def _s3_urls(row: Row) -> dict[str, dict[str, str]] | None:
    found = {
        f"attachment.{name}": {"presigned_url": url, "mime_type": mime_type}
        for name, (url, mime_type) in _attachments(row).items()
    }
    return found or None


def _messages(row: Row) -> list[JsonObject]:
    return messages(payload(row["inputs"]), payload(row["outputs"]))


def _latency(row: Row) -> float | None:
    ended = row["end_time"]
    return None if ended is None else (ended - row["start_time"]).total_seconds()


def _first_token_of_trace(row: Row) -> datetime | None:
    times = (row["first_token_time"], row["first_token_below"])
    return min((at for at in times if at is not None), default=None)


# --- the fields ---------------------------------------------------------------------------------------------------

# Fields with the same form in both versions, by their names in version 1.
_SHARED = {
    "id": _of(UUID, "id"),
    "name": _of(str, "name", lambda name: name or ""),
    "start_time": _of(datetime, "start_time"),
    "end_time": _of(datetime, "end_time"),
    "error": _of(str, "error"),
    "extra": WireField(JsonObject, ("extra_without_metadata", "metadata_json"), _extra),
    "inputs": _of(JsonObject, "inputs", _json),
    "inputs_preview": _of(str, "inputs_head", preview),
    "outputs": _of(JsonObject, "outputs", _json),
    "outputs_preview": _of(str, "outputs_head", lambda text: preview(text, last=True)),
    "serialized": _of(JsonObject, "serialized", _json),
    "trace_id": WireField(UUID, ("trace_id",), lambda row: row["trace_id"] or row["id"]),
    "parent_run_ids": _of(list[UUID], "dotted_order", _parent_run_ids),
    "session_id": _of(UUID, "session_id"),
    "thread_id": _of(str, "thread_id"),
    "app_path": WireField(str, ("trace_id",), _app_path),
    "reference_example_id": _of(UUID, "reference_example_id"),
    "reference_dataset_id": _fixed(UUID),
    "in_dataset": _of(bool, "reference_example_id", lambda example_id: example_id is not None),
    "feedback_stats": _of(dict[str, FeedbackStat], "feedback_stats"),
    "tags": _of(list[str], "tags_json", lambda tags: _json(tags or "[]")),
    "first_token_time": _of(datetime, "first_token_time"),
    "price_model_id": _fixed(UUID),
    "last_queued_at": _fixed(datetime),
}
# Fields that every run of version 1 has, since the models of clients require them.
_ALWAYS = (
    *("id", "name", "run_type", "start_time", "status", "trace_id", "dotted_order", "session_id", "app_path"),
    "execution_order",
)
V1: dict[str, WireField] = {
    **{
        name: field if name in _ALWAYS else field._replace(type=field.type | None)  # other fields may be null
        for name, field in _SHARED.items()
    },
    "run_type": _of(RunType, "run_type", lambda kind: kind or "chain"),
    "status": WireField(RunStatus, ("error", "end_time"), _status),
    "dotted_order": _of(str, "dotted_order", lambda order: order or ""),
    "execution_order": _fixed(int, 1),
    "events": _of(list[JsonObject] | None, "events", _json),
    "inputs_s3_urls": _fixed(JsonObject | None),
    "outputs_s3_urls": _fixed(JsonObject | None),
    "s3_urls": WireField(JsonObject | None, _ATTACHMENTS, _s3_urls),
    "parent_run_id": _of(UUID | None, "parent_run_id"),
    "child_run_ids": _of(list[UUID] | None, "child_run_ids"),
    "direct_child_run_ids": _of(list[UUID] | None, "direct_child_run_ids"),
    "messages": WireField(list[JsonObject] | None, ("inputs", "outputs"), _messages),
    "manifest_id": _fixed(UUID | None),
    "manifest_s3_id": _fixed(UUID | None),
    "share_token": _fixed(UUID | None),
    "trace_tier": _of(TraceTier | None, "trace_tier"),
    "trace_first_received_at": _of(datetime | None, "first_ingested_at"),
    "trace_upgrade": _fixed(bool, False),
    "ttl_seconds": _fixed(int | None),
    "trace_min_start_time": _of(datetime | None, "trace_times", lambda times: times and times[0]),
    "trace_max_start_time": _of(datetime | None, "trace_times", lambda times: times and times[1]),
    **_usage(
        tokens=(int, lambda count: count or 0),
        cost=(str | None, cost_text),
        token_details=(dict[str, int] | None, _by_kind(int)),
        cost_details=(dict[str, str] | None, _by_kind(cost_text)),
    ),
}
# Names in `select` that stand for one or several other fields.
_ALIASES: dict[str, tuple[str, ...]] = {
    # The SDK's default `select` names tokens and costs without details, although its model of a run has details.
    "prompt_tokens": ("prompt_tokens", "prompt_token_details"),
    "completion_tokens": ("completion_tokens", "completion_token_details"),
    "prompt_cost": ("prompt_cost", "prompt_cost_details"),
    "completion_cost": ("completion_cost", "completion_cost_details"),
    **{f"{name}_or_signed_url": (name,) for name in ("inputs", "outputs", "error", "events", "extra", "serialized")},
    "manifest": ("serialized",),
    "child_run_ids": ("child_run_ids", "direct_child_run_ids"),
    "trace_min_max_start_time": ("trace_min_start_time", "trace_max_start_time"),
    "inserted_at": (),
}
# Fields that cannot be selected by name and come with others.
_UNNAMED = frozenset({"execution_order", "direct_child_run_ids", "trace_min_start_time", "trace_max_start_time"})
# Costly fields that are only read if a request names them. Aliases too are only read if named.
_NAMED_ONLY = frozenset(
    {"inputs_preview", "inputs_s3_urls", "outputs_preview", "outputs_s3_urls", "s3_urls", "child_run_ids", "messages"}
)
_OTHER_NAMES_V2 = {"session_id": "project_id", "serialized": "manifest", "in_dataset": "is_in_dataset"}
V2: dict[str, WireField] = {
    **{_OTHER_NAMES_V2.get(name, name): field for name, field in _SHARED.items()},
    "end_time": _of(datetime | None, "end_time"),
    "run_type": _of(RunTypeV2, "run_type", lambda kind: (kind or "chain").upper()),
    "status": WireField(RunStatusV2, ("error", "end_time"), lambda row: _status(row).upper()),
    "latency_seconds": WireField(float, ("end_time",), _latency),
    "error_preview": _of(str, "error", lambda error: error and error[:PREVIEW_CHARS]),
    "metadata": _of(JsonObject, "metadata_json", _json),
    "events": _of(list[EventV2], "events", _json),
    "dotted_order": _of(str, "dotted_order"),
    "is_root": _of(bool, "is_root"),
    "attachments": WireField(
        dict[str, str], _ATTACHMENTS, lambda row: {name: url for name, (url, _) in _attachments(row).items()}
    ),
    "thread_evaluation_time": _fixed(datetime),
    "share_url": _fixed(str),
    "ls_user_id": _fixed(UUID),
    **_usage(
        tokens=(int, lambda count: count),
        cost=(float, dollars),
        token_details=(TokenDetails, _raw(int)),
        cost_details=(CostDetails, _raw(float)),
    ),
}
# Totals of a trace, shown beside its root run.
AGGREGATES: dict[str, WireField] = {
    "total_tokens": V2["total_tokens"],
    "total_cost": V2["total_cost"],
    "first_token_time": WireField(datetime, ("first_token_time", "first_token_below"), _first_token_of_trace),
}
_OPS = {run_type.value: number for number, run_type in enumerate(RunType)}
# Fields of a trace in a thread.
THREAD_TRACE: dict[str, WireField] = {
    **{
        name: V2[name]
        for name in (
            *("name", "trace_id", "thread_id", "start_time", "end_time", "first_token_time", "error", "error_preview"),
            *("inputs", "inputs_preview", "outputs", "outputs_preview", *USAGE_FIELDS, *USAGE_DETAILS),
        )
    },
    "op": _of(int, "run_type", _OPS.get),
    "latency": V2["latency_seconds"],
    "turn_number": WireField(int, (), lambda row: row.get("turn_number")),
}
DEFAULT_SELECT: tuple[str, ...] = tuple(name for name in V1 if name not in _NAMED_ONLY | _UNNAMED)

if TYPE_CHECKING:
    RunSelect: TypeAlias = str
    RunSelectV2: TypeAlias = str
    ThreadTraceSelect: TypeAlias = str
    TraceRun: TypeAlias = JsonObject
    RunV2: TypeAlias = JsonObject
    TraceAggregates: TypeAlias = JsonObject
    ThreadTrace: TypeAlias = JsonObject
else:
    RunSelect = Literal[*dict.fromkeys(name for name in (*V1, *_ALIASES) if name not in _UNNAMED)]
    RunSelectV2 = Literal[*map(str.upper, V2)]
    ThreadTraceSelect = Literal[*map(str.upper, THREAD_TRACE)]

    def _body(name: str, meaning: str, fields: Mapping[str, WireField]) -> Any:
        return schema(name, meaning, {each: field.type for each, field in fields.items()})

    TraceRun = _body("TraceRun", "Recorded step. Costs are decimal strings. Only selected fields are there.", V1)
    RunV2 = _body("RunV2", "A run: what was selected and is known, and `end_time`, null while the run goes on.", V2)
    TraceAggregates = _body("TraceAggregates", "Totals of a trace.", AGGREGATES)
    ThreadTrace = _body("ThreadTrace", "A trace of a thread: what was selected and is known.", THREAD_TRACE)


class Form(NamedTuple):
    """Writer of runs with these fields. `known_only`: leave out fields of unknown value, except `end_time`."""

    fields: Mapping[str, WireField]
    known_only: bool

    @property
    def needs(self) -> Collection[str]:
        """Return the fields of the row that bodies are made of."""
        return frozenset(need for field in self.fields.values() for need in field.needs)

    def body(self, row: Row, workspace_id: UUID, attachment_url: AttachmentUrl) -> JsonObject:
        row = {**row, "workspace_id": workspace_id, "attachment_url": attachment_url}
        body = {name: field.write(row) for name, field in self.fields.items()}
        if not self.known_only:
            return body
        return {name: value for name, value in body.items() if value is not None or name == "end_time"}


def form_v1(select: Iterable[RunSelect]) -> Form:
    names = (*_ALWAYS, *(shown for name in select for shown in _ALIASES.get(name, (name,))))
    return Form({name: V1[name] for name in names}, known_only=False)


def form_v2(selects: Iterable[str], fields: Mapping[str, WireField] = V2) -> Form:
    return Form({name.lower(): fields[name.lower()] for name in selects}, known_only=True)
