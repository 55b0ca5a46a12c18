"""Parsing of trace runs: assemble a run from the parts of a body, check it, and split it into values of its columns.

Pure functions. Payloads (inputs, outputs and the like) are stored as the bytes that came. They are decoded once to
check that they are JSON, since readers copy them into answers unchanged. Invalid JSON is repaired as the clients' own
encoders do: NaN and infinities become null; bytes that are not UTF-8, and halves of surrogate pairs, become U+FFFD. NUL
is legal in JSON text and stays.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import MoorageError
from moorage.traces.records.run_catalogue import Role, columns_of
from moorage.traces.records.run_rows import Row, SentRun
from moorage.traces.records.words import RunType, time_of, us_of
from moorage.traces.usage import Model, Usage, find_model, read_usage

RUN_TYPES = frozenset(RunType)
DEFAULT_PROJECT = "default"
PROJECT_NAME_CHARS_MAX = 600
NAME_CHARS_MAX = 10_000
THREAD_ID_CHARS_MAX = 1000
DOTTED_ORDER_CHARS_MAX = 60_000  # some thousand levels

# Payloads, each of which a client may send as a separate part, with their kinds of JSON.
PAYLOADS: dict[str, type] = {
    "inputs": dict,
    "outputs": dict,
    "events": list,
    "extra": dict,
    "error": object,
    "serialized": object,
}

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SEGMENT = rf"[0-9]{{8}}T[0-9]{{12}}Z{_UUID}"
_CANONICAL = re.compile(_UUID)
DOTTED_ORDER = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
STAMP_CHARS, SEGMENT_CHARS = 22, 58
_ADDRESS = re.compile(r"lrn:agents/([^/]{1,250})/environments/([^/]{1,250})")
# A number with this many digits may not fit into 64 bits, and then the fast decoder would round it.
_HUGE_NUMBER = b"0" * 19
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)

_END_US = us_of(datetime(2200, 1, 1, tzinfo=UTC))
_REST = "extra_without_metadata"
_TWINS = {column.name: column.twin for column in columns_of(Role.PATCHABLE)}


class RefusedRunError(MoorageError):
    """A run of a request is invalid. The other runs of the request are stored anyway."""

    status = 422
    code = "invalid_run"


class RefusedOrderError(RefusedRunError):
    """A dotted_order is malformed, or contradicts the other ids of the run."""

    status = 400
    code = "invalid_dotted_order"


@dataclass(slots=True, eq=False)
class RunWrite:
    """Values to write for one run, as far as its client gave them. None: not given. `start_us`: since 1970."""

    sent: SentRun
    id: str
    trace_id: str | None
    parent_run_id: str | None
    dotted_order: str | None = None
    start_us: int | None = None
    project: UUID | str | None = None  # its id or its name
    session_id: UUID | None = None  # the id of the project, once it is known
    # By column. Attachments are those of `sent`; tokens and costs follow from `usage` and `model`.
    values: dict[str, Any] = field(default_factory=dict)
    usage: Usage | None = None
    model: Model | None = None
    # Metadata and outputs of a PATCH that leaves out the run's type or model, kept until those of its POST are known.
    unclear: tuple[Any, Any] | None = None

    @property
    def is_patch(self) -> bool:
        return self.sent.is_patch

    @property
    def has_place(self) -> bool:
        return self.start_us is not None and (self.session_id is not None or self.project is not None)

    def clarify(self, posted: Row) -> None:
        """Set usage and model, given the values of this PATCH's POST."""
        assert self.unclear is not None
        metadata, outputs = self.unclear
        self.usage = read_usage(metadata, outputs, self.values["run_type"] or posted.get("run_type"))
        if self.model is None:
            posted_metadata, rest = (decode(posted.get(name) or b"{}") for name in ("metadata_json", _REST))
            self.model = find_model(posted_metadata, rest.get("invocation_params"))
        self.unclear = None

    def row(self, workspace_id: UUID, tiers: Mapping[Any, str], *, place_only: bool) -> Row:
        """Make the row to write: the run's place, and its values. `tiers`: of projects."""
        usage = self.usage.columns() if self.usage else {}
        said = {} if place_only else {**self.values, "attachments": self.sent.attachments, **usage}
        columns = {
            "tenant_id": workspace_id,
            "session_id": self.session_id,
            "start_time": self.start_us,
            "id": self.id,
            "trace_id": self.trace_id,
            "parent_run_id": self.parent_run_id,
            "dotted_order": self.dotted_order,
            "is_root": None if self.dotted_order is None else self.parent_run_id is None,
            "trace_tier": tiers.get(self.session_id, "longlived"),
            **({_TWINS[name]: value for name, value in said.items()} if self.is_patch else said),
        }
        return {name: value for name, value in columns.items() if value is not None}


