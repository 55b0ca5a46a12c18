"""Files on their way to a bucket: where they wait, what v1 has otherwise, and what tells one from another."""

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

_TAIL = struct.Struct("<I4s")  # the length of the footer, and the name of the format
# How a footer says it, in Thrift's compact encoding: TIMESTAMP, in UTC or not, of the unit NANOS.
_NANOSECONDS_UTC, _NANOSECONDS = (bytes([0x8C, in_utc, 0x1C, 0x3C, 0, 0, 0, 0]) for in_utc in (0x11, 0x12))


@dataclass(frozen=True)
class Fingerprint:
    rows: int
    size_bytes: int
    sha256: str


@contextmanager
def spool_file(folder: Path) -> Iterator[IO[bytes]]:
    """A file without a name: whatever happens to this process, the disk gets its space back."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        yield file


def path_of(file: IO[bytes]) -> Path:
    """Return the path by which this process can open a spool file again, from its start."""
    return Path(f"/proc/self/fd/{file.fileno()}")


def fingerprint(file: Path) -> Fingerprint:
    """Reads the file; run it in a thread."""
    with file.open("rb") as source, mmap(source.fileno(), 0, access=ACCESS_READ) as data:
        return Fingerprint(pq.read_metadata(data).num_rows, len(data), hashlib.sha256(data).hexdigest())


def drop_zones(file: IO[bytes], columns: int) -> None:
    """Says in the footer of a Parquet file that so many columns of nanoseconds are without a zone, as v1 has them. The
    engine says of every time that it is UTC; the values are the same either way, so the rest of the file stays as it is.
    """
    file.seek(-_TAIL.size, SEEK_END)
    size, _ = _TAIL.unpack(file.read(_TAIL.size))
    begins_at = file.seek(-_TAIL.size - size, SEEK_END)
    footer = file.read(size)
    if footer.count(_NANOSECONDS_UTC) < columns:
        raise ValueError("the engine has written times in another form")
    file.seek(begins_at)
    # The schema stands before all that comes from the rows, so these are the first.
    file.write(footer.replace(_NANOSECONDS_UTC, _NANOSECONDS, columns))
    file.flush()
