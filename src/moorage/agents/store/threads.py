"""SQL of threads. Whether a thread is busy is derived from its runs and never stored, so it cannot be stale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.agents.records.filters import Filter
from moorage.agents.records.runs import RunFailure
from moorage.agents.records.threads import Thread, ThreadCount, ThreadSearch, ThreadStatus, Ttl, TtlInfo
from moorage.agents.records.words import JsonObject
from moorage.agents.store.visible import visible
from moorage.kernel.encoding import without_nul
from moorage.kernel.postgres import Postgres

_BUSY = "EXISTS (SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running'))"
_STATUS = f"CASE WHEN {_BUSY} THEN 'busy' ELSE t.status END"
_EXPRESSIONS = {
    "thread_id": "t.thread_id",
    "created_at": "t.created_at",
    "updated_at": "t.updated_at",
    "state_updated_at": "t.state_updated_at",
    "metadata": "t.metadata",
    "config": "t.config",
    "status": f"{_STATUS} AS status",
    "values": 't."values"',
    "interrupts": "t.interrupts",
    "error": "t.error",
}
_COLUMNS = ", ".join(_EXPRESSIONS.values())
_SORTABLE = frozenset({"thread_id", "status", "created_at", "updated_at", "state_updated_at"})

_INSERT = f"""
INSERT INTO threads AS t (thread_id, metadata, actor, ttl_minutes, ttl_strategy, expires_at)
VALUES (%(thread_id)s, %(metadata)s, %(actor)s, %(ttl)s, %(strategy)s, now() + %(ttl)s::float8 * interval '1 minute')
ON CONFLICT (thread_id) DO NOTHING RETURNING {_COLUMNS}
"""
_READ_TTL = """
SELECT ttl_strategy AS strategy, ttl_minutes, expires_at FROM threads WHERE thread_id = %s AND expires_at IS NOT NULL
"""
_THE_THREAD = "t.thread_id = %(thread_id)s"
_SET_STATE = """
UPDATE threads SET
    "values" = %(values)s, interrupts = %(interrupts)s, status = %(status)s, error = %(error)s,
    updated_at = now(), state_updated_at = now()
WHERE thread_id = %(thread_id)s
"""


def metadata_without(gone: str) -> str:
    """Return SQL of thread `t`'s metadata without the entries of runs (`r`) that are `gone`. They are replaced by the
    entries of the newest other run, or by those from before the first run.
    """
    return f"""
    t.metadata - 'graph_id' - 'assistant_id' || coalesce((
        SELECT jsonb_build_object('graph_id', r.graph_id, 'assistant_id', r.assistant_id) FROM runs r
        WHERE r.thread_id = t.thread_id AND NOT {gone} ORDER BY r.run_id DESC LIMIT 1
    ), t.before_runs, '{{}}')
    """


_RESTORE = f"""
UPDATE threads t SET
    "values" = %(values)s, interrupts = %(interrupts)s, status = %(status)s, error = %(error)s,
    metadata = {metadata_without("r.run_id = %(without)s")}, updated_at = now(), state_updated_at = now()
WHERE thread_id = %(thread_id)s
"""
# Runs go with their thread.
_DELETE = (
    "DELETE FROM runs WHERE thread_id = %(thread_id)s",
    "DELETE FROM threads WHERE thread_id = %(thread_id)s",
)


def _read(condition: str) -> str:
    return f"SELECT {_COLUMNS} FROM threads t WHERE {_THE_THREAD} AND {condition}"


def _exists(condition: str) -> str:
    return f"SELECT FROM threads t WHERE {_THE_THREAD} AND {condition}"


def _merge_metadata(condition: str) -> str:
    return f"""UPDATE threads t SET metadata = t.metadata || %(metadata)s, updated_at = now(),
            ttl_minutes = coalesce(%(ttl)s::float8, t.ttl_minutes),
            ttl_strategy = coalesce(%(strategy)s::text, t.ttl_strategy),
            expires_at = coalesce(now() + %(ttl)s::float8 * interval '1 minute', t.expires_at)
        WHERE {_THE_THREAD} AND {condition} RETURNING {_COLUMNS}"""


def _copy(condition: str) -> str:
    return f"""INSERT INTO threads AS t (thread_id, metadata, config, status, "values", interrupts, error, actor,
            ttl_minutes, ttl_strategy, expires_at)
        SELECT %(target)s, metadata || %(metadata)s, config, status, "values", interrupts, error, %(actor)s,
            ttl_minutes, ttl_strategy, now() + ttl_minutes * interval '1 minute'
        FROM threads t WHERE {_THE_THREAD} AND {condition} RETURNING {_COLUMNS}"""


def conditions(search: ThreadCount, seen: Filter, ids: Sequence[UUID] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the condition on threads `t`, and its parameters."""
    condition, values = visible(seen, "t.metadata")
    clauses = [condition]
    if search.metadata:
        clauses.append("t.metadata @> %(metadata)s")
        values["metadata"] = Jsonb(search.metadata)
    if search.values:
        clauses.append('t."values" @> %(values)s')
        values["values"] = Jsonb(search.values)
    if search.status == "busy":
        clauses.append(_BUSY)
    elif search.status is not None:
        clauses.append(f"t.status = %(status)s AND NOT {_BUSY}")
        values["status"] = search.status
    if ids is not None:
        clauses.append("t.thread_id = ANY(%(ids)s)")
        values["ids"] = list(ids)
    return " AND ".join(clauses), values


