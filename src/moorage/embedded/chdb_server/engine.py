"""The library: its connections, and the three ways a statement is run."""

from __future__ import annotations

import re
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# chDB would load it for results that we never ask for, at the price of 40 MB in a process that is to be small.
sys.modules["pyarrow"] = None  # type: ignore[assignment]
import chdb  # noqa: E402  the line above comes first
from chdb import ChdbError  # noqa: E402

IDLE_CONNECTIONS_MAX = 24

Settings = tuple[tuple[str, str], ...]

_SELECT = re.compile(r"\s*(?:\(|select\b|with\b)", re.IGNORECASE)
_PARQUET = re.compile(r"\bformat\s+parquet\s*;?\s*$", re.IGNORECASE)
_INSERT_DATA = re.compile(r"\s*(insert\s+into\b.*?)\s*\bformat\s+(\w+)\s*", re.IGNORECASE | re.DOTALL)
_SETTING_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)


def is_insert_with_data(sql: str) -> bool:
    """Whether this is an INSERT … FORMAT x, whose data follows in the body."""
    return _INSERT_DATA.fullmatch(sql) is not None


class StatementError(Exception):
    """The engine refused a statement or gave it up. `code` is ClickHouse's number for the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        found = re.search(r"Code: (\d+)\.", text)
        self.code = int(found[1]) if found else 1002


class Engine:
    """One directory of data. Settings belong to a connection, so a connection serves one set of them, ever: what one
    statement asked for never reaches another.
    """

    def __init__(self, data: Path, configuration: Path, spool: Path, defaults: Settings) -> None:
        self._source = f"{data}?config-file={configuration}"
        self._spool = spool
        self._defaults = defaults
        self._root = self._connect()  # the engine closes with its last connection
        self._idle: dict[tuple[str, Settings], list[Any]] = {}
        self._lock = threading.Lock()
        for left_over in spool.glob("*.parquet"):
            left_over.unlink()

    @contextmanager
    def connection(self, database: str, settings: Settings) -> Iterator[Connection]:
        """A connection for one statement of one thread."""
        key = (database, settings)
        with self._lock:
            idle = self._idle.get(key)
            taken = idle.pop() if idle else None
        connection = taken or self._opened(database, settings)
        yield Connection(connection, self._spool)
        # One whose statement failed is not used again: it was never asked whether it could be.
        with self._lock:
            if sum(map(len, self._idle.values())) < IDLE_CONNECTIONS_MAX:
                self._idle.setdefault(key, []).append(connection)
                return
            self._idle.clear()
        connection.close()

    def _opened(self, database: str, settings: Settings) -> Any:
        connection = self._connect()
        try:
            with _plain_errors():
                if database:
                    connection.query("USE `{}`".format(database.replace("\\", "\\\\").replace("`", "\\`")))
                if settings:
                    connection.query("SET " + ", ".join(_assignment(name, value) for name, value in settings))
        except StatementError:
            connection.close()
            raise
        return connection

    def _connect(self) -> Any:
        connection = chdb.connect(self._source)
        if self._defaults:
            connection.query("SET " + ", ".join(_assignment(name, value) for name, value in self._defaults))
        return connection

    def cancel(self, mark: str) -> None:
        """Stops the statement that was run with this mark, if it still runs."""
        with self.connection("", ()) as connection:
            connection.execute(f"KILL QUERY WHERE startsWith(query, '/*{mark}*/') ASYNC")

    def close(self) -> None:
        with self._lock:
            self._idle.clear()
        self._root.close()


def _assignment(name: str, value: str) -> str:
    if not _SETTING_NAME.fullmatch(name):
        raise StatementError(f"Code: 115. Unknown setting {name!r}")
    return f"{name} = '{_escaped(value)}'"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except (ChdbError, RuntimeError) as error:
        raise StatementError(str(error)) from error


class Connection:
    """For one statement. `run` decides by the statement's first and last words how."""

    def __init__(self, connection: Any, spool: Path) -> None:
        self._connection = connection
        self._spool = spool

    def execute(self, sql: str) -> bytes:
        with _plain_errors():
            return self._connection.query(sql, "TabSeparated").bytes() or b""

    def insert(self, sql: str, data: Iterator[bytes]) -> None:
        """An INSERT … FORMAT x: its data is given to the engine as it comes, and is on the disk when this returns."""
        statement, format_ = _INSERT_DATA.fullmatch(sql).groups()  # type: ignore[union-attr]  asked for before
        with _plain_errors(), self._connection.send_insert(statement, format_) as inserter:
            for piece in data:
                inserter.append(piece)
            inserter.finish()

    def query(self, sql: str, default_format: str, params: dict[str, str], mark: str) -> Iterator[bytes]:
        """The result in pieces. Raises StatementError before the first piece or between two."""
        marked = f"/*{mark}*/{sql}"
        if _PARQUET.search(sql):
            yield from self._parquet(marked, params)
        elif _SELECT.match(sql):
            with _plain_errors(), self._connection.send_query(marked, default_format, params=params) as results:
                for result in results:
                    yield result.bytes()
        else:
            with _plain_errors():
                yield self._connection.query(marked, default_format, params=params).bytes() or b""

    def _parquet(self, sql: str, params: dict[str, str]) -> Iterator[bytes]:
        """Streamed Parquet would be several files in one, so the engine writes a file, and that is sent."""
        path = self._spool / f"{secrets.token_hex(8)}.parquet"
        try:
            with _plain_errors():
                select = _PARQUET.sub("", sql)
                self._connection.query(f"{select}\nINTO OUTFILE '{_escaped(str(path))}' FORMAT Parquet", params=params)
            with path.open("rb") as file:
                path.unlink()
                while piece := file.read(2**20):
                    yield piece
        finally:
            with suppress(FileNotFoundError):
                path.unlink()
