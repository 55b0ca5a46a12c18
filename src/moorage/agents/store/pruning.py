"""SQL of dry runs: how many rows and bytes would be freed by deleting threads, or all of their checkpoints but the
latest.

Bytes are the stored sizes of states, runs and checkpoints, without indexes and free space of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from moorage.agents.records.filters import Filter
from moorage.agents.records.threads import Strategy, ThreadCount, ThreadsExtent
from moorage.agents.store.checkpoints import HAS_DELTAS, STALE
from moorage.agents.store.threads import conditions
from moorage.kernel.postgres import Postgres

_SIZES = {
    "checkpoints c": "pg_column_size(c.checkpoint) + pg_column_size(c.metadata)",
    "checkpoint_writes w": "octet_length(w.blob)",
    "checkpoint_blobs b": "octet_length(b.blob)",
    "runs r": "pg_column_size(r.kwargs) + pg_column_size(r.metadata)",
    "threads t": """coalesce(pg_column_size(t."values"), 0) + pg_column_size(t.metadata)""",
}
_ID_IS_TEXT = frozenset(STALE)  # of checkpoints, as in LangGraph
_IDLE = "NOT EXISTS (SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running'))"
_CAN_LOSE_HISTORY = f"NOT EXISTS (SELECT FROM checkpoints WHERE thread_id = t.thread_id::text AND {HAS_DELTAS})"


def _part(table: str, condition: str) -> str:
    ids = "SELECT thread_id::text FROM picked" if table in _ID_IS_TEXT else "SELECT thread_id FROM picked"
    alias = table.split()[1]
    return f"""SELECT count(*) AS rows, coalesce(sum({_SIZES[table]}), 0) AS bytes
        FROM {table} WHERE {alias}.thread_id IN ({ids}) AND {condition}"""


def _extent(picked: str, parts: Mapping[str, str]) -> str:
    """Count rows and bytes. `picked` is a condition on threads `t`; `parts` are conditions on their rows to delete."""
    union = " UNION ALL ".join(_part(table, condition) for table, condition in parts.items())
    return f"""
WITH picked AS MATERIALIZED (SELECT t.thread_id FROM threads t WHERE {picked})
SELECT (SELECT count(*) FROM picked) AS threads, sum(rows)::bigint AS rows, sum(bytes)::bigint AS bytes
FROM ({union}) parts
"""


_NAMED = "t.thread_id = ANY(%(ids)s)"
_PARTS: Mapping[Strategy, Mapping[str, str]] = {"delete": dict.fromkeys(_SIZES, "true"), "keep_latest": STALE}
_PRUNED: Mapping[Strategy, str] = {"delete": "true", "keep_latest": f"{_IDLE} AND {_CAN_LOSE_HISTORY}"}
_SWEPT: Mapping[Strategy, str] = {"delete": _IDLE, "keep_latest": f"{_IDLE} AND {_CAN_LOSE_HISTORY}"}


class PruningStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def named(self, thread_ids: Sequence[UUID], strategy: Strategy) -> ThreadsExtent:
        """Return the space that pruning these threads would free."""
        sql = _extent(f"{_NAMED} AND {_PRUNED[strategy]}", _PARTS[strategy])
        return await self._read(sql, {"ids": list(thread_ids)})

    async def expiring(
        self, within_minutes: float, strategy: Strategy, asked: ThreadCount, seen: Filter
    ) -> ThreadsExtent:
        """Return the space that sweeps would free within that time, if no run begins or ends before."""
        condition, values = conditions(asked, seen)
        due = "t.expires_at <= now() + %(minutes)s * interval '1 minute' AND t.ttl_strategy = %(due_strategy)s"
        sql = _extent(f"{due} AND {_SWEPT[strategy]} AND {condition}", _PARTS[strategy])
        return await self._read(sql, {**values, "minutes": within_minutes, "due_strategy": strategy})

    async def _read(self, sql: str, values: Mapping[str, Any]) -> ThreadsExtent:
        return (await self._postgres.fetch(sql, values))[0]  # type: ignore[return-value]
