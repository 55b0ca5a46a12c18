"""Parser of ClickHouse's HTTP requests: the statement to run, and its data as a stream."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import lz4.frame  # type: ignore[import-untyped]
import zstandard

LINE_BYTES_MAX = 2**20
HEADERS_MAX = 100
STATEMENT_BYTES_MAX = 32 * 2**20  # also holds the parameters, if the body brings them
DATA_BYTES_MAX = 2**30
_READ_BYTES = 2**18
# If the whole statement of an insert is in the body, it is the first line.
_BEGINS_INSERT = re.compile(rb"\s*insert\s+into\b", re.IGNORECASE)
_INSERT = re.compile(rb"[^\n]*\bformat\s+\w+[ \t]*\n", re.IGNORECASE)
_FIELD_NAME = re.compile(rb'name="([^"]*)"')


class MalformedRequestError(Exception):
    """The request cannot be parsed, so the bytes after it on the connection cannot be trusted either."""


@dataclass
class HttpRequest:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Iterator[bytes] = field(repr=False)

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"

    def read_statement(self) -> str:
        """Return the SQL to run. Afterwards `body` is the data of an insert, and `params` includes the values of a
        form.
        """
        sql = self.params.get("query", "")
        content_type = self.headers.get("content-type", "")
        if content_type.startswith("multipart/form-data"):
            self.params |= _read_form(content_type, _joined(self.body))
            return self.params.get("query", "")
        if _BEGINS_INSERT.match(sql.encode()):
            return sql
        return sql + self._read_head()

    def _read_head(self) -> str:
        head = b""
        for piece in self.body:
            head += piece
            if _BEGINS_INSERT.match(head) and (statement := _INSERT.match(head)):
                self.body = _chained(head[statement.end() :], self.body)
                return statement[0].decode()
            if len(head) > STATEMENT_BYTES_MAX:
                raise MalformedRequestError("the statement is too long")
        return head.decode()


def read_request(stream: BufferedReader) -> HttpRequest | None:
    """Read the next request of a connection, or return None when the client has closed it.

    Raises MalformedRequestError and ValueError.
    """
    start = stream.readline(LINE_BYTES_MAX)
    if not start:
        return None
    words = start.decode("ascii").split()
    if len(words) != 3 or not start.endswith(b"\n"):
        raise MalformedRequestError("not a request of HTTP/1.1, or its address is too long")
    headers = _read_headers(stream)
    address = urlsplit(words[1])
    params = dict(parse_qsl(address.query, keep_blank_values=True))
    body = _bounded(_decompressed(_read_body(stream, headers), headers.get("content-encoding", "")))
    return HttpRequest(words[0], address.path, params, headers, body)


def _read_headers(stream: BufferedReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = stream.readline(LINE_BYTES_MAX)
        if line == b"\r\n":
            return headers
        name, separator, value = line.decode("latin-1").partition(":")
        if not separator:
            break
        headers[name.strip().lower()] = value.strip()
    raise MalformedRequestError("broken headers, or too many")


def _read_body(stream: BufferedReader, headers: dict[str, str]) -> Iterator[bytes]:
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        yield from _read_exactly(stream, int(headers.get("content-length", "0")))
        return
    while size := int(stream.readline(LINE_BYTES_MAX).partition(b";")[0], 16):
        yield from _read_exactly(stream, size)
        stream.readline(LINE_BYTES_MAX)
    while stream.readline(LINE_BYTES_MAX).strip():
        pass  # trailers contain nothing that is used


def _read_exactly(stream: BufferedReader, size: int) -> Iterator[bytes]:
    while size > 0:
        data = stream.read(min(size, _READ_BYTES))
        if not data:
            raise MalformedRequestError("the body ended early")
        size -= len(data)
        yield data


def _decompressed(body: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    if encoding in ("", "identity"):
        yield from body
        return
    decompressor = _decompressor(encoding)
    for data in body:
        try:
            plain = decompressor.decompress(data)
        except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
            raise MalformedRequestError(f"the body is not {encoding}: {error}") from error
        if plain:
            yield plain


def _decompressor(encoding: str) -> Any:
    if encoding == "gzip":
        return zlib.decompressobj(wbits=31)
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    if encoding == "lz4":
        return lz4.frame.LZ4FrameDecompressor()
    raise MalformedRequestError(f"unknown Content-Encoding {encoding!r}")


def _bounded(body: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for data in body:
        size += len(data)
        if size > DATA_BYTES_MAX:
            raise MalformedRequestError("the body is too long")
        yield data


def _joined(body: Iterator[bytes]) -> bytes:
    pieces, size = [], 0
    for data in body:
        pieces.append(data)
        size += len(data)
        if size > STATEMENT_BYTES_MAX:
            raise MalformedRequestError("the form is too long")
    return b"".join(pieces)


def _read_form(content_type: str, body: bytes) -> dict[str, str]:
    """Parse a form's plain fields. The boundary is chosen by the client and occurs in none of them."""
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    fields = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        if not (name := _FIELD_NAME.search(head)):
            raise MalformedRequestError("a broken form")
        fields[name[1].decode()] = value.removesuffix(b"\r\n").decode()
    return fields


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest
