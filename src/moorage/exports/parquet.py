"""Parquet files before their upload: spool files, fingerprints, and the changes for v1."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from os import SEEK_END
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow.parquet as pq  # type: ignore[import-untyped]

_TAIL = struct.Struct("<I4s")  # the length of the footer, and the magic number of the format
# Bytes of a footer, in Thrift's compact encoding: TIMESTAMP, in UTC or not, with the unit NANOS.
_NANOSECONDS_UTC, _NANOSECONDS = (bytes([0x8C, in_utc, 0x1C, 0x3C, 0, 0, 0, 0]) for in_utc in (0x11, 0x12))


@dataclass(frozen=True)
class Fingerprint:
    rows: int
    size_bytes: int
    sha256: str


@contextmanager
def spool_file(folder: Path) -> Iterator[IO[bytes]]:
    """Open a file without a name, so that its space is freed even if this process is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        yield file


def path_of(file: IO[bytes]) -> Path:
    """Return the path by which this process can open a spool file again, from its start."""
    return Path(f"/proc/self/fd/{file.fileno()}")


def fingerprint(file: Path) -> Fingerprint:
    """Compute the fingerprint. Reads the whole file, so run it in a thread."""
    with file.open("rb") as source, mmap(source.fileno(), 0, access=ACCESS_READ) as data:
        return Fingerprint(pq.read_metadata(data).num_rows, len(data), hashlib.sha256(data).hexdigest())


def drop_zones(file: IO[bytes], columns: int) -> None:
    """Mark the `columns` nanosecond columns in the footer of a Parquet file as times without a zone, as in v1.

    The engine marks all times as UTC. The values are the same either way, so only the footer changes.
    """
    file.seek(-_TAIL.size, SEEK_END)
    size, _ = _TAIL.unpack(file.read(_TAIL.size))
    begins_at = file.seek(-_TAIL.size - size, SEEK_END)
    footer = file.read(size)
    if footer.count(_NANOSECONDS_UTC) < columns:
        raise ValueError("the engine has written times in another form")
    file.seek(begins_at)
    # The schema comes first in the footer, before any data from rows, so the first matches are the columns.
    file.write(footer.replace(_NANOSECONDS_UTC, _NANOSECONDS, columns))
    file.flush()
