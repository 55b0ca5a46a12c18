"""ClickHouse: embedded over its unix socket, or a server or cluster over HTTP. The SQL is in the rooms, not here.

clickhouse-connect's asyncio client needs aiohttp and uses threads for results anyway. Its synchronous client, run in
threads, costs less for answers of a few rows.
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import IO, Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urlencode, urlsplit
from uuid import UUID

import clickhouse_connect
import structlog
import urllib3
from clickhouse_connect.driver import options
from clickhouse_connect.driver.binding import format_bind_value, format_str
from clickhouse_connect.driver.ctypes import RespBuffCls
from clickhouse_connect.driver.exceptions import DatabaseError, Error, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.httputil import ResponseSource
from clickhouse_connect.driver.query import QueryContext, QueryResult
from clickhouse_connect.driver.transform import NativeTransform
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from moorage.kernel.errors import UnavailableError
from moorage.kernel.migrations import Migration, read_migrations, refuse_other_versions

log = structlog.get_logger(__name__)

# For an insert the client checks whether it got a data frame, and imports pandas for that if it is installed: 60 MB,
# and half a second of the first request that writes.
options.pd = None

Parameters = Mapping[str, Any]
Settings = Mapping[str, str | int]
Columns = Mapping[str, tuple[str, Sequence[Any]]]

T = TypeVar("T")

_SCHEMA = "clickhouse"
# Concurrent statements of one client. Together they are no more than the embedded engine runs at once; otherwise some
# would queue there and be refused. Inserts have slots of their own, so that they do not wait behind slow searches.
READS_AT_ONCE = 12
INSERTS_AT_ONCE = 3
_CONNECT_S = 5
_ANSWER_S = 90  # statements time out before that
# How long a statement waits for an engine that is away. After a crash an engine is back within a few seconds.
_PATIENCE_S = 8.0
_RETRY_S, _RETRY_S_MAX = 0.1, 1.0
_PIECE_BYTES = 2**20

_DISK_FULL = 243
_NO_SPACE = "No space left on device"
# ClickHouse's error numbers for temporary conditions.
_PASSING = {
    158: "This would look at more than it may; ask for less",
    159: "The trace store did not answer in time; ask for less, or try again",
    202: "The trace store is busy; try again in a moment",
    241: "The trace store has not enough memory for this; ask for less, or try again in a moment",
    242: "The trace store takes no writes at the moment; try again later",
    _DISK_FULL: "The disk of the trace store is full",
    252: "The trace store cannot keep up with what is written; try again in a moment",
    341: "The trace store could not finish the change; try again in a moment",
    394: "The trace store stopped the statement; try again",
}


class ClickHouse:
    """A client with bound parameters: `{name:Type}` in the SQL and `name` in `parameters`.

    A statement may be sent twice if the engine went away before it answered, so writes must be repeatable. All methods
    raise UnavailableError when the engine is away, overloaded or out of space.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._reading = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="clickhouse")
        self._inserting = ThreadPoolExecutor(INSERTS_AT_ONCE, thread_name_prefix="clickhouse-insert")
        self._client: HttpClient | None = None
        self._pool = _pool(url)
        self._connecting = threading.Lock()

    async def open(self) -> None:
        """Connect, or check that the engine still answers. Raises UnavailableError when it does not answer in time."""
        await self._patiently(_ping)

    async def close(self) -> None:
        for threads in (self._reading, self._inserting):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()
        self._pool.clear()  # the client does not close a pool that it did not make

    async def rows(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> list[tuple[Any, ...]]:
        """Return rows. Times are aware, in UTC; ids are UUID; costs are Decimal."""
        return list((await self._query(sql, parameters, settings)).rows)

    async def dicts(
        self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None
    ) -> list[dict[str, Any]]:
        answer = await self._query(sql, parameters, settings)
        return [dict(zip(answer.names, row, strict=True)) for row in answer.rows]

    async def value(self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None) -> Any:
        """Return the first column of the first row, or None without a row."""
        rows = await self.rows(sql, parameters, settings)
        return rows[0][0] if rows else None

    async def command(self, sql: str, parameters: Parameters | None = None, settings: Settings | None = None) -> None:
        """Run a statement without a result."""
        bound = _bound(parameters)
        # Not the client's own command: it puts values into the URL, where long ones do not fit.
        await self._patiently(lambda client: client.raw_query(sql, bound, settings=dict(settings or {})))

    async def insert(self, table: str, columns: Columns, settings: Settings | None = None) -> None:
        """Insert columns of one length: `{name: (ClickHouse type, values)}`. Durable when this returns."""
        names = list(columns)
        types = [kind for kind, _ in columns.values()]
        values = [column for _, column in columns.values()]

        def send(client: HttpClient) -> None:
            context = client.create_insert_context(
                table, names, column_type_names=types, column_oriented=True, settings=dict(settings or {})
            )
            try:
                client.insert(data=values, context=context)
            finally:
                # The context holds the columns and a reference cycle to itself. A garbage collection would free it, but
                # is rare in a server, so hundreds of megabytes could accumulate.
                vars(context).clear()

        await self._patiently(send, self._inserting)

    async def save(
        self, sql: str, file: IO[bytes], parameters: Parameters | None = None, settings: Settings | None = None
    ) -> None:
        """Write the answer to a file, in the format that the SQL ends with. Raises if the answer ends too early."""
        bound = _bound(parameters)
        answer = await self._patiently(partial(_begin_stream, sql, bound, dict(settings or {})))
        try:
            await _in_thread(self._reading, partial(_copy, answer, file))
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError("The trace store went away in the middle of an answer; try again") from error
        finally:
            answer.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date. Returns the names of the applied migrations. Safe to run concurrently, and after
        a crash in the middle, since every statement of a migration may be repeated.

        Raises StartupError when the schema is too new or too old for this program.
        """
        known = read_migrations(_SCHEMA)
        await self.command(_MIGRATIONS)
        applied = dict(await self.rows(_APPLIED))
        refuse_other_versions("The trace store's schema", known, applied)
        due = [migration for migration in known if migration.number not in applied]
        for migration in due:
            for statement in split_statements(migration.sql):
                await self.command(statement)
            await self._record(migration)
            log.debug("migration applied", schema=_SCHEMA, number=migration.number, name=migration.name)
        return [f"{_SCHEMA}/{migration.number:04}_{migration.name}" for migration in due]

    async def _record(self, migration: Migration) -> None:
        columns: Columns = {
            "number": ("UInt32", [migration.number]),
            "name": ("String", [migration.name]),
            "compatible_from": ("UInt32", [migration.compatible_from]),
        }
        await self.insert("moorage_migrations", columns)

    async def _query(self, sql: str, parameters: Parameters | None, settings: Settings | None) -> _Answer:
        form = _Form(f"{sql}\nFORMAT Native", parameters or {})
        return await self._patiently(partial(self._read, form, settings or {}))

    def _read(self, form: _Form, settings: Settings, client: HttpClient) -> _Answer:
        """Run a query. The client's own query method takes half a millisecond more, as long as the engine needs for a
        small statement.
        """
        params = {**client.params, "database": client.database, "wait_end_of_query": 1, **settings}
        headers = {**client.headers, "Content-Type": form.content_type}
        if client.compression:
            params["enable_http_compression"], headers["Accept-Encoding"] = 1, client.compression
        try:
            response = self._pool.connection_from_url(client.url).urlopen(
                "POST",
                f"/?{urlencode(params)}",
                form.body,
                headers,
                retries=False,  # ours are more patient
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=_ANSWER_S),
                preload_content=False,
            )
            if response.status != HTTPStatus.OK:
                code = response.headers.get("X-ClickHouse-Exception-Code")
                refusal = OperationalError if response.status == HTTPStatus.SERVICE_UNAVAILABLE else DatabaseError
                raise refusal(response.data.decode(errors="replace"), code=int(code) if code else None)
            source = RespBuffCls(ResponseSource(cast("urllib3.HTTPResponse", response)))  # type: ignore[no-untyped-call]
            result = cast("QueryResult", NativeTransform.parse_response(source, QueryContext(tz_mode="aware")))
            return _Answer(result.column_names, result.result_rows)
        except urllib3.exceptions.HTTPError as error:
            raise OperationalError(str(error)) from error

    async def _patiently(self, send: Callable[[HttpClient], T], threads: ThreadPoolExecutor | None = None) -> T:
        """Send with retries while nothing answers: a crashed engine restarts within seconds, unless too many retries
        keep the machine busy.
        """
        give_up_at, retry_s = time.monotonic() + _PATIENCE_S, _RETRY_S
        while True:
            try:
                return await _in_thread(threads or self._reading, partial(self._send, send))
            except _AwayError as error:
                if time.monotonic() > give_up_at:
                    log.warning("the trace store does not answer", error=str(error.__cause__)[:500])
                    raise UnavailableError("The trace store is not available; try again in a moment") from error
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)

    def _send(self, send: Callable[[HttpClient], T]) -> T:
        try:
            return send(self._client or self._connected())
        except Error as error:
            if text := _PASSING.get(_DISK_FULL if _NO_SPACE in str(error) else error.code or 0):
                raise UnavailableError(text) from error
            if isinstance(error, OperationalError) and error.code is None:  # of the connection, not of the engine
                raise _AwayError from error
            raise

    def _connected(self) -> HttpClient:
        with self._connecting:
            if self._client is None:
                self._client = _connect(self.url, self._pool)
            return self._client


class _AwayError(Exception):
    """The engine gave no answer, or an incomplete one."""


async def _in_thread(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, call)


def split_statements(sql: str) -> list[str]:
    """Return the statements of a file: each ends with a semicolon at the end of a line."""
    without_comments = re.sub(r"^\s*--.*\n", "", sql, flags=re.MULTILINE)
    return [statement.strip() for statement in re.split(r";[ \t]*(?:\n|$)", without_comments) if statement.strip()]


# The last process to record a migration wins; all record the same.
_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS moorage_migrations
(number UInt32, name String, compatible_from UInt32, applied_at DateTime DEFAULT now())
ENGINE = ReplacingMergeTree ORDER BY number
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1
"""
_APPLIED = "SELECT number, compatible_from FROM moorage_migrations FINAL ORDER BY number"


def _ping(client: HttpClient) -> None:
    if not client.ping():  # returns False instead of raising
        raise OperationalError("no answer to a ping")


def _begin_stream(sql: str, bound: dict[str, Any], settings: dict[str, Any], client: HttpClient) -> io.IOBase:
    return client.raw_stream(sql, bound, settings=settings)


def _copy(answer: io.IOBase, file: IO[bytes]) -> None:
    """Copy the answer in one thread: a thread call per piece would pass through the event loop twice."""
    shutil.copyfileobj(cast("IO[bytes]", answer), file, _PIECE_BYTES)
    file.flush()


class _Answer(NamedTuple):
    names: Sequence[str]
    rows: Sequence[Any]


class _Form:
    """A statement and its bound values as form fields, since values may be longer than a URL can be."""

    def __init__(self, sql: str, parameters: Parameters) -> None:
        boundary = token_hex(16)
        fields = {"query": sql, **{f"param_{name}": _field(value) for name, value in parameters.items()}}
        parts = [f'--{boundary}\r\n{_FIELD}="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
        self.body = f"{''.join(parts)}--{boundary}--\r\n".encode()
        self.content_type = f"multipart/form-data; boundary={boundary}"


_FIELD = "Content-Disposition: form-data; name"


def _field(value: Any) -> str:
    return str(format_bind_value(_exact(value)))


def _bound(parameters: Parameters | None) -> dict[str, Any]:
    return {name: _exact(value) for name, value in (parameters or {}).items()}


_BYTES = [f"\\x{byte:02X}" for byte in range(256)]


class _Literal:
    """A value already written as SQL, which the client sends unchanged instead of quoting it as text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _exact(value: Any) -> Any:
    """Return the value in a form that the client sends without loss: it would cut times to seconds. Lists are written
    as SQL here, because the client visits each of their values several times.
    """
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return _Literal(_literal(value))
    if isinstance(value, bytes):
        return _Literal(_escaped(value))
    return value


def _literal(value: Any) -> str:
    """Return a value as SQL inside a list or a tuple."""
    if isinstance(value, tuple):
        return f"({','.join(map(_literal, value))})"
    if isinstance(value, list | set | frozenset):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, str):
        return str(format_str(value))
    if isinstance(value, bytes):
        return f"'{_escaped(value)}'"
    if isinstance(value, datetime):
        return f"'{_time(value)}'"
    if isinstance(value, UUID | Decimal):
        return f"'{value}'"
    return "NULL" if value is None else str(value)


def _escaped(value: bytes) -> str:
    return "".join(map(_BYTES.__getitem__, value))


def _time(at: datetime) -> str:
    """Return the time as SQL with microseconds and a four-digit year."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


# --- connecting ---


def _connect(url: str, pool: urllib3.PoolManager) -> HttpClient:
    """Connect to `http[s]://user:password@host:port/database` or `http+unix://user:password@<%-quoted
    socket>/database`.
    """
    address = urlsplit(url)
    unix = address.scheme == "http+unix"
    secure = address.scheme in ("https", "clickhouses")
    client = clickhouse_connect.get_client(
        interface="https" if secure else "http",
        host="localhost" if unix else address.hostname or "localhost",
        port=80 if unix else address.port or (8443 if secure else 8123),
        username=unquote(address.username or "default"),
        password=unquote(address.password or ""),
        database=unquote(address.path.strip("/")) or "default",
        # Over a local socket, compression costs more than the bytes that it saves.
        compress=not unix,
        pool_mgr=pool,
        tz_mode="aware",
        query_retries=0,  # ours is more patient
        connect_timeout=_CONNECT_S,
        send_receive_timeout=_ANSWER_S,
        autogenerate_session_id=False,  # a session allows one statement at a time
        autogenerate_query_id=False,
        # Values may be longer than a URL can be, and a form is cheaper.
        form_encode_query_params=True,
    )
    return cast("HttpClient", client)


def _pool(url: str) -> urllib3.PoolManager:
    manager = urllib3.PoolManager(maxsize=READS_AT_ONCE + INSERTS_AT_ONCE)
    if urlsplit(url).scheme == "http+unix":
        path = unquote(url.partition("@")[2].partition("/")[0])
        manager.pool_classes_by_scheme = {"http": _unix_pool_class(path)}
    return manager


def _unix_pool_class(path: str) -> type[HTTPConnectionPool]:
    class UnixConnection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(path)
            except OSError as error:
                connection.close()
                raise urllib3.exceptions.NewConnectionError(self, f"no engine at its socket: {error}") from error
            return connection

    class UnixPool(HTTPConnectionPool):
        ConnectionCls = UnixConnection

    return UnixPool
