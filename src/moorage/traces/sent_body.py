"""Bodies of ingest requests: from bytes as they arrive to the operations on runs, attachments and feedback in them.

Parts of multipart bodies from the tracing clients state their length, in a `Content-Length` header or as `; length=N`
after the content type. These parts are sliced out without a scan. A part without a length ends at the next boundary
line. Compressed bodies are unpacked in small steps, so that a decompression bomb is refused early.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import zstandard

from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError
from moorage.kernel.ids import uuid7
from moorage.traces.attachments import SentAttachment, read_attachment
from moorage.traces.parse_run import DOTTED_ORDER, PAYLOADS, RefusedRunError, decode_exactly, decode_json
from moorage.traces.records.run_rows import SentRun

RUNS_MAX = 20_000  # of one request; clients send a hundred
# Limit of one JSON text. A string of 32 MiB takes four times the memory if it has a character beyond the basic plane.
JSON_BYTES_MAX = 32 * 2**20
HEADERS_BYTES_MAX = 16 * 1024
_PARTS_MAX = 100_000
_FEEDBACK_BYTES_MAX = 2**20
# Compressed input that is unpacked in one step: at most 32 MB of output, since zstd makes up to 32 KB of one byte.
_STEP_BYTES = 1024
_TURN_BYTES = 256 * 1024
# Frames that need more memory than this for unpacking are refused. Twice the need of the clients' highest level.
_WINDOW_BYTES_MAX = 16 * 1024 * 1024

# The headers of a part as all tracing clients write them, so that most parts take one match.
_USUAL_HEADERS = re.compile(
    rb'\r\nContent-Disposition: form-data; name="([^"\r\n]+)"\r\nContent-Type: ([^;\r\n]+)\r\n'
    rb"Content-Length: ([0-9]{1,12})\r\n\r\n"
)
_NAME = re.compile(rb'\bname="([^"]+)"')
_LENGTH = re.compile(rb";\s*length=(\d{1,12})", re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)


def split_batch(body: bytes) -> list[SentRun]:
    """Split a `{"post": [...], "patch": [...]}` body into its runs.

    Raises RefusedRunError for any other body, BodyTooLargeError for more than RUNS_MAX runs.
    """
    batch, write = decode_exactly(body)
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
    run, write = decode_exactly(body)
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
    if isinstance(order, str) and DOTTED_ORDER.fullmatch(order):
        return order[-36:]
    if run.get("trace_id") is not None and run.get("parent_run_id") is None:
        return str(run["trace_id"])
    return str(uuid7())


def _sent(run: dict[str, Any], is_patch: bool, write: Callable[[Any], bytes]) -> SentRun:  # noqa: FBT001
    payloads = {name: write(run.pop(name)) for name in PAYLOADS.keys() & run.keys()}
    return SentRun(str(run.get("id") or ""), is_patch, write(run), payloads)


class SentBody:
    """Contents of a body. Parts are added as they arrive; the parts of a run may come in any order."""

    def __init__(self, runs: Iterable[SentRun] = ()) -> None:
        self.runs = list(runs)
        self.attachments: dict[str, list[SentAttachment]] = {}  # by the id of their run
        self.feedback: list[tuple[str, bytes]] = []  # ids and JSON
        self._by_name: dict[str, SentRun] = {}
        self._parts = self._entries = 0

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts.

        Raises InvalidRequestError for an unknown part, and BodyTooLargeError for a part that is too large or for too
        many parts.
        """
        for part in parts:
            self._parts += 1
            if self._parts > _PARTS_MAX:
                raise BodyTooLargeError(f"The body has more than {_PARTS_MAX} parts; send them in several requests")
            self._add(part)
            if self._entries > RUNS_MAX:
                raise BodyTooLargeError(
                    f"The body has more than {RUNS_MAX} runs, attachments and feedback; send them in several requests"
                )

    def all_runs(self) -> list[SentRun]:
        """List the runs, with empty updates of runs of which the body has only attachments."""
        alone = self.attachments.keys() - {run.id for run in self.runs}
        return [*self.runs, *(SentRun(run_id, is_patch=True) for run_id in alone)]

    def texts(self) -> Iterator[bytes]:
        """Yield all JSON texts of runs and feedback."""
        for run in self.runs:
            if run.main is not None:
                yield run.main
            yield from run.payloads.values()
        for _, data in self.feedback:
            yield data

    def read_feedback(self) -> list[dict[str, Any]]:
        """Decode the feedback. Raises InvalidRequestError for parts that are not feedback."""
        items = [(feedback_id, decode_json(data)[1]) for feedback_id, data in self.feedback]
        if not all(isinstance(item, dict) for _, item in items):
            raise InvalidRequestError("Feedback must be a JSON object")
        return [{"id": feedback_id, **item} for feedback_id, item in items]

    def _add(self, part: Part) -> None:
        kind, _, rest = part.name.partition(".")
        run_id, _, name = rest.partition(".")
        if kind in {"post", "patch"}:
            _check_size(part, JSON_BYTES_MAX)
            self._add_to_run(kind, run_id, name, part.data)
        elif kind == "attachment":
            attachment = read_attachment(run_id, name, part.content_type, part.data)
            self.attachments.setdefault(attachment.run_id, []).append(attachment)
            self._entries += 1
        elif kind == "feedback" and not name:
            _check_size(part, _FEEDBACK_BYTES_MAX)
            self.feedback.append((run_id, part.data))
            self._entries += 1
        else:
            raise InvalidRequestError(
                f"Unknown part {part.name[:100]!r}; expected post.<run id>, patch.<run id>, one of their fields, "
                "feedback.<id> or attachment.<run id>.<name>"
            )

    def _add_to_run(self, kind: str, run_id: str, field_name: str, data: bytes) -> None:
        name = kind + run_id
        run = self._by_name.get(name)
        # A body may hold several updates of one run; each begins with the run itself.
        if run is None or (not field_name and run.main is not None):
            run = self._by_name[name] = SentRun(run_id, kind == "patch")
            self.runs.append(run)
            self._entries += 1
        if not field_name:
            run.main = data
        elif field_name in PAYLOADS:
            run.payloads[field_name] = data
        else:
            raise InvalidRequestError(
                f"Unknown field {field_name[:100]!r} of a run; known are {', '.join(sorted(PAYLOADS))}"
            )


def _check_size(part: Part, bytes_max: int) -> None:
    if len(part.data) > bytes_max:
        raise BodyTooLargeError(f"The part {part.name[:100]!r} is larger than the limit of {bytes_max} bytes")


class Part(NamedTuple):
    name: str
    content_type: str  # without the `length` parameter
    data: bytes


def read_boundary(content_type: str) -> bytes:
    """Read the boundary from a `multipart/form-data` content type. Raises InvalidRequestError when it has none."""
    found = _BOUNDARY.search(content_type) if content_type.lower().startswith("multipart/") else None
    if found is None:
        raise InvalidRequestError("Expected the content type multipart/form-data with a boundary")
    return (found[1] or found[2]).encode("latin-1")


class MultipartParser:
    """Parser of one body, which it takes in chunks. Returns parts as they are complete."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"--" + boundary
        self._chunks: list[bytes] = []
        self._size = 0
        self._looked_at = 0  # number of bytes that contain no further complete part
        self._ended = False

    def feed(self, chunk: bytes) -> list[Part]:
        """Return the parts that this chunk completes, perhaps with a later one. Raises InvalidRequestError for a body
        that is not multipart.
        """
        self._chunks.append(chunk)
        self._size += len(chunk)
        # Looking at each chunk would copy and search a large part again and again.
        return self._cut_all() if self._size >= 2 * self._looked_at else []

    def close(self) -> list[Part]:
        """Return the parts that the end of the body completes. Raises InvalidRequestError if it ends within a part."""
        parts = self._cut_all()
        if not self._ended:
            raise InvalidRequestError("The multipart body ends before its last boundary")
        return parts

    def _cut_all(self) -> list[Part]:
        data, position = b"".join(self._chunks), 0
        parts: list[Part] = []
        # Ignore bytes after the final boundary.
        while not self._ended and (found := self._cut(data, position)):
            part, position = found
            parts.append(part)
        self._chunks = [] if self._ended else [data[position:]]
        self._size = self._looked_at = len(data) - position
        return parts

    def _cut(self, data: bytes, start: int) -> tuple[Part, int] | None:
        """Cut out the part whose boundary line begins at `start`. Returns also its end; None when more must arrive."""
        after = start + len(self._delimiter)
        if len(data) < after + 2:
            return None
        if not data.startswith(self._delimiter, start):
            # A preamble would be legal, but no client sends one, so data was lost.
            raise InvalidRequestError("A part of the multipart body does not begin with the boundary")
        if data.startswith(b"--", after):
            self._ended = True
            return None
        length: int | None
        if usual := _USUAL_HEADERS.match(data, after):
            name, content_type, length, body = _text(usual[1]), _text(usual[2]), int(usual[3]), usual.end()
        elif (body := data.find(b"\r\n\r\n", after, after + HEADERS_BYTES_MAX) + 4) >= 4:
            name, content_type, length = _read_headers(data[after : body - 4])
        elif len(data) - after > HEADERS_BYTES_MAX:
            raise InvalidRequestError("The headers of a part are too large, or do not end")
        else:
            return None
        end = data.find(b"\r\n" + self._delimiter, body) if length is None else body + length
        if end < 0 or len(data) < end + 2:
            return None
        if not data.startswith(b"\r\n", end):
            raise InvalidRequestError(f"The part {name[:100]!r} is not as long as it says")
        return Part(name, content_type, data[body:end]), end + 2


def _read_headers(block: bytes) -> tuple[str, str, int | None]:
    """Read name, content type and length from a part's header lines. Raises InvalidRequestError without a name."""
    lines = (line.partition(b":") for line in block.split(b"\r\n"))
    headers = {key.strip().lower(): value.strip() for key, _, value in lines}
    if b"content-encoding" in headers:
        raise InvalidRequestError("A part has a Content-Encoding; compress the whole body instead")
    name = _NAME.search(headers.get(b"content-disposition", b""))
    if name is None:
        raise InvalidRequestError("A part has no name in its Content-Disposition")
    content_type, length = headers.get(b"content-type", b""), headers.get(b"content-length")
    if length is None and (given := _LENGTH.search(content_type)):
        content_type, length = content_type[: given.start()], given[1]
    if length is not None and not (length.isdigit() and len(length) <= 12):
        raise InvalidRequestError("The Content-Length of a part is not a number")
    return _text(name[1]), _text(content_type), None if length is None else int(length)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# --- compression --------------------------------------------------------------------------------------------------------


