"""SQL of crons. A cron fires in one transaction with its run, so it fires exactly once, even if a process dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.agents.records.crons import Cron, CronCount, CronSearch
from moorage.agents.records.filters import Filter
from moorage.agents.records.words import JsonObject
from moorage.agents.store.new_runs import NewRun
from moorage.agents.store.runs import Created, insert_run, insert_runs
from moorage.agents.store.visible import visible
from moorage.kernel.errors import InvalidRequestError
from moorage.kernel.postgres import Postgres

log = structlog.get_logger(__name__)

_COLUMNS = ", ".join(Cron.__annotations__)
# Columns that a caller may change: all but the identity and the times of the row itself.
_CHANGEABLE = [
    name for name in Cron.__annotations__ if name not in {"cron_id", "thread_id", "created_at", "updated_at"}
]

_INSERT = f"""
INSERT INTO crons (cron_id, thread_id, auth_user, actor, {", ".join(_CHANGEABLE)})
VALUES (%(cron_id)s, %(thread_id)s, %(auth_user)s::json, %(user_id)s::text,
    {", ".join(f"%({name})s" for name in _CHANGEABLE)})
RETURNING {_COLUMNS}
"""
# Optimistic locking: a change that was based on an older row changes nothing, and its caller reads again.
_REPLACE = f"""
UPDATE crons SET {", ".join(f"{name} = %({name})s" for name in _CHANGEABLE)}, auth_user = %(auth_user)s::json,
    actor = %(user_id)s::text, updated_at = clock_timestamp()
WHERE cron_id = %(cron_id)s AND updated_at = %(updated_at)s
RETURNING {_COLUMNS}
"""

# If a cron fired in the future, the clock was set back, and its next time is wrong.
_WAS_SET_BACK = "fired_at > now() + interval '1 hour'"


class Pick(Enum):
    """The crons to fire next. Each value is the end of a query that an index supports."""

    OLDEST = "next_run_date <= now() ORDER BY next_run_date"
    NEWEST = "next_run_date <= now() ORDER BY next_run_date DESC"
    SET_BACK = f"next_run_date IS NOT NULL AND {_WAS_SET_BACK} ORDER BY fired_at"


# SKIP LOCKED lets several processes fire at once.
_DUE = {
    pick: f"""
SELECT {_COLUMNS}, auth_user, now() AS now, coalesce({_WAS_SET_BACK}, false) AS was_set_back FROM crons
WHERE {pick.value} LIMIT %s FOR UPDATE SKIP LOCKED
"""
    for pick in Pick
}
_ADVANCE = "UPDATE crons SET next_run_date = %(next_run_date)s, fired_at = now() WHERE cron_id = %(cron_id)s"
_SWITCH_OFF = """
UPDATE crons SET enabled = false, next_run_date = NULL, updated_at = clock_timestamp() WHERE cron_id = %(cron_id)s
"""


@dataclass(frozen=True)
class DueCron:
    """A cron that is due at `now` of the database's clock."""

    cron: Cron
    now: datetime
    was_set_back: bool  # the clock was set back: the cron is not due, but its next time is wrong
    auth_user: JsonObject | None = None  # on whose behalf it runs


@dataclass(frozen=True)
class Firing:
    """The result of a due cron: a run, if it can have one, and its next time."""

    run: NewRun | None
    next_run_date: datetime | None


@dataclass(frozen=True)
class Fired:
    due: DueCron
    firing: Firing
    created: Created | None  # None when no run was wanted, or the database did not take it


Plan = Callable[[DueCron], Firing]
Insert = Callable[[AsyncConnection[DictRow], Sequence[NewRun]], Awaitable[Sequence[Created | None]]]


def _read(condition: str) -> str:
    return f"SELECT {_COLUMNS} FROM crons WHERE cron_id = %(cron_id)s AND {condition}"


def _delete(condition: str) -> str:
    return f"DELETE FROM crons WHERE cron_id = %(cron_id)s AND {condition}"


def _conditions(search: CronCount, seen: Filter) -> tuple[str, dict[str, Any]]:
    condition, values = visible(seen, "metadata")
    clauses = [condition]
    for name in ("assistant_id", "thread_id", "enabled"):
        if (wanted := getattr(search, name)) is not None:
            clauses.append(f"{name} = %({name})s")
            values[name] = wanted
    if search.metadata:
        clauses.append("metadata @> %(metadata)s")
        values["metadata"] = Jsonb(search.metadata)
    return " AND ".join(clauses), values


class CronStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(self, cron: Cron, payload: bytes, auth_user: bytes | None = None) -> Cron | None:
        """Return the row, or None if its thread is gone."""
        try:
            return await self._one(_INSERT, _values(cron, payload, auth_user))
        except psycopg.errors.ForeignKeyViolation:
            return None

    async def read(self, cron_id: UUID, seen: Filter) -> Cron | None:
        condition, values = visible(seen, "metadata")
        return await self._one(_read(condition), {"cron_id": cron_id, **values})

    async def replace(self, cron: Cron, payload: bytes, auth_user: bytes | None) -> Cron | None:
        """Return the changed row, or None if it has changed since it was read."""
        return await self._one(_REPLACE, _values(cron, payload, auth_user))

    async def remove(self, cron_id: UUID, seen: Filter) -> bool:
        condition, values = visible(seen, "metadata")
        return bool(await self._postgres.execute(_delete(condition), {"cron_id": cron_id, **values}))

    async def search(self, search: CronSearch, seen: Filter) -> list[dict[str, Any]]:
        """Return one row more than requested if there are more."""
        where, values = _conditions(search, seen)
        columns = ", ".join(search.select) if search.select else _COLUMNS
        order = "ASC" if search.sort_order == "asc" else "DESC NULLS LAST"
        sql = f"""SELECT {columns} FROM crons WHERE {where}
            ORDER BY {search.sort_by} {order}, cron_id LIMIT %(limit)s OFFSET %(offset)s"""
        return await self._postgres.fetch(sql, {**values, "limit": search.limit + 1, "offset": search.offset})

    async def count(self, search: CronCount, seen: Filter) -> int:
        where, values = _conditions(search, seen)
        row = await self._postgres.fetch_one(f"SELECT count(*) AS n FROM crons WHERE {where}", values)
        return int(row["n"]) if row else 0

    async def fire(self, pick: Pick, plan: Plan, most: int) -> list[Fired]:
        """Fire up to `most` crons as `plan` says, which must not raise. Returns an empty list when none is due.

        Runs and next times are committed together.
        """
        try:
            return await self._fire(pick, plan, most, insert_runs)
        except (psycopg.Error, InvalidRequestError):
            log.warning("the run of a cron cannot be stored: crons are fired one by one")
        fired: list[Fired] = []
        while len(fired) < most and (alone := await self._fire(pick, plan, 1, _insert_alone)):
            fired += alone
        return fired

    async def _fire(self, pick: Pick, plan: Plan, most: int, insert: Insert) -> list[Fired]:
        async with self._postgres.connection() as connection, connection.transaction():
            rows = await (await connection.execute(_DUE[pick], (most,))).fetchall()
            planned = [(due, plan(due)) for due in map(_due, rows)]
            created = iter(await insert(connection, [firing.run for _, firing in planned if firing.run]))
            fired = [Fired(due, firing, next(created) if firing.run else None) for due, firing in planned]
            async with connection.pipeline():
                for each in fired:
                    await connection.execute(*_afterwards(each))
        return fired

    async def _one(self, sql: str, values: Any) -> Cron | None:
        return await self._postgres.fetch_one(sql, values)  # type: ignore[return-value]


def _due(row: dict[str, Any]) -> DueCron:
    now, was_set_back, auth_user = (row.pop(name) for name in ("now", "was_set_back", "auth_user"))
    return DueCron(row, now, was_set_back, auth_user)  # type: ignore[arg-type]


def _afterwards(fired: Fired) -> tuple[str, dict[str, Any]]:
    """Return the statement that sets when the cron is due again."""
    gone = fired.created is not None and fired.created.missing
    values = {"cron_id": fired.due.cron["cron_id"], "next_run_date": fired.firing.next_run_date}
    return _SWITCH_OFF if gone else _ADVANCE, values


async def _insert_alone(connection: AsyncConnection[DictRow], news: Sequence[NewRun]) -> Sequence[Created | None]:
    """Insert the run of one cron; None if the database refuses the run, so that it does not block the other crons."""
    try:
        async with connection.transaction():
            return [await insert_run(connection, new) for new in news]
    except psycopg.OperationalError:
        raise  # the database is away: nothing has fired
    except psycopg.Error as error:
        log.error("the run of a cron cannot be stored", run_id=str(news[0].run_id), error=type(error).__name__)
        return [None]


def _values(cron: Cron, payload: bytes, auth_user: bytes | None) -> dict[str, Any]:
    user = None if auth_user is None else auth_user.decode()
    return {**cron, "payload": payload.decode(), "metadata": Jsonb(cron["metadata"]), "auth_user": user}
