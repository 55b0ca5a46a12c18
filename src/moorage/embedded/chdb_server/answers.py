"""Answers of ClickHouse's HTTP interface: small results as a whole, others in chunks, compressed if the client accepts
that; and files.
"""

from __future__ import annotations

import os
import secrets
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import lz4.frame  # type: ignore[import-untyped]
import zstandard

from moorage.embedded.chdb_server.requests import HttpRequest

_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 503: "Service Unavailable"}


class HttpAnswer:
    """The answer to one request, or to a connection that has sent none. `cut` tells that nothing may follow on the
    connection.
    """

    def __init__(self, client: socket.socket, request: HttpRequest | None = None) -> None:
        self._client = client
        self._request = request
        self._begun = False
        self.cut = False

    def send(self, pieces: Iterator[bytes], format_: str = "") -> None:
        """Send the pieces. Nothing is sent before the second piece is ready, so an early failure still gets its own
        status.
        """
        first = next(pieces, b"")
        second = next(pieces, None)
        encoding = self._encoding() if first else ""
        headers = {"X-ClickHouse-Format": format_, "Content-Encoding": encoding}
        if second is None:
            self._send_whole(200, headers, b"".join(_compressed(iter([first]), encoding)))
            return
        self._begun = True
        self._client.sendall(_head(200, headers | {"Transfer-Encoding": "chunked"}))
        for piece in _compressed(_chained(first, second, pieces), encoding):
            if piece:
                self._client.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._client.sendall(b"0\r\n\r\n")

    def send_file(self, file: IO[bytes], format_: str) -> None:
        """Send a file unchanged, by `sendfile`. Its format is already compressed."""
        size_bytes = os.fstat(file.fileno()).st_size
        self._begun = True
        self._client.sendall(_head(200, {"X-ClickHouse-Format": format_, "Content-Length": str(size_bytes)}))
        self._client.sendfile(file)

    def refuse(self, status: int, text: str, code: int) -> None:
        """Refuse the request. An answer that has begun can no longer change its status, so it is cut off, and the
        client notices.
        """
        self.cut = self._begun
        if not self._begun:
            headers = {"X-ClickHouse-Exception-Code": str(code)}
            self._send_whole(status, headers, text.encode(errors="replace") + b"\n")

    def _send_whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._client.sendall(_head(status, headers | {"Content-Length": str(len(body))}) + body)

    def _encoding(self) -> str:
        """Return the first encoding that the client names and the server supports."""
        if self._request and self._request.params.get("enable_http_compression") == "1":
            for word in self._request.headers.get("accept-encoding", "").split(","):
                if (name := word.partition(";")[0].strip()) in _COMPRESSORS:
                    return name
        return ""


def _head(status: int, headers: dict[str, str]) -> bytes:
    fixed = {
        "Content-Type": "application/octet-stream",
        "X-ClickHouse-Query-Id": secrets.token_hex(8),
        "X-ClickHouse-Summary": "{}",
        "X-ClickHouse-Timezone": "UTC",
    }
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Internal Server Error')}"]
    lines += [f"{name}: {value}" for name, value in (fixed | headers).items() if value]
    return "\r\n".join([*lines, "", ""]).encode()


def _chained(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


class _Lz4:
    """LZ4's compressor, with the methods of the other compressors."""

    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor()
        self._begin = self._frame.begin()

    def compress(self, data: bytes) -> bytes:
        begin, self._begin = self._begin, b""
        return bytes(begin + self._frame.compress(data))

    def flush(self) -> bytes:
        return bytes(self._frame.flush())


_COMPRESSORS: dict[str, Callable[[], Any]] = {
    "lz4": _Lz4,
    "zstd": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    "gzip": lambda: zlib.compressobj(level=1, wbits=31),
}


def _compressed(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    if not encoding:
        yield from pieces
        return
    compressor = _COMPRESSORS[encoding]()
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()
