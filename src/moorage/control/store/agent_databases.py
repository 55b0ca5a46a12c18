"""SQL that makes and removes an agent's share of PostgreSQL: a role, and a database that only this role can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict

from moorage.kernel.postgres import Postgres

# For each worker: its pool and its listening connections, for two revisions at a time; besides, some for the user's own
# code.
_WORKER_CONNECTIONS = 20
_OTHER_CONNECTIONS = 20

_HAS_ROLE = "SELECT 1 FROM pg_roles WHERE rolname = %s"
_HAS_DATABASE = "SELECT 1 FROM pg_database WHERE datname = %s"
_CREATE_ROLE = sql.SQL("CREATE ROLE {name}")
# Also alters an existing role, so that a lost password is replaced by a new one.
_ALTER_ROLE = sql.SQL(
    "ALTER ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE CONNECTION LIMIT {limit} PASSWORD {password}"
)
# Run for a revision with more or fewer workers than the one before.
_LIMIT_ROLE = sql.SQL("ALTER ROLE {name} CONNECTION LIMIT {limit}")
# Without this membership only a superuser could make the role a database's owner.
_JOIN_ROLE = sql.SQL("GRANT {name} TO CURRENT_USER")
# From template0, to which nobody can connect: a session in the template would make this fail. Connections are allowed
# once PUBLIC has lost its rights.
_CREATE_DATABASE = sql.SQL("CREATE DATABASE {name} OWNER {name} TEMPLATE template0 ALLOW_CONNECTIONS false")
_CLOSE_DATABASE = sql.SQL("REVOKE ALL ON DATABASE {name} FROM PUBLIC")
_OPEN_DATABASE = sql.SQL("ALTER DATABASE {name} ALLOW_CONNECTIONS true")
_OPEN_TO_PUBLIC = """
SELECT datname FROM pg_database
WHERE datallowconn AND has_database_privilege('public', oid, 'CONNECT') ORDER BY datname
"""
_SIZE = "SELECT pg_database_size(oid) AS size FROM pg_database WHERE datname = %(name)s"
_DROP_DATABASE = sql.SQL("DROP DATABASE IF EXISTS {name} WITH (FORCE)")
_DROP_ROLE = sql.SQL("DROP ROLE IF EXISTS {name}")


# The server refuses concurrent changes of one row of its catalogs ("tuple concurrently updated"), and creating any
# agent's database also closes the platform's own database to PUBLIC. When a process dies, its lock is released.
_LOCK, _UNLOCK = "SELECT pg_advisory_lock(7209665)", "SELECT pg_advisory_unlock(7209665)"


class AgentDatabases:
    """Databases of agents, on the server of the platform's own database."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def create(self, name: str, password: str) -> None:
        """Make the database and its role if they are missing. Idempotent."""
        async with self._postgres.connection() as connection:
            await connection.execute(_LOCK)
            try:
                await _create(connection, name, password)
            finally:
                await connection.execute(_UNLOCK)

    async def close_all(self) -> None:
        """Revoke PUBLIC's right to connect, for all databases of the server. Idempotent.

        Call it only for a server that is the platform's alone: on a shared one, other owners decide about their
        databases.
        """
        async with self._postgres.connection() as connection:
            await connection.execute(_LOCK)
            try:
                found = await (await connection.execute(_OPEN_TO_PUBLIC)).fetchall()
                for row in found:
                    await connection.execute(_CLOSE_DATABASE.format(name=sql.Identifier(row["datname"])))
            finally:
                await connection.execute(_UNLOCK)

    async def set_workers(self, name: str, workers: int) -> None:
        """Set the number of processes that may share the database's role."""
        async with self._postgres.connection() as connection:
            await connection.execute(_LIMIT_ROLE.format(name=sql.Identifier(name), limit=_limit(workers)))

    async def size_bytes(self, name: str) -> int:
        """Return how many bytes of disk a database takes; 0 if there is none."""
        rows = await self._postgres.fetch(_SIZE, {"name": name})
        return int(rows[0]["size"]) if rows else 0

    async def remove(self, name: str) -> None:
        """Drop the database with its contents, and disconnect its clients."""
        async with self._postgres.connection() as connection:
            await connection.execute(_DROP_DATABASE.format(name=sql.Identifier(name)))
            await connection.execute(_DROP_ROLE.format(name=sql.Identifier(name)))

    @property
    def socket_directory(self) -> Path | None:
        """Return the directory of the server's Unix socket, or None if the server is reached by TCP."""
        host = str(conninfo_to_dict(self._postgres.conninfo).get("host") or "")
        return Path(host) if host.startswith("/") else None

    def uri(self, name: str, password: str) -> str:
        """Return the URI of the agent's database, on the platform's server and with the agent's own role."""
        known = conninfo_to_dict(self._postgres.conninfo)
        rest = {
            option: str(value)
            for option, value in known.items()
            if option not in {"user", "password", "dbname"} and value is not None
        }
        return (
            f"postgresql://{quote(name)}:{quote(password, safe='')}@/{quote(name)}?{urlencode(rest, quote_via=quote)}"
        )


def _limit(workers: int) -> sql.Literal:
    return sql.Literal(_WORKER_CONNECTIONS * workers + _OTHER_CONNECTIONS)


async def _create(connection: AsyncConnection[Any], name: str, password: str) -> None:
    found, own = sql.Identifier(name), sql.Identifier(connection.info.dbname)
    if await (await connection.execute(_HAS_ROLE, (name,))).fetchone() is None:
        await connection.execute(_CREATE_ROLE.format(name=found))
        await connection.execute(_JOIN_ROLE.format(name=found))
    await connection.execute(_ALTER_ROLE.format(name=found, limit=_limit(1), password=sql.Literal(password)))
    if await (await connection.execute(_HAS_DATABASE, (name,))).fetchone() is None:
        await connection.execute(_CREATE_DATABASE.format(name=found))
    await connection.execute(_CLOSE_DATABASE.format(name=found))
    await connection.execute(_OPEN_DATABASE.format(name=found))
    # Otherwise agents could connect to the platform's own database.
    await connection.execute(_CLOSE_DATABASE.format(name=own))
