"""The library: its connections, and the ways in which a statement is run."""

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
from chdb.state import connect  # by its own name, or it would be loaded when first used

IDLE_CONNECTIONS_MAX = 24

Settings = tuple[tuple[str, str], ...]

_SELECT = re.compile(r"\s*(?:\(|select\b|with\b)", re.IGNORECASE)
_PARQUET = re.compile(r"\bformat\s+parquet\s*;?\s*$", re.IGNORECASE)
_INSERT_DATA = re.compile(r"\s*(insert\s+into\b.*?)\s*\bformat\s+(\w+)\s*", re.IGNORECASE | re.DOTALL)
_SETTING_NAME = re.compile(r"\w+", re.ASCII)
_PARQUET_END = b"PAR1"
_NO_CODE = 1002  # ClickHouse's own number for what has none


class StatementError(Exception):
    """The engine refused a statement, or gave it up. `code` is ClickHouse's number for the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        found = re.search(r"Code: (\d+)", text)
        self.code = int(found[1]) if found else _NO_CODE


def insert_with_data(sql: str) -> re.Match[str] | None:
    """The statement and the format of an INSERT … FORMAT x, whose data follows in the body."""
    return _INSERT_DATA.fullmatch(sql)


def is_parquet(sql: str) -> bool:
    """Return True if the statement names Parquet as the format of its result."""
    return _PARQUET.search(sql) is not None


class ChdbEngine:
    """One directory of data.

    Settings belong to a connection of the library, so a connection serves one database with one set of settings, ever:
    what one statement asked for never reaches another.
    """

    def __init__(self, source: str, database: str, spool: Path, defaults: Settings) -> None:
        self._source = source
        self._spool = spool
        self._defaults = defaults
        for left_over in (*spool.glob("*.parquet"), *spool.glob("*.insert")):  # of a process that was killed
            left_over.unlink()
        # The engine would close with its last connection.
        self._root = connect(source)
        # Not the library's own database, in which a table that is not there is looked for as a file of the host.
        self._root.query(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Settings, Any]] = []  # those used last stand last

    @contextmanager
    def connection(self, database: str, settings: Settings) -> Iterator[Connection]:
        """A connection for one statement."""
        connection = self._take(database, settings) or self._open(database, settings)
        try:
            yield Connection(connection, self._spool)
        except BaseException:
            connection.close()  # cheaper to open than to ask what state it is in
            raise
        self._give_back(database, settings, connection)

    def cancel(self, mark: str) -> None:
        """Stops the statement that was begun with this mark, if it still runs."""
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
                # Later ones win.
                assignments = [f"{_name(name)} = '{_escaped(value)}'" for name, value in (*self._defaults, *settings)]
                connection.query(f"SET {', '.join(assignments)}")
            except BaseException:
                connection.close()
                raise
        return connection


class Connection:
    """Runs one statement."""

    def __init__(self, connection: Any, spool: Path) -> None:
        self._connection = connection
        self._spool = spool

    def insert(self, statement: str, format_: str, data: Iterator[bytes]) -> None:
        """Insert what comes in pieces. It is on the disk when this returns.

        By way of a file: the library's own streaming insert says that all is well when it ran out of memory and left
        the rows out.
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
        """The result in pieces, in the format that the SQL names, or else in `format_`. `mark` is for `ChdbEngine.cancel`.

        Raises StatementError before the first piece, or between two.
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
        """The result of a statement that `is_parquet`, as a file without a name: the library would stream several Parquet
        files as one.
        """
        path = self._spool / f"{secrets.token_hex(8)}.parquet"
        select = _PARQUET.sub(f"\nINTO OUTFILE '{_escaped(str(path))}' FORMAT Parquet", f"/*{mark}*/{sql}")
        try:
            with _plain_errors():
                self._connection.query(select, params=params)
            _check_whole(path)
            return path.open("rb")
        finally:
            path.unlink(missing_ok=True)  # gone whatever happens to the reader


def _check_whole(parquet: Path) -> None:
    """A full disk is no error to the library here: it says that all is well, and leaves a file that is empty or cut."""
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