def parse_run(sent: SentRun) -> RunWrite:
    """Parse one run. Raises RefusedRunError, whose text says what is wrong with it."""
    said = decode_json(sent.main)[1] if sent.main else {}
    if not isinstance(said, dict) or (sent.main is None and not sent.is_patch):
        raise RefusedRunError("the run itself is missing or no JSON object")
    sent.id, run_type = _id(said.get("id") or sent.id, "id"), _run_type(said, sent)
    run = RunWrite(sent, sent.id, _optional_id(said, "trace_id"), _optional_id(said, "parent_run_id"))
    run.project = _project(said) or (None if sent.is_patch else DEFAULT_PROJECT)
    _place_in_trace(run, said)
    outputs_json, outputs = _payload(sent, said, "outputs")
    events_json, events = _payload(sent, said, "events")
    rest_json, metadata_json, metadata, parameters = _split_extra(sent, said)
    run.values = {
        "name": _name(said) or (None if sent.is_patch else run_type),
        "run_type": run_type,
        "end_time": _time(said, "end_time"),
        "first_token_time": _first_token(events_json, events),
        "error": _error(sent, said),
        "inputs": _payload(sent, said, "inputs")[0],
        "outputs": outputs_json,
        _REST: rest_json,
        "metadata_json": metadata_json,
        "events": events_json,
        "serialized": _payload(sent, said, "serialized")[0],
        "tags": _tags(said.get("tags")),
        "reference_example_id": _optional_id(said, "reference_example_id"),
        "thread_id": _thread_id(metadata),
    }
    # A PATCH may leave out the run type; until that of its POST is known, it is taken for a model call.
    if usage := read_usage(metadata, outputs, run_type or "llm"):
        run.usage = usage
        run.model = None if usage.has_cost else find_model(metadata, parameters)
        if sent.is_patch and (run_type is None or (run.model is None and not usage.has_cost)):
            run.unclear = metadata, outputs
    return run


def _run_type(said: dict[str, Any], sent: SentRun) -> str | None:
    run_type = said.get("run_type")
    if run_type is None and sent.is_patch:
        return None
    if not isinstance(run_type, str) or run_type not in RUN_TYPES:
        raise RefusedRunError(f"run_type must be one of {', '.join(sorted(RUN_TYPES))}")
    return run_type


def _project(said: dict[str, Any]) -> UUID | str | None:
    """Read the run's project. Newer clients send an address, which names an agent and its environment."""
    project_id, name = _optional_id(said, "session_id"), said.get("session_name")
    if name is None and isinstance(address := said.get("address"), str) and (found := _ADDRESS.fullmatch(address)):
        name = f"{found[1]}/{found[2]}"
    if name is not None and (not isinstance(name, str) or len(name) > PROJECT_NAME_CHARS_MAX):
        raise RefusedRunError(f"session_name must be text of at most {PROJECT_NAME_CHARS_MAX} characters")
    return UUID(project_id) if project_id else name


# --- where a run stands -------------------------------------------------------------------------------------------------


