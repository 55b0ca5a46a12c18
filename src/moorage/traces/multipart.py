"""Streaming parser of multipart bodies.

Parts from the tracing clients state their length, in a `Content-Length` header or as `; length=N` after the content
type. These parts are sliced out without a scan. A part without a length ends at the next boundary line. Compressed
bodies are unpacked in small steps, so that a decompression bomb is refused early.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, Protocol

import zstandard

from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError

HEADERS_BYTES_MAX = 16 * 1024
# Compressed input that is unpacked in one step: at most 32 MB of output, since zstd makes up to 32 KB of one byte.
_STEP_BYTES = 1024
_UNPACKED_STEP_BYTES = 1024 * 1024
_TURN_BYTES = 256 * 1024
# Frames that need more memory than this for unpacking are refused. Twice the need of the clients' highest level.
_WINDOW_BYTES_MAX = 16 * 1024 * 1024

# The headers of a part as all tracing clients write them, so that most parts take one match.
_USUAL_HEADERS = re.compile(
    rb'\r\nContent-Disposition: form-data; name="([^"\r\n]+)"\r\nContent-Type: ([^;\r\n]+)\r\n'
    rb"Content-Length: ([0-9]{1,12})\r\n\r\n"
)
_NAME = re.compile(rb'\bname="([^"]*)"')
_LENGTH = re.compile(rb";\s*length=(\d{1,12})", re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)


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
        self._line_and_delimiter = b"\r\n--" + boundary
        self._chunks: list[bytes] = []
        self._size = 0
        self._needed = 0  # with fewer bytes than this no further part is complete
        self._ended = False

    def feed(self, chunk: bytes) -> list[Part]:
        """Return the parts that this chunk completes. Raises InvalidRequestError for a body that is not multipart."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        # Joining on each chunk would copy a large part again and again.
        return self._cut_all() if self._size >= self._needed else []

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
        self._size = len(data) - position
        self._needed -= position
        return parts

    def _cut(self, data: bytes, start: int) -> tuple[Part, int] | None:
        """Cut out the part whose boundary line begins at `start`. Returns also its end; None when more must arrive."""
        after = start + len(self._delimiter)
        self._needed = after + 2
        if len(data) < self._needed:
            return None
        if not data.startswith(self._delimiter, start):
            # A preamble would be legal, but no client sends one, so data was lost.
            raise InvalidRequestError("A part of the multipart body does not begin with the boundary")
        if data.startswith(b"--", after):
            self._ended = True
            return None
        headers = self._read_headers(data, after)
        if headers is None:
            return None
        name, content_type, length, body = headers
        end = body + length if length is not None else self._find_end(data, body)
        if end is None or len(data) < end + 2:
            self._needed = max(self._needed, (end or 0) + 2)
            return None
        if not data.startswith(b"\r\n", end):
            raise InvalidRequestError(f"The part {name[:100]!r} is not as long as it says")
        return Part(name, content_type, data[body:end]), end + 2

    def _read_headers(self, data: bytes, start: int) -> tuple[str, str, int | None, int] | None:
        """Read name, content type, length and the start of the part's body; None when more must arrive."""
        if usual := _USUAL_HEADERS.match(data, start):
            return _text(usual[1]), _text(usual[2]), int(usual[3]), usual.end()
        end = data.find(b"\r\n\r\n", start, start + HEADERS_BYTES_MAX)
        if end >= 0:
            return *_read_headers(data[start:end]), end + 4
        if len(data) - start > HEADERS_BYTES_MAX:
            raise InvalidRequestError("The headers of a part are too large, or do not end")
        self._needed = len(data) + 1
        return None

    def _find_end(self, data: bytes, body: int) -> int | None:
        """Find the end of a part without a length, once its boundary is there."""
        end = data.find(self._line_and_delimiter, body)
        if end >= 0:
            return end
        self._needed = 2 * len(data)  # a large part is searched a few times, not with each chunk
        return None


def _read_headers(block: bytes) -> tuple[str, str, int | None]:
    """Read name, content type and length from a part's header lines. Raises InvalidRequestError without a name."""
    name = content_type = b""
    length: int | None = None
    for line in block.split(b"\r\n"):
        key, _, value = line.partition(b":")
        key = key.strip().lower()
        if key == b"content-disposition":
            found = _NAME.search(value)
            name = found[1] if found else b""
        elif key == b"content-type":
            content_type = value.strip()
        elif key == b"content-length":
            length = _read_length(value.strip())
        elif key == b"content-encoding":
            raise InvalidRequestError("A part has a Content-Encoding; compress the whole body instead")
    if length is None and (given := _LENGTH.search(content_type)):
        length = int(given[1])
        content_type = content_type[: given.start()]
    if not name:
        raise InvalidRequestError("A part has no name in its Content-Disposition")
    return _text(name), _text(content_type), length


def _read_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 12:
        raise InvalidRequestError("The Content-Length of a part is not a number")
    return int(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class _Unpacker(Protocol):
    def unpack(self, data: bytes) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class _Gzip:
    """Gzip, of one member or several."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._fed = False

    def unpack(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            try:
                yield self._member.decompress(data, _UNPACKED_STEP_BYTES)
            except zlib.error:
                raise InvalidRequestError("The body is not valid gzip") from None
            data = self._member.unconsumed_tail or self._member.unused_data

    def close(self) -> None:
        if not self._member.eof:
            raise InvalidRequestError("The gzip body is incomplete")


class _Zstd:
    """Zstandard, of one frame or several, whether or not they say their size."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        self._frame = self._decompressor.decompressobj()

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _STEP_BYTES):
            step = data[start : start + _STEP_BYTES]
            while step:
                if self._frame.eof:
                    self._frame = self._decompressor.decompressobj()
                try:
                    yield self._frame.decompress(step)
                except zstandard.ZstdError:
                    raise InvalidRequestError("The body is not valid zstd") from None
                step = self._frame.unused_data

    def close(self) -> None:
        if not self._frame.eof:
            raise InvalidRequestError("The zstd body is incomplete")


_UNPACKERS: dict[str, type[_Gzip | _Zstd]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}


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
            if len(piece) <= _TURN_BYTES:
                yield piece
                continue
            # A chunk may unpack to a thousand times its size, so other tasks get turns in between.
            for start in range(0, len(piece), _TURN_BYTES):
                yield piece[start : start + _TURN_BYTES]
                await asyncio.sleep(0)
    if unpacker and wire_bytes:
        unpacker.close()


def _unpacker(encoding: str) -> _Unpacker | None:
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return None
    if name not in _UNPACKERS:
        raise InvalidRequestError(f"Unknown Content-Encoding; known are {', '.join(_UNPACKERS)}")
    return _UNPACKERS[name]()
