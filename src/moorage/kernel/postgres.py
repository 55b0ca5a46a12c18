"""PostgreSQL: the pool. The rooms' `store` modules hold the SQL; this file holds none."""

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

# How long a statement waits for a database that is away, before it fails; and for one that only has much to do.
_PATIENCE_S = 10.0
_BUSY_S_MAX = 60.0
_WAITERS_MAX = 10_000
_TOO_MUCH = "The server has too much to do; try again in a moment"
# Sent with each connection: no statement may hang for ever, and one whose client is gone is stopped.
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
            reconnect_timeout=1,  # or it waits ever longer between attempts, and notices late that the server is back
            name="moorage",
            kwargs=_CONNECTION,
        )
        # The pool forgets who came first, since each asks it again and again.
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
        """Connections that may be and are open, those that are free, and how many requests wait for one."""
        stats = self._pool.get_stats()
        return {
            "max": stats["pool_max"],
            "open": stats["pool_size"],
            "available": stats["pool_available"],
            "waiting": self._waiters + stats.get("requests_waiting", 0),
        }

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """A pooled connection. Raises UnavailableError when the database is away, InvalidRequestError for values that it
        cannot hold.
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
        """Others that get their answers show that it is worth waiting."""
        return min(max(began_at, self._answered_at) + _PATIENCE_S, began_at + _BUSY_S_MAX)

    async def _await_turn(self, began_at: float) -> None:
        """First come, first served."""
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
            if not came and not turn.cancel():  # it came in the last moment
                self._turns.release()
        if not came:
            raise UnavailableError(_TOO_MUCH)

    async def _take(self, began_at: float) -> AsyncConnection[DictRow]:
        """Asks again each second: only a new request makes the pool try a server that was away."""
        while True:
            try:
                return await self._pool.getconn(timeout=1)
            except PoolTimeout:
                if time.monotonic() > self._give_up_at(began_at):
                    raise

    async def connect_patiently(self) -> AsyncConnection[DictRow]:
        """A connection of the caller's own, who closes it. As patient as the pool; raises UnavailableError then."""
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
        """Number of rows touched."""
        async with self.connection() as connection:
            return (await connection.execute(sql, params)).rowcount

    def fetch_from_thread(self, sql: str, params: Params = ()) -> list[DictRow]:
        """Blocks, over a connection made for it: for what a thread has to do while the event loop is blocked."""
        with (
            plain_errors(),
            psycopg.Connection[DictRow].connect(self.conninfo, connect_timeout=5, **_CONNECTION) as connection,
        ):
            return connection.execute(sql, params, binary=True).fetchall()

    async def execute_all(self, statements: Sequence[Statement]) -> None:
        """All statements, each for all of its parameter sets, in one transaction and one round trip."""
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
    """BEGIN and COMMIT are part of the pipeline: a transaction object would wait for the answer to each."""
    if not statements:
        return
    try:
        async with connection.pipeline(), connection.cursor() as cursor:
            await cursor.execute("BEGIN")
            for sql, sets in statements:
                await cursor.executemany(sql, sets)
            await cursor.execute("COMMIT")
    except psycopg.Error:
        # Not ROLLBACK: statements of the failed pipeline count as prepared at this end and not at the other.
        await connection.close()
        raise