class ThreadStore:
    """Threads in the database. `default_ttl` applies to threads that are created without one."""

    def __init__(self, postgres: Postgres, default_ttl: Ttl | None = None) -> None:
        self._postgres = postgres
        self.default_ttl = default_ttl

    async def insert(
        self, thread_id: UUID, metadata: JsonObject, actor: str | None = None, ttl: Ttl | None = None
    ) -> Thread | None:
        """Return the row, or None when the id is taken."""
        given = {"thread_id": thread_id, "metadata": Jsonb(metadata), "actor": actor}
        return await self._one(_INSERT, {**given, **ttl_values(ttl or self.default_ttl)})

    async def read_ttl(self, thread_id: UUID) -> TtlInfo | None:
        """Return the time to live; None for a thread that never expires."""
        return await self._postgres.fetch_one(_READ_TTL, (thread_id,))  # type: ignore[return-value]

    async def read(self, thread_id: UUID, seen: Filter) -> Thread | None:
        condition, values = visible(seen, "t.metadata")
        return await self._one(_read(condition), {"thread_id": thread_id, **values})

    async def exists(self, thread_id: UUID, seen: Filter) -> bool:
        condition, values = visible(seen, "t.metadata")
        return await self._postgres.fetch_one(_exists(condition), {"thread_id": thread_id, **values}) is not None

    async def merge_metadata(
        self, thread_id: UUID, metadata: JsonObject, seen: Filter, ttl: Ttl | None = None
    ) -> Thread | None:
        condition, values = visible(seen, "t.metadata")
        given = {"thread_id": thread_id, "metadata": Jsonb(metadata), **ttl_values(ttl)}
        return await self._one(_merge_metadata(condition), {**given, **values})

    async def set_state(
        self, thread_id: UUID, *, values: bytes, interrupts: bytes, status: ThreadStatus, error: RunFailure | None
    ) -> None:
        """Set the state that searches and lists show for a thread; `values` and `interrupts` are JSON."""
        await self._postgres.execute(_SET_STATE, _state(thread_id, values, interrupts, status, error))

    async def restore(
        self,
        thread_id: UUID,
        *,
        without: UUID,
        values: bytes,
        interrupts: bytes,
        status: ThreadStatus,
        error: RunFailure | None,
    ) -> None:
        """Set the state of a thread whose run is rolled back, and remove the run's traces from the metadata."""
        state = _state(thread_id, values, interrupts, status, error)
        await self._postgres.execute(_RESTORE, {**state, "without": without})

    async def remove(self, thread_id: UUID, seen: Filter) -> bool:
        condition, values = visible(seen, "t.metadata")
        the_thread = {"thread_id": thread_id, **values}
        async with self._postgres.connection() as connection, connection.transaction():
            # The lock waits for a run that is being created on the thread right now.
            if (await connection.execute(f"{_exists(condition)} FOR UPDATE", the_thread)).rowcount == 0:
                return False
            for sql in _DELETE:
                await connection.execute(sql, the_thread)
        return True

    async def copy(
        self, source: UUID, target: UUID, metadata: JsonObject, seen: Filter, actor: str | None = None
    ) -> Thread | None:
        """Return the new thread, with `metadata` merged over the source's; None if the source does not exist."""
        condition, values = visible(seen, "t.metadata")
        given = {"thread_id": source, "target": target, "metadata": Jsonb(metadata), "actor": actor}
        return await self._one(_copy(condition), {**given, **values})

    async def search(self, search: ThreadSearch, seen: Filter) -> list[dict[str, Any]]:
        """Return one row more than requested if there are more."""
        where, values = conditions(search, seen, search.ids)
        sort_by = search.sort_by if search.sort_by in _SORTABLE else "created_at"
        order = "ASC" if search.sort_order == "asc" else "DESC"
        columns = ", ".join(_EXPRESSIONS[name] for name in search.select) if search.select else _COLUMNS
        sort_key = _STATUS if sort_by == "status" else f"t.{sort_by}"
        sql = f"""SELECT {columns} FROM threads t WHERE {where}
            ORDER BY {sort_key} {order}, t.thread_id {order} LIMIT %(limit)s OFFSET %(offset)s"""
        return await self._postgres.fetch(sql, {**values, "limit": search.limit + 1, "offset": search.offset})

    async def count(self, search: ThreadCount, seen: Filter) -> int:
        where, values = conditions(search, seen)
        row = await self._postgres.fetch_one(f"SELECT count(*) AS n FROM threads t WHERE {where}", values)
        return int(row["n"]) if row else 0

    async def _one(self, sql: str, values: Any) -> Thread | None:
        return await self._postgres.fetch_one(sql, values)  # type: ignore[return-value]


def ttl_values(ttl: Ttl | None) -> dict[str, Any]:
    return {"ttl": ttl.ttl if ttl else None, "strategy": ttl.strategy if ttl else None}


def _state(
    thread_id: UUID, values: bytes, interrupts: bytes, status: ThreadStatus, error: RunFailure | None
) -> dict[str, Any]:
    return {
        "thread_id": thread_id,
        "values": without_nul(values).decode(),
        "interrupts": without_nul(interrupts).decode(),
        "status": status,
        "error": None if error is None else Jsonb(error),
    }
