"""The library chDB: its connections, and how they run statements."""

from __future__ import annotations

import errno
import re
import secrets
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from os import SEEK_END
from pathlib import Path
from typing import IO, Any

from chdb import ChdbError
from chdb.state import connect  # by its own name, which imports it at once

IDLE_CONNECTIONS_MAX = 24

Settings = tuple[tuple[str, str], ...]

_SELECT = re.compile(r"\s*(?:\(|select\b|with\b)", re.IGNORECASE)
_PARQUET = re.compile(r"\bformat\s+parquet\s*;?\s*$", re.IGNORECASE)
_INSERT_DATA = re.compile(r"\s*(insert\s+into\b.*?)\s*\bformat\s+(\w+)\s*", re.IGNORECASE | re.DOTALL)
_SETTING_NAME = re.compile(r"\w+", re.ASCII)
_PARQUET_END = b"PAR1"
_NO_CODE = 1002  # ClickHouse's number for errors without a number of their own


class StatementError(Exception):
    """The engine refused or aborted a statement. `code` is ClickHouse's number for the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        found = re.search(r"Code: (\d+)", text)
        self.code = int(found[1]) if found else _NO_CODE


def insert_with_data(sql: str) -> re.Match[str] | None:
    """Match an INSERT … FORMAT x whose data follows in the body. The groups are the statement and the format."""
    return _INSERT_DATA.fullmatch(sql)


def is_parquet(sql: str) -> bool:
    """Return True if the statement names Parquet as the format of its result."""
    return _PARQUET.search(sql) is not None


class ChdbEngine:
    """The engine on one directory of data.

    Settings belong to a connection of the library. Each connection therefore serves only one database with one set of
    settings, so that the settings of one statement never apply to another.
    """

    def __init__(self, source: str, database: str, spool: Path, defaults: Settings) -> None:
        self._source = source
        self._spool = spool
        self._defaults = defaults
        for left_over in (*spool.glob("*.parquet"), *spool.glob("*.insert")):  # files left by a killed process
            left_over.unlink()
        # The engine closes with its last connection, so one stays open.
        self._root = connect(source)
        # Not the library's default database: it reads an unknown table from a file of the host.
        self._root.query(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Settings, Any]] = []  # ordered by use, the most recent last

    @contextmanager
    def connection(self, database: str, settings: Settings) -> Iterator[Connection]:
        """Lend a connection for one statement."""
        connection = self._take(database, settings) or self._open(database, settings)
        try:
            yield Connection(connection, self._spool)
        except BaseException:
            connection.close()  # opening a new connection is cheaper than finding out its state
            raise
        self._give_back(database, settings, connection)

    def cancel(self, mark: str) -> None:
        """Stop the statement that was begun with this mark, if it still runs."""
        with self.connection("", ()) as connection:
            list(connection.query(f"KILL QUERY WHERE startsWith(query, '/*{mark}*/') ASYNC", "Null", {}, ""))

    def _take(self, database: str, settings: Settings) -> Any:
        with self._lock:
            for number in reversed(range(len(self._idle))):
                if self._idle[number][:2] == (database, settings):
                    return self._idle.pop(number)[2]
        return None

    def _give_back(self, database: str, settings: Settings, connection: Any) -> None:
        with self._lock:
            self._idle.append((database, settings, connection))
            unused = self._idle.pop(0)[2] if len(self._idle) > IDLE_CONNECTIONS_MAX else None
        if unused is not None:
            unused.close()

    def _open(self, database: str, settings: Settings) -> Any:
        with _plain_errors():
            connection = connect(self._source)
            try:
                if database:
                    connection.query(f"USE `{_escaped(database)}`")
                # Later assignments win.
                assignments = [f"{_name(name)} = '{_escaped(value)}'" for name, value in (*self._defaults, *settings)]
                connection.query(f"SET {', '.join(assignments)}")
            except BaseException:
                connection.close()
                raise
        return connection


class Connection:
    """A connection that runs one statement at a time."""

    def __init__(self, connection: Any, spool: Path) -> None:
        self._connection = connection
        self._spool = spool

    def insert(self, statement: str, format_: str, data: Iterator[bytes]) -> None:
        """Insert data that arrives in pieces. The data is on the disk when this returns.

        The data is written to a file first: when the library's own streaming insert ran out of memory, it left rows out
        and reported success.
        """
        path = self._spool / f"{secrets.token_hex(8)}.insert"
        try:
            with path.open("wb") as file, _no_space_told():
                for piece in data:
                    file.write(piece)
            with _plain_errors():
                self._connection.query(f"{statement} FROM INFILE '{_escaped(str(path))}' FORMAT {format_}", "Null")
        finally:
            path.unlink(missing_ok=True)

    def query(self, sql: str, format_: str, params: dict[str, str], mark: str) -> Generator[bytes]:
        """Yield the result in pieces, in the format that the SQL names, or else in `format_`. `mark` is for
        `ChdbEngine.cancel`.

        Raises StatementError before the first piece or between two pieces.
        """
        marked = f"/*{mark}*/{sql}" if mark else sql
        if _SELECT.match(sql):
            with _plain_errors(), self._connection.send_query(marked, format_, params=params) as results:
                for result in results:
                    yield result.bytes()
        else:
            with _plain_errors():
                yield self._connection.query(marked, format_, params=params).bytes() or b""

    def parquet(self, sql: str, params: dict[str, str], mark: str) -> IO[bytes]:
        """Return the result of a statement that `is_parquet` as an unnamed file. The library's streaming would return
        several Parquet files as one.
        """
        path = self._spool / f"{secrets.token_hex(8)}.parquet"
        select = _PARQUET.sub(f"\nINTO OUTFILE '{_escaped(str(path))}' FORMAT Parquet", f"/*{mark}*/{sql}")
        try:
            with _plain_errors():
                self._connection.query(select, params=params)
            _check_whole(path)
            return path.open("rb")
        finally:
            path.unlink(missing_ok=True)  # unlinked now, so that it is removed even if the reader dies


def _check_whole(parquet: Path) -> None:
    """Check the file's end: when the disk is full, the library reports success and leaves an empty or truncated
    file.
    """
    with parquet.open("rb") as file:
        file.seek(max(0, file.seek(0, SEEK_END) - len(_PARQUET_END)))
        if file.read() != _PARQUET_END:
            raise StatementError("Code: 243. No space is left for the file of the answer")


def _name(name: str) -> str:
    if not _SETTING_NAME.fullmatch(name):
        raise StatementError(f"Code: 115. Unknown setting {name!r}")
    return name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("`", "\\`")


@contextmanager
def _no_space_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StatementError("Code: 243. No space is left for what is to be inserted") from error
        raise


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except (ChdbError, RuntimeError) as error:
        raise StatementError(str(error)) from error