def _place_in_trace(run: RunWrite, said: dict[str, Any]) -> None:
    """Set trace, parent, dotted order and start, as far as the run tells them."""
    if order := said.get("dotted_order"):
        _check_order(run, order)
        run.dotted_order, run.start_us = order, _order_start(order[-SEGMENT_CHARS:])
        run.trace_id, run.parent_run_id = order[STAMP_CHARS:SEGMENT_CHARS], _parent_in(order)
    elif not run.is_patch:
        start_us = _time(said, "start_time")
        run.start_us = us_of(datetime.now(UTC)) if start_us is None else start_us
        if run.parent_run_id is not None:
            return  # the order needs the parent's order
        if run.trace_id not in {None, run.id}:
            raise RefusedRunError("a run that is not the root of its trace needs a parent_run_id or a dotted_order")
        run.trace_id, run.dotted_order = run.id, order_segment(run.start_us, run.id)


def _parent_in(order: str) -> str | None:
    return order[-2 * SEGMENT_CHARS - 1 + STAMP_CHARS : -SEGMENT_CHARS - 1] or None


def _check_order(run: RunWrite, order: Any) -> None:
    """Raises RefusedOrderError for an order that is malformed, or contradicts the ids that the run tells."""
    if not isinstance(order, str) or len(order) > DOTTED_ORDER_CHARS_MAX or not DOTTED_ORDER.fullmatch(order):
        raise RefusedOrderError(
            "invalid 'dotted_order': expected segments <YYYYMMDDTHHMMSSffffffZ><run id> joined by dots"
        )
    parent = _parent_in(order)
    if order[-36:] != run.id:
        complaint = "its last segment must be of this run"
    elif run.trace_id not in {None, order[STAMP_CHARS:SEGMENT_CHARS]}:
        complaint = "its first segment must be of the trace"
    elif run.parent_run_id is not None and parent is None:
        complaint = "it must contain at least two parts for child runs"
    elif run.parent_run_id is None and parent is not None and not run.is_patch:
        complaint = "it must contain a single part for root runs"
    elif run.parent_run_id not in {None, parent}:
        complaint = "its last segment but one must be of the parent run"
    else:
        return
    shown = f"run_id:{run.id} trace_id:{run.trace_id} dotted_order:{order[:500]} parent_run_id:{run.parent_run_id}"
    raise RefusedOrderError(f"invalid 'dotted_order': {complaint}: {shown}")


def order_segment(start_us: int, run_id: str) -> str:
    """Write a segment of a dotted_order."""
    return f"{time_of(start_us):%Y%m%dT%H%M%S%fZ}{run_id}"


def _order_start(segment: str) -> int:
    try:
        start_us = _microseconds(f"{segment[:15]}.{segment[15:STAMP_CHARS]}")
    except ValueError:
        raise RefusedOrderError("invalid 'dotted_order': its last segment is not a time") from None
    return _in_range(start_us, "the time in 'dotted_order'", RefusedOrderError)


# --- values -------------------------------------------------------------------------------------------------------------


def _id(value: Any, field_name: str) -> str:
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        return value
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise RefusedRunError(f"{field_name} must be a UUID") from None


def _optional_id(said: dict[str, Any], field_name: str) -> str | None:
    value = said.get(field_name)
    return None if value is None else _id(value, field_name)


def _name(said: dict[str, Any]) -> str | None:
    name = said.get("name")
    if name is not None and not isinstance(name, str):
        raise RefusedRunError("name must be text")
    return name[:NAME_CHARS_MAX] if name else None


def _time(said: dict[str, Any], field_name: str) -> int | None:
    """Read a time (in UTC if it has no zone) or a number of milliseconds, as microseconds since 1970."""
    value = said.get(field_name)
    if value is None:
        return None
    try:
        # Numbers come from JavaScript's Date.now().
        at_us = round(value * 1000) if type(value) in {int, float} else _microseconds(value)
    except (ValueError, TypeError, OverflowError):
        raise RefusedRunError(f"{field_name} must be a time in ISO 8601") from None
    return _in_range(at_us, field_name)


def _microseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return us_of(at if at.tzinfo else at.replace(tzinfo=UTC))


