"""Requests of ClickHouse's HTTP interface, as they come over a connection: what to run, for whom, and a body as a stream."""

from __future__ import annotations

import email.parser
import email.policy
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol
from urllib.parse import parse_qsl, urlsplit

import lz4.frame
import zstandard

LINE_BYTES_MAX = 2**20
HEADERS_MAX = 100
STATEMENT_BYTES_MAX = 16 * 2**20  # values that are too long for an address come in the body, as a form
_READ_BYTES = 2**18
# A client writes the statement of an insert before its data, on one line.
_INSERT = re.compile(rb"\s*insert\s+into\b[^\n]*?\bformat\s+\w+[ \t]*\n", re.IGNORECASE)
_BEGINS_INSERT = re.compile(rb"\s*insert\s", re.IGNORECASE)


class BadHttpError(Exception):
    """What came is not a request that we can answer and then go on with the connection."""


class _Decompressor(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass
class Request:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Iterator[bytes] = field(repr=False)

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"

    def statement(self) -> str:
        """The SQL to run. Afterwards `body` is the data of an insert, without its statement."""
        sql = self.params.get("query", "")
        if "multipart/form-data" in self.headers.get("content-type", ""):
            self.params.update(_form(self.headers["content-type"], _joined(self.body)))
            return "\n".join(filter(None, (sql, self.params.get("query", ""))))
        if _BEGINS_INSERT.match(sql.encode()):
            return sql
        head = b""
        for chunk in self.body:
            head += chunk
            if insert := _INSERT.match(head):
                self.body = _chained(head[insert.end() :], self.body)
                return insert[0].decode()
            # The data of an insert never counts: its statement is found in the first chunks.
            if len(head) > STATEMENT_BYTES_MAX or (_BEGINS_INSERT.match(head) and len(head) > LINE_BYTES_MAX):
                raise BadHttpError("the statement is too long")
        return "\n".join(filter(None, (sql, head.decode())))


def read_request(stream: BinaryIO) -> Request | None:
    """The next request of a connection, or None when the client has closed it."""
    start = stream.readline(LINE_BYTES_MAX)
    if not start:
        return None
    try:
        method, target, _ = start.decode("ascii").split()
    except ValueError:
        raise BadHttpError("not HTTP") from None
    headers = _read_headers(stream)
    address = urlsplit(target)
    params = dict(parse_qsl(address.query, keep_blank_values=True))
    body = _decompressed(_read_body(stream, headers), headers.get("content-encoding", ""))
    return Request(method, address.path, params, headers, body)


def _read_headers(stream: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = stream.readline(LINE_BYTES_MAX)
        if line in (b"\r\n", b"\n"):
            return headers
        name, separator, value = line.decode("latin-1").partition(":")
        if not separator:
            break
        headers[name.strip().lower()] = value.strip()
    raise BadHttpError("broken headers")


def _read_body(stream: BinaryIO, headers: dict[str, str]) -> Iterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        yield from _read_chunks(stream)
        return
    left = int(headers.get("content-length", "0"))
    while left > 0:
        data = stream.read(min(left, _READ_BYTES))
        if not data:
            raise BadHttpError("the body ended early")
        left -= len(data)
        yield data


def _read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        size = int(stream.readline(LINE_BYTES_MAX).partition(b";")[0], 16)
        if size == 0:
            while stream.readline(LINE_BYTES_MAX).strip():
                pass  # trailers say nothing that we need
            return
        while size > 0:
            data = stream.read(min(size, _READ_BYTES))
            if not data:
                raise BadHttpError("the body ended early")
            size -= len(data)
            yield data
        stream.readline(LINE_BYTES_MAX)


def _decompressed(body: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    if not encoding or encoding == "identity":
        yield from body
        return
    decompressor = _decompressor(encoding)
    for data in body:
        if plain := decompressor.decompress(data):
            yield plain


def _decompressor(encoding: str) -> _Decompressor:
    if encoding == "gzip":
        return zlib.decompressobj(wbits=31)
    if encoding == "deflate":
        return zlib.decompressobj()
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    if encoding == "lz4":
        return lz4.frame.LZ4FrameDecompressor()
    raise BadHttpError(f"unknown Content-Encoding {encoding}")


def _form(content_type: str, body: bytes) -> dict[str, str]:
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body
    )
    return {
        str(part.get_param("name", header="content-disposition")): bytes(part.get_payload(decode=True)).decode()  # type: ignore[arg-type]
        for part in message.iter_parts()  # type: ignore[attr-defined]
    }


def _joined(body: Iterator[bytes]) -> bytes:
    whole = b""
    for data in body:
        whole += data
        if len(whole) > STATEMENT_BYTES_MAX:
            raise BadHttpError("the form is too long")
    return whole


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest
