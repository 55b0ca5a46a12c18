"""SQL of expiring threads. A sweep locks its rows, so several processes can share the work, and a process that dies has
removed all of a thread or nothing.
"""

from __future__ import annotations

from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from moorage.agents.store.checkpoints import DELETE_THREAD, KEEP_LATEST, NEEDS_HISTORY
from moorage.kernel.postgres import Postgres

# The lock does not wait for a run that is being created; the next sweep takes that thread.
_LOCK = """
SELECT thread_id FROM threads WHERE expires_at <= now() ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
"""
# A separate statement after the lock, so that it sees all runs that were created before.
_IDLE = """
SELECT thread_id, ttl_strategy FROM threads t WHERE thread_id = ANY(%s)
    AND NOT EXISTS (SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running'))
"""
_DELETE = ("DELETE FROM runs WHERE thread_id = %s", "DELETE FROM threads WHERE thread_id = %s")
_EXPIRE_AGAIN = "UPDATE threads SET expires_at = now() + ttl_minutes * interval '1 minute' WHERE thread_id = %s"
# Retry a thread with a run under way a minute later.
_LATER = "UPDATE threads SET expires_at = now() + interval '1 minute' WHERE thread_id = ANY(%s)"


class ExpiryStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def sweep(self, limit: int) -> int:
        """Delete or prune up to `limit` expired threads in one transaction. Returns how many it looked at."""
        async with self._postgres.connection() as connection, connection.transaction():
            due = [row["thread_id"] for row in await (await connection.execute(_LOCK, (limit,))).fetchall()]
            idle = await (await connection.execute(_IDLE, (due,))).fetchall()
            for row in idle:
                await _expire(connection, row["thread_id"], row["ttl_strategy"])
            busy = set(due) - {row["thread_id"] for row in idle}
            await connection.execute(_LATER, (list(busy),))
        return len(due)


async def _expire(connection: AsyncConnection[DictRow], thread_id: UUID, strategy: str) -> None:
    if strategy == "keep_latest":
        needs = await (await connection.execute(NEEDS_HISTORY, (str(thread_id),))).fetchone()
        for sql in () if needs and needs["yes"] else KEEP_LATEST:
            await connection.execute(sql, (str(thread_id),))
        await connection.execute(_EXPIRE_AGAIN, (thread_id,))
        return
    for sql in DELETE_THREAD:
        await connection.execute(sql, (str(thread_id),))
    for sql in _DELETE:
        await connection.execute(sql, (thread_id,))
