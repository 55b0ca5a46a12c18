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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BodyTooLargeError, MoorageError
from moorage.kernel.ids import uuid7
from moorage.traces.usage import Model, Usage, find_model, read_usage

RUN_TYPES = frozenset({"tool", "chain", "llm", "retriever", "embedding", "prompt", "parser"})
DEFAULT_PROJECT = "default"
PROJECT_NAME_CHARS_MAX = 600
NAME_CHARS_MAX = 10_000
RUNS_MAX = 20_000  # of one request; clients send a hundred
THREAD_ID_CHARS_MAX = 1000
DOTTED_ORDER_CHARS_MAX = 60_000  # some thousand levels

# Payloads, each of which a client may send as a separate part.
PAYLOADS = frozenset({"inputs", "outputs", "events", "extra", "error", "serialized"})

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SEGMENT = rf"[0-9]{{8}}T[0-9]{{12}}Z{_UUID}"
_CANONICAL = re.compile(_UUID)
_DOTTED_ORDER = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_STAMP_CHARS, _SEGMENT_CHARS = 22, 58
_ADDRESS = re.compile(r"lrn:agents/([^/]{1,250})/environments/([^/]{1,250})")
# A number with this many digits may not fit into 64 bits, and then the fast decoder would round it.
_HUGE_NUMBER = b"0" * 19
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_END_US = (datetime(2200, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_NO_MAIN: dict[str, Any] = {}


class RefusedRunError(MoorageError):
    """A run of a request is invalid. The other runs of the request are stored anyway."""

    status = 422
    code = "invalid_run"


class RefusedOrderError(RefusedRunError):
    """A dotted_order is malformed, or contradicts the other ids of the run."""

    status = 400
    code = "invalid_dotted_order"


class SentRun:
    """Operation on one run, as its client sent it: the bytes of its parts."""

    __slots__ = ("attachments", "id", "is_patch", "main", "payloads")

    def __init__(self, run_id: str, *, is_patch: bool) -> None:
        self.id = run_id
        self.is_patch = is_patch
        self.main: bytes | None = None
        self.payloads: dict[str, bytes] = {}
        self.attachments: bytes | None = None  # JSON: name -> where it lies


@dataclass(slots=True)
class RunWrite:
    """Values to write for one run, as far as its client gave them."""

    sent: SentRun
    id: str
    trace_id: str | None
    parent_run_id: str | None
    dotted_order: str | None
    start_us: int | None
    project_id: UUID | None
    project_name: str | None
    run_type: str | None
    # The columns of RunValues up to `attachments`; tokens and costs follow from `usage` and `model`.
    values: tuple[Any, ...]
    usage: Usage | None
    model: Model | None
    # Metadata and outputs of a PATCH that leaves out the run's type or model, kept until those of its POST are known.
    unclear: tuple[Any, Any] | None
    session_id: UUID | None = None  # of the project, once it is known

    @property
    def is_patch(self) -> bool:
        return self.sent.is_patch

    def clarify(self, run_type: str | None, metadata: Any, parameters: Any) -> None:
        """Set usage and model, given the values of this PATCH's POST."""
        assert self.unclear is not None
        own_metadata, outputs = self.unclear
        self.usage = read_usage(own_metadata, outputs, self.run_type or run_type)
        self.model = self.model or find_model(metadata, parameters)
        self.unclear = None


def split_batch(body: bytes) -> list[SentRun]:
    """Split a `{"post": [...], "patch": [...]}` body into its runs.

    Raises RefusedRunError for any other body, BodyTooLargeError for more than RUNS_MAX runs.
    """
    batch, write = _decoded_exactly(body)
    sent: list[SentRun] = []
    for operation in ("post", "patch"):
        runs = batch.get(operation) if isinstance(batch, dict) else ...
        if runs is not None and not (isinstance(runs, list) and all(isinstance(run, dict) for run in runs)):
            raise RefusedRunError('expected an object with lists of runs under "post" and "patch"')
        if len(sent) + len(runs or ()) > RUNS_MAX:
            raise BodyTooLargeError(f"The body has more than {RUNS_MAX} runs; send them in several requests")
        sent += [_sent(run, operation == "patch", write) for run in runs or ()]
    return sent


def split_single(body: bytes, run_id: str | None = None) -> list[SentRun]:
    """Read a body that is one run; with an id, an update of that run. Raises RefusedRunError.

    A new run without an id is given one: the JavaScript SDK's `createRun` may leave it out.
    """
    run, write = _decoded_exactly(body)
    if not isinstance(run, dict):
        raise RefusedRunError("expected a run, as a JSON object")
    if run_id is not None:
        run["id"] = run_id
    elif run.get("id") is None:
        run["id"] = _new_id(run)
    return [_sent(run, run_id is not None, write)]


def _new_id(run: dict[str, Any]) -> str:
    """Find an id: the last segment of the dotted_order, else the trace_id of a root, else a new one."""
    order = run.get("dotted_order")
    if isinstance(order, str) and _DOTTED_ORDER.fullmatch(order):
        return order[-36:]
    if run.get("trace_id") is not None and run.get("parent_run_id") is None:
        return str(run["trace_id"])
    return str(uuid7())


def _sent(run: dict[str, Any], is_patch: bool, write: Any) -> SentRun:  # noqa: FBT001
    sent = SentRun(str(run.get("id") or ""), is_patch=is_patch)
    sent.payloads = {field: write(run.pop(field)) for field in PAYLOADS & run.keys()}
    sent.main = write(run)
    return sent


def parse_run(sent: SentRun) -> RunWrite:
    """Parse one run. Raises RefusedRunError, whose text says what is wrong with it."""
    run = decode_json(sent.main)[1] if sent.main else _NO_MAIN
    if not isinstance(run, dict) or (sent.main is None and not sent.is_patch):
        raise RefusedRunError("the run itself is missing or no JSON object")
    run_id = _id(run.get("id") or sent.id, "id")
    run_type = _run_type(run, sent)
    trace_id, parent_run_id, dotted_order, start_us = _place_in_trace(run, run_id, sent)
    outputs_json, outputs = _payload(sent, run, "outputs", dict)
    rest_json, metadata_json, metadata, parameters = _split_extra(sent, run)
    events_json, events = _payload(sent, run, "events", list)
    values = (
        _text(run, "name", NAME_CHARS_MAX) or (None if sent.is_patch else run_type),
        run_type,
        _time(run, "end_time"),
        _first_token(events_json, events),
        _error(sent, run),
        _payload(sent, run, "inputs", dict)[0],
        outputs_json,
        rest_json,
        metadata_json,
        events_json,
        _payload(sent, run, "serialized", object)[0],
        _tags(run.get("tags")),
        _optional_id(run, "reference_example_id"),
        _thread_id(metadata),
    )
    # A PATCH may leave out the run type; until that of its POST is known, it is taken for a model call.
    usage = read_usage(metadata, outputs, run_type or "llm")
    model = find_model(metadata, parameters) if usage is not None and not usage.has_cost else None
    is_unclear = sent.is_patch and usage is not None and (run_type is None or (model is None and not usage.has_cost))
    return RunWrite(
        sent=sent,
        id=run_id,
        trace_id=trace_id,
        parent_run_id=parent_run_id,
        dotted_order=dotted_order,
        start_us=start_us,
        project_id=_project_id(run),
        project_name=_project_name(run),
        run_type=run_type,
        values=values,
        usage=usage,
        model=model,
        unclear=(metadata, outputs) if is_unclear else None,
    )


def _run_type(run: dict[str, Any], sent: SentRun) -> str | None:
    run_type = run.get("run_type")
    if run_type is None and sent.is_patch:
        return None
    if not isinstance(run_type, str) or run_type not in RUN_TYPES:
        raise RefusedRunError(f"run_type must be one of {', '.join(sorted(RUN_TYPES))}")
    return run_type


# --- where a run stands -------------------------------------------------------------------------------------------------


def _place_in_trace(
    run: dict[str, Any], run_id: str, sent: SentRun
) -> tuple[str | None, str | None, str | None, int | None]:
    """Trace, parent, dotted order and start (microseconds since 1970)."""
    trace_id = _optional_id(run, "trace_id")
    parent_run_id = _optional_id(run, "parent_run_id")
    order = run.get("dotted_order")
    if order:
        return _checked_order(order, run_id, trace_id, parent_run_id, sent)
    if sent.is_patch:
        return trace_id, parent_run_id, None, None
    start_us = _time(run, "start_time")
    if start_us is None:
        start_us = (datetime.now(UTC) - _EPOCH) // _MICROSECOND
    if parent_run_id is not None:
        return trace_id, parent_run_id, None, start_us  # the order needs the parent's order
    if trace_id not in {None, run_id}:
        raise RefusedRunError("a run that is not the root of its trace needs a parent_run_id or a dotted_order")
    return run_id, None, order_segment(start_us, run_id), start_us


def _checked_order(
    order: Any, run_id: str, trace_id: str | None, parent_run_id: str | None, sent: SentRun
) -> tuple[str, str | None, str, int]:
    if not isinstance(order, str) or len(order) > DOTTED_ORDER_CHARS_MAX or not _DOTTED_ORDER.fullmatch(order):
        raise RefusedOrderError(
            "invalid 'dotted_order': expected segments <YYYYMMDDTHHMMSSffffffZ><run id> joined by dots"
        )
    parent = order[-2 * _SEGMENT_CHARS - 1 + _STAMP_CHARS : -_SEGMENT_CHARS - 1] or None
    if order[-36:] != run_id:
        complaint = "its last segment must be of this run"
    elif trace_id is not None and order[_STAMP_CHARS:_SEGMENT_CHARS] != trace_id:
        complaint = "its first segment must be of the trace"
    elif parent_run_id is not None and parent is None:
        complaint = "it must contain at least two parts for child runs"
    elif parent_run_id is None and parent is not None and not sent.is_patch:
        complaint = "it must contain a single part for root runs"
    elif parent_run_id is not None and parent != parent_run_id:
        complaint = "its last segment but one must be of the parent run"
    else:
        start_us = _order_start(order[-_SEGMENT_CHARS:])
        return order[_STAMP_CHARS:_SEGMENT_CHARS], parent, order, start_us
    shown = f"run_id:{run_id} trace_id:{trace_id} dotted_order:{order[:500]} parent_run_id:{parent_run_id}"
    raise RefusedOrderError(f"invalid 'dotted_order': {complaint}: {shown}")


def order_segment(start_us: int, run_id: str) -> str:
    """A segment of a dotted_order."""
    return f"{_EPOCH + start_us * _MICROSECOND:%Y%m%dT%H%M%S%fZ}{run_id}"


def _order_start(segment: str) -> int:
    try:
        start_us = _seconds(segment[:15]) * 1_000_000 + int(segment[15:21])
    except ValueError:
        raise RefusedOrderError("invalid 'dotted_order': its last segment is not a time") from None
    return _in_range(start_us, "the time in 'dotted_order'", RefusedOrderError)


@lru_cache(4096)
def _seconds(stamp: str) -> int:
    """Seconds since 1970 of a YYYYMMDDTHHMMSS. Cached, since the runs of a batch are only seconds apart."""
    return int(datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp())


def _project_id(run: dict[str, Any]) -> UUID | None:
    found = _optional_id(run, "session_id")
    return UUID(found) if found else None


def _project_name(run: dict[str, Any]) -> str | None:
    """Read the name of the run's project. Newer clients send an address, which names an agent and its environment."""
    name = run.get("session_name")
    if name is None and isinstance(address := run.get("address"), str) and (found := _ADDRESS.fullmatch(address)):
        name = f"{found[1]}/{found[2]}"
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > PROJECT_NAME_CHARS_MAX:
        raise RefusedRunError(f"session_name must be text of at most {PROJECT_NAME_CHARS_MAX} characters")
    return name


# --- values -------------------------------------------------------------------------------------------------------------


def _id(value: Any, field: str) -> str:
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        return value
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise RefusedRunError(f"{field} must be a UUID") from None


def _optional_id(run: dict[str, Any], field: str) -> str | None:
    value = run.get(field)
    return None if value is None else _id(value, field)


def _text(run: dict[str, Any], field: str, chars_max: int) -> str | None:
    value = run.get(field)
    if value is not None and not isinstance(value, str):
        raise RefusedRunError(f"{field} must be text")
    return value[:chars_max] if value else None


def _time(run: dict[str, Any], field: str) -> int | None:
    """Microseconds since 1970 of a time (in UTC if it has no zone) or of a number of milliseconds."""
    value = run.get(field)
    return None if value is None else _in_range(_microseconds(value, field), field)


def _microseconds(value: Any, field: str) -> int:
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise RefusedRunError(f"{field} must be a time in ISO 8601") from None
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if isinstance(value, int | float) and not isinstance(value, bool):  # from JavaScript's Date.now()
        return round(value * 1000)
    raise RefusedRunError(f"{field} must be a time in ISO 8601")


def _in_range(at_us: int, field: str, error: type[RefusedRunError] = RefusedRunError) -> int:
    if not 0 <= at_us < _END_US:
        raise error(f"{field} must lie between the years 1970 and 2199")
    return at_us


def _error(sent: SentRun, run: dict[str, Any]) -> str | None:
    data, error = _payload(sent, run, "error", object)
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


def _payload(sent: SentRun, run: dict[str, Any], field: str, kind: type) -> tuple[bytes | None, Any]:
    """Read a payload as bytes and as decoded value, from its separate part or from the run itself."""
    data = sent.payloads.get(field)
    if data is not None:
        data, value = decode_json(data)
    elif (value := run.get(field)) is not None:
        data = encode(value)
    if value is None:
        return None, None
    if not isinstance(value, kind):
        raise RefusedRunError(f"{field} must be {'an object' if kind is dict else 'a list'}")
    return data, value


def _split_extra(sent: SentRun, run: dict[str, Any]) -> tuple[bytes | None, bytes | None, dict[str, Any], Any]:
    """Split `extra` into the rest without metadata, the metadata, the decoded metadata, and the parameters of the call.

    A PATCH with `extra` replaces both the rest and the metadata.
    """
    data, extra = _payload(sent, run, "extra", dict)
    if data is None:
        return None, None, _NO_MAIN, None
    write = encode
    if _has_huge_number(data):
        extra, write = _decoded_exactly(data)
    metadata = extra.pop("metadata", None)
    if metadata is not None and not isinstance(metadata, dict):
        raise RefusedRunError("extra.metadata must be an object")
    return write(extra), write(metadata or {}), metadata or _NO_MAIN, extra.get("invocation_params")


def decode_json(data: bytes) -> tuple[bytes, Any]:
    """Return JSON bytes, repaired if needed, and their value. Raises RefusedRunError for bytes beyond repair."""
    try:
        return data, decode(data)
    except ValueError:
        value = _decoded_leniently(data)
        return _written_exactly(value), value


def _decoded_exactly(data: bytes) -> tuple[Any, Any]:
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
    text = _dump(value)
    # Going through UTF-16 replaces halves of surrogate pairs, which are invalid there.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


_dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