def _in_range(at_us: int, field_name: str, error: type[RefusedRunError] = RefusedRunError) -> int:
    if not 0 <= at_us < _END_US:
        raise error(f"{field_name} must lie between the years 1970 and 2199")
    return at_us


def _error(sent: SentRun, said: dict[str, Any]) -> str | None:
    data, error = _payload(sent, said, "error")
    return error or None if isinstance(error, str) or data is None else data.decode()


def _tags(tags: Any) -> bytes | None:
    if tags is None:
        return None
    if not isinstance(tags, list):
        raise RefusedRunError("tags must be a list of texts")
    return encode(tags if all(type(tag) is str for tag in tags) else list(map(str, tags)))


def _thread_id(metadata: dict[str, Any]) -> str | None:
    for key in ("session_id", "conversation_id", "thread_id"):
        if value := metadata.get(key):
            return str(value)[:THREAD_ID_CHARS_MAX]
    return None


def _first_token(events_json: bytes | None, events: Any) -> int | None:
    """Find when the first token of a streamed answer came. Events without a readable time are ignored."""
    if events_json is None or b"new_token" not in events_json:
        return None
    for event in events:
        if isinstance(event, dict) and event.get("name") == "new_token":
            try:
                return _time(event, "time")
            except RefusedRunError:
                continue
    return None


# --- payloads -----------------------------------------------------------------------------------------------------------


def _payload(sent: SentRun, said: dict[str, Any], field_name: str) -> tuple[bytes | None, Any]:
    """Read a payload as bytes and as decoded value, from its separate part or from the run itself."""
    data, kind = sent.payloads.get(field_name), PAYLOADS[field_name]
    if data is not None:
        data, value = decode_json(data)
    elif (value := said.get(field_name)) is not None:
        data = encode(value)
    if value is None:
        return None, None
    if not isinstance(value, kind):
        raise RefusedRunError(f"{field_name} must be {'an object' if kind is dict else 'a list'}")
    return data, value


def _split_extra(sent: SentRun, said: dict[str, Any]) -> tuple[bytes | None, bytes | None, dict[str, Any], Any]:
    """Split `extra` into the rest without metadata, the metadata, the decoded metadata, and the parameters of the call.

    A PATCH with `extra` replaces both the rest and the metadata.
    """
    data, extra = _payload(sent, said, "extra")
    if data is None:
        return None, None, {}, None
    write: Callable[[Any], bytes] = encode
    if _has_huge_number(data):
        extra, write = decode_exactly(data)
    metadata = extra.pop("metadata", None) or {}
    if not isinstance(metadata, dict):
        raise RefusedRunError("extra.metadata must be an object")
    return write(extra), write(metadata), metadata, extra.get("invocation_params")


def decode_json(data: bytes) -> tuple[bytes, Any]:
    """Return JSON bytes, repaired if needed, and their value. Raises RefusedRunError for bytes beyond repair."""
    try:
        return data, decode(data)
    except ValueError:
        value = _decoded_leniently(data)
        return _written_exactly(value), value


def decode_exactly(data: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """Decode the bytes. Returns also a function that encodes parts of the value without rounding any number."""
    if not _has_huge_number(data):
        try:
            return decode(data), encode
        except ValueError:
            pass  # the slower decoder below repairs the text if it can
    return _decoded_leniently(data), _written_exactly


def _has_huge_number(data: bytes) -> bool:
    return _HUGE_NUMBER in data.translate(_DIGITS_TO_ZERO)  # ten times faster than a regular expression


def _decoded_leniently(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    try:
        value = json.loads(text, strict=False, parse_constant=lambda _: None, parse_float=_finite)
        # An escape may have produced half of a surrogate pair, which no later encoder could write.
        return json.loads(_written_exactly(value)) if "\\u" in text else value
    except (ValueError, RecursionError):
        raise RefusedRunError("not valid JSON, or nested too deeply") from None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _written_exactly(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Going through UTF-16 replaces halves of surrogate pairs, which are invalid there.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
