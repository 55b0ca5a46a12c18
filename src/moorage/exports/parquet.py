"""Files on their way: the engine's Parquet into a spool file, v1's cast of it, and what tells one file from another."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from moorage.exports.records.exports import Compression

_READ_BYTES = 2**20
_CODECS = {
    Compression.NONE: "none",
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.ZSTANDARD: "zstd",
}


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
    """Where others of this process can open a spool file, from its start."""
    return Path(f"/proc/self/fd/{file.fileno()}")


async def fill(file: IO[bytes], pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        await asyncio.to_thread(file.write, piece)
    await asyncio.to_thread(file.flush)


def fingerprint(file: Path) -> Fingerprint:
    """Reads the file; run it in a thread."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as source:
        while piece := source.read(_READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return Fingerprint(pq.read_metadata(file).num_rows, size, digest.hexdigest())


def cast_to_v1(source: Path, target: IO[bytes], compression: Compression) -> None:
    """The same rows as v1 has them: times as nanoseconds without a zone. One row group at a time; run it in a thread."""
    with pq.ParquetFile(source) as file:
        schema = v1_schema(file.schema_arrow)
        with pq.ParquetWriter(target, schema, compression=_CODECS[compression], version="2.6") as writer:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                writer.write_table(_cast(table, schema), row_group_size=max(1, table.num_rows))
    target.flush()


def v1_schema(schema: pa.Schema) -> pa.Schema:
    fields = [_without_zone(field) if pa.types.is_timestamp(field.type) else field for field in schema]
    return pa.schema([cast(Any, field).with_nullable(True) for field in fields])


def _without_zone(field: Any) -> Any:
    return field.with_type(pa.timestamp("ns"))


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)], schema=schema
    )
