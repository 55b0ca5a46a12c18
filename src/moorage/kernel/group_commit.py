"""Group commit in PostgreSQL: one statement inserts the rows of many tasks, so that all of them wait for the disk once.

Rows are sent as one array per column, in PostgreSQL's binary form. The server then runs one INSERT per table instead of
one per row, and the driver handles a dozen parameters instead of a dozen per row.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.rows import DictRow

from moorage.kernel.gathering import Gathering
from moorage.kernel.postgres import Postgres, plain_errors

# Per statement, unless a single member is larger. PostgreSQL's limit for a value is 1 GB.
_GROUP_BYTES_MAX = 64 * 2**20
_STOP_S = 5.0


@dataclass(frozen=True)
class SqlType:
    """A PostgreSQL type and the binary form of its values."""

    sql_type: str
    oid: int
    binary: Callable[[Any], bytes]


TEXT = SqlType("text", 25, str.encode)
BYTES = SqlType("bytea", 17, bytes)
JSON = SqlType("jsonb", 3802, lambda value: b"\x01" + value)  # given as bytes of JSON
INT = SqlType("int4", 23, struct.Struct("!i").pack)
BIGINT = SqlType("int8", 20, struct.Struct("!q").pack)
ID = SqlType("uuid", 2950, lambda value: value.bytes)

Row = Sequence[str | bytes | int | UUID | None]


@dataclass(frozen=True, eq=False)
class Insert:
    """An INSERT whose rows come `FROM {rows}`, which is replaced by one array per column."""

    text: str
    columns: tuple[SqlType, ...]
    sql: str = field(init=False)

    def __post_init__(self) -> None:
        arrays = ", ".join(f"%s::{column.sql_type}[]" for column in self.columns)
        object.__setattr__(self, "sql", self.text.replace("{rows}", f"unnest({arrays})").strip())


Write = tuple[Insert, Sequence[Row]]


class _Array(bytes):
    """The binary form of an array; the statement names its type."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: _Array) -> bytes:
        return obj


psycopg.adapters.register_dumper(_Array, _ArrayDumper)

_HEADER = struct.Struct("!iiiii")  # dimensions, whether there may be NULLs, type, length, first index
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)


def _array(column: SqlType, values: Sequence[Any]) -> _Array:
    parts = [_HEADER.pack(1, 1, column.oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            data = column.binary(value)
            parts += (_LENGTH(len(data)), data)
    return _Array(b"".join(parts))


class GroupCommit:
    """Writes of many tasks in one transaction. An acknowledged write is durable."""

    def __init__(self, postgres: Postgres, *, group_bytes_max: int = _GROUP_BYTES_MAX) -> None:
        self._postgres = postgres
        self._connection: AsyncConnection[DictRow] | None = None  # its own: taking one from the pool would cost as much
        self._groups = Gathering[Sequence[Write]](self._commit, (_size_bytes, group_bytes_max))

    def write(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """Queue the rows. The future is done when they are durable, or holds the error. Cancelling it takes nothing
        back.
        """
        return self._groups.add(writes)

    async def _commit(self, members: Sequence[Sequence[Write]]) -> None:
        """Write all members in one statement: one transaction and one round trip."""
        writes = _merged(members)
        if not writes:
            return
        if self._connection is None or self._connection.closed:
            self._connection = await self._postgres.connect_patiently()
        *first, last = (insert.sql for insert, _ in writes)
        with_first = f"WITH {', '.join(f'w{number} AS ({sql})' for number, sql in enumerate(first))} " if first else ""
        values = [
            _array(column, cells)
            for insert, rows in writes
            for column, cells in zip(insert.columns, zip(*rows, strict=True), strict=True)
        ]
        with plain_errors():
            await self._connection.execute(with_first + last, values)

    async def close(self) -> None:
        """Write the queued rows, and close the connection."""
        await self._groups.finish(_STOP_S)
        if self._connection is not None:
            await self._connection.close()


def _size_bytes(writes: Sequence[Write]) -> int:
    return sum(len(cell) for _, rows in writes for row in rows for cell in row if type(cell) is bytes)


def _merged(members: Iterable[Sequence[Write]]) -> list[Write]:
    """Merge the rows by INSERT, in order of arrival. The INSERTs have a fixed order: each other order would be another
    statement to prepare.
    """
    rows: dict[Insert, list[Row]] = {}
    for writes in members:
        for insert, more in writes:
            rows.setdefault(insert, []).extend(more)
    return [(insert, rows[insert]) for insert in sorted(rows, key=attrgetter("sql")) if rows[insert]]
