"""PostgreSQL: the connection pool. The SQL is in the rooms' `store` modules."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from moorage.kernel.encoding import decode, encode_for_storage
from moorage.kernel.errors import InvalidRequestError, UnavailableError

log = structlog.get_logger(__name__)

Params = Mapping[str, Any] | Sequence[Any]
Statement = tuple[str, Sequence[Params]]

# How long a statement waits before it fails: for a database that is away, and for one that is only busy.
_PATIENCE_S = 10.0
_BUSY_S_MAX = 60.0
_WAITERS_MAX = 10_000
_TOO_MUCH = "The server has too much to do; try again in a moment"
# Sent with each connection: limits each statement, and stops a statement whose client is gone.
_OPTIONS = "-c statement_timeout=60s -c client_connection_check_interval=5s -c idle_in_transaction_session_timeout=60s"

_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "row_factory": dict_row,
    "prepare_threshold": 2,
    "options": _OPTIONS,
    "application_name": "moorage",
}

set_json_dumps(encode_for_storage)
set_json_loads(decode)


class Postgres:
    """A pool of autocommit connections whose rows are dictionaries."""

    def __init__(self, conninfo: str, pool_max: int) -> None:
        self.conninfo = conninfo
        self._pool = AsyncConnectionPool[AsyncConnection[DictRow]](
            conninfo,
            min_size=min(2, pool_max),
            max_size=pool_max,
            open=False,
            reconnect_timeout=1,  # without it the pauses grow, and the pool reconnects late
            name="moorage",
            kwargs=_CONNECTION,
        )
        # Keeps the order of arrival. The pool loses it, because each waiting task asks again every second.
        self._turns = asyncio.Semaphore(pool_max)
        self._waiters = 0
        self._answered_at = -math.inf

    async def open(self) -> None:
        """Connect. Raises UnavailableError when no connection comes up in time."""
        try:
            await self._pool.open(wait=True, timeout=15)
        except PoolTimeout as error:
            raise UnavailableError("PostgreSQL does not answer; check DATABASE_URI and that the server runs") from error

    async def close(self) -> None:
        await self._pool.close(timeout=2)

    def pool_size(self) -> dict[str, int]:
        """Return the numbers of allowed, open and free connections, and of requests that wait for one."""
        stats = self._pool.get_stats()
        return {
            "max": stats["pool_max"],
            "open": stats["pool_size"],
            "available": stats["pool_available"],
            "waiting": self._waiters + stats.get("requests_waiting", 0),
        }

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """Lend a pooled connection. Raises UnavailableError when the database is away, InvalidRequestError for values
        that it cannot hold.
        """
        began_at = time.monotonic()
        with plain_errors():
            await self._await_turn(began_at)
            try:
                connection = await self._take(began_at)
                try:
                    yield connection
                    self._answered_at = time.monotonic()
                finally:
                    await self._pool.putconn(connection)
            finally:
                self._turns.release()

    def _give_up_at(self, began_at: float) -> float:
        """Return when to give up. While other tasks get answers, waiting is worthwhile and may last longer."""
        return min(max(began_at, self._answered_at) + _PATIENCE_S, began_at + _BUSY_S_MAX)

    async def _await_turn(self, began_at: float) -> None:
        """Wait for a turn, in order of arrival."""
        if not self._turns.locked():
            await self._turns.acquire()
            return
        if self._waiters >= _WAITERS_MAX:
            raise UnavailableError(_TOO_MUCH)
        turn, came = asyncio.create_task(self._turns.acquire()), False
        self._waiters += 1
        try:
            while not turn.done() and time.monotonic() < self._give_up_at(began_at):
                await asyncio.wait([turn], timeout=1)
            came = turn.done()
        finally:
            self._waiters -= 1
            if not came and not turn.cancel():  # the turn came in the last moment
                self._turns.release()
        if not came:
            raise UnavailableError(_TOO_MUCH)

    async def _take(self, began_at: float) -> AsyncConnection[DictRow]:
        """Take a connection. Asks again each second: only a new request makes the pool try a server that was away."""
        while True:
            try:
                return await self._pool.getconn(timeout=1)
            except PoolTimeout:
                if time.monotonic() > self._give_up_at(began_at):
                    raise

    async def connect_patiently(self) -> AsyncConnection[DictRow]:
        """Open a connection outside the pool, which the caller closes. Retries as the pool does, then raises
        UnavailableError.
        """
        give_up_at = time.monotonic() + _PATIENCE_S
        with plain_errors():
            while True:
                try:
                    return await AsyncConnection[DictRow].connect(self.conninfo, **_CONNECTION)
                except psycopg.OperationalError:
                    if time.monotonic() > give_up_at:
                        raise
                    await asyncio.sleep(0.2)

    async def fetch(self, sql: str, params: Params = ()) -> list[DictRow]:
        async with self.connection() as connection:
            return await (await connection.execute(sql, params, binary=True)).fetchall()

    async def fetch_one(self, sql: str, params: Params = ()) -> DictRow | None:
        async with self.connection() as connection:
            return await (await connection.execute(sql, params, binary=True)).fetchone()

    async def execute(self, sql: str, params: Params = ()) -> int:
        """Run a statement. Returns the number of affected rows."""
        async with self.connection() as connection:
            return (await connection.execute(sql, params)).rowcount

    def fetch_from_thread(self, sql: str, params: Params = ()) -> list[DictRow]:
        """Run a blocking query over a new connection, for a thread that must work while the event loop is blocked."""
        with (
            plain_errors(),
            psycopg.Connection[DictRow].connect(self.conninfo, connect_timeout=5, **_CONNECTION) as connection,
        ):
            return connection.execute(sql, params, binary=True).fetchall()

    async def execute_all(self, statements: Sequence[Statement]) -> None:
        """Run all statements, each for all of its parameter sets, in one transaction and one round trip."""
        async with self.connection() as connection:
            await _commit_together(connection, statements)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Translate errors of the driver into UnavailableError or InvalidRequestError where one of these fits."""
    try:
        yield
    except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise UnavailableError("The database is not available; try again in a moment") from error
    except psycopg.DataError as error:
        what = error.diag.message_primary or str(error)
        raise InvalidRequestError(f"A value cannot be stored: {what}") from error


async def _commit_together(connection: AsyncConnection[DictRow], statements: Sequence[Statement]) -> None:
    """Run the statements with BEGIN and COMMIT in the pipeline. A transaction object would wait for each answer."""
    if not statements:
        return
    try:
        async with connection.pipeline(), connection.cursor() as cursor:
            await cursor.execute("BEGIN")
            for sql, sets in statements:
                await cursor.executemany(sql, sets)
            await cursor.execute("COMMIT")
    except psycopg.Error:
        # Not ROLLBACK: after a failed pipeline the driver takes statements for prepared that the server has not
        # prepared.
        await connection.close()
        raise