class _Unpacker:
    """Gzip or zstd, of one frame or several, whether or not they say their size."""

    def __init__(self, name: str, begin_frame: Callable[[], Any]) -> None:
        self._name = name
        self._begin_frame = begin_frame
        self._frame = begin_frame()

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _STEP_BYTES):
            step = data[start : start + _STEP_BYTES]
            while step:
                if self._frame.eof:
                    self._frame = self._begin_frame()
                try:
                    yield self._frame.decompress(step)
                except (zlib.error, zstandard.ZstdError):
                    raise InvalidRequestError(f"The body is not valid {self._name}") from None
                step = self._frame.unused_data

    def close(self) -> None:
        if not self._frame.eof:
            raise InvalidRequestError(f"The {self._name} body is incomplete")


async def unpack(
    chunks: AsyncIterator[bytes], encoding: str, *, wire_bytes_max: int, unpacked_bytes_max: int
) -> AsyncIterator[bytes]:
    """Yield the body without its content encoding (gzip, zstd, or none), while it arrives.

    Raises BodyTooLargeError (413) over one of the limits, and InvalidRequestError (422) for a body that does not
    unpack.
    """
    unpacker = _unpacker(encoding)
    wire_bytes = unpacked_bytes = 0
    async for chunk in chunks:
        wire_bytes += len(chunk)
        if wire_bytes > wire_bytes_max:
            raise BodyTooLargeError(f"The request body is larger than the limit of {wire_bytes_max} bytes")
        for piece in unpacker.unpack(chunk) if unpacker else (chunk,):
            unpacked_bytes += len(piece)
            if unpacked_bytes > unpacked_bytes_max:
                raise BodyTooLargeError(
                    f"The request body unpacks to more than the limit of {unpacked_bytes_max} bytes"
                )
            for start in range(0, len(piece), _TURN_BYTES):
                if start:  # a chunk may unpack to a thousand times its size, so other tasks get turns in between
                    await asyncio.sleep(0)
                yield piece[start : start + _TURN_BYTES]
    if unpacker and wire_bytes:
        unpacker.close()


def _unpacker(encoding: str) -> _Unpacker | None:
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return None
    if name in {"gzip", "x-gzip"}:
        return _Unpacker("gzip", partial(zlib.decompressobj, wbits=31))
    if name == "zstd":
        return _Unpacker("zstd", zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompressobj)
    raise InvalidRequestError("Unknown Content-Encoding; known are gzip, x-gzip, zstd")
