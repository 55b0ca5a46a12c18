"""SQL of checkpoints. Three kinds of rows: checkpoints, their large channel values, and the writes of tasks on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moorage.agents.records.threads import ChannelSize, RowsSize, ThreadStorage, ValuesSize
from moorage.kernel.group_commit import BYTES, INT, JSON, TEXT, Insert
from moorage.kernel.postgres import Postgres

# Reads all parts of a checkpoint in one round trip.
SELECT = """
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata,
    (
        SELECT array_agg(array[convert_to(b.channel, 'UTF8'), convert_to(b.type, 'UTF8'), b.blob])
        FROM jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
        JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
            AND b.channel = v.key AND b.version = v.value
    ) AS blobs,
    (
        SELECT array_agg(
            array[convert_to(w.task_id, 'UTF8'), convert_to(w.channel, 'UTF8'), convert_to(w.type, 'UTF8'), w.blob]
            ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx
        )
        FROM checkpoint_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    ) AS writes
FROM checkpoints c
"""
# A repeated put of a checkpoint replaces the row, since a retried step may carry newer metadata.
PUT_CHECKPOINT = Insert(
    """
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, checkpoint, metadata)
SELECT * FROM {rows}
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata
""",
    (TEXT, TEXT, TEXT, TEXT, TEXT, JSON, JSON),
)
# The value of a channel version never changes.
PUT_BLOB = Insert(
    """
INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
SELECT * FROM {rows}
ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING
""",
    (TEXT, TEXT, TEXT, TEXT, TEXT, BYTES),
)
_WRITE_COLUMNS = (TEXT, TEXT, TEXT, TEXT, TEXT, INT, TEXT, TEXT, TEXT, BYTES)
# Ordinary writes: keep the first, since a repeated task writes the same values.
PUT_WRITE = Insert(
    """
INSERT INTO checkpoint_writes
    (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, run_id, channel, type, blob)
SELECT * FROM {rows}
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
""",
    _WRITE_COLUMNS,
)
# Special writes (error, interrupt, resume): the last one wins. The write of another run that it replaces is kept for a
# rollback.
PUT_SPECIAL_WRITE = Insert(
    """
INSERT INTO checkpoint_writes
    (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, run_id, channel, type, blob)
SELECT * FROM {rows}
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
DO UPDATE SET run_id = EXCLUDED.run_id, channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob,
    overwritten_run_id = CASE WHEN checkpoint_writes.run_id IS DISTINCT FROM EXCLUDED.run_id
        THEN checkpoint_writes.run_id ELSE checkpoint_writes.overwritten_run_id END,
    overwritten_type = CASE WHEN checkpoint_writes.run_id IS DISTINCT FROM EXCLUDED.run_id
        THEN checkpoint_writes.type ELSE checkpoint_writes.overwritten_type END,
    overwritten_blob = CASE WHEN checkpoint_writes.run_id IS DISTINCT FROM EXCLUDED.run_id
        THEN checkpoint_writes.blob ELSE checkpoint_writes.overwritten_blob END
""",
    _WRITE_COLUMNS,
)
DELETE_THREAD = (
    "DELETE FROM checkpoints WHERE thread_id = %s",
    "DELETE FROM checkpoint_blobs WHERE thread_id = %s",
    "DELETE FROM checkpoint_writes WHERE thread_id = %s",
)
# Blobs of a deleted run stay until the thread is deleted: versions are unique, so nothing refers to them.
_DELETE_RUN = (
    """DELETE FROM checkpoint_writes w USING checkpoints c WHERE c.run_id = %s AND w.thread_id = c.thread_id
        AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND c.thread_id = %s""",
    """UPDATE checkpoint_writes SET run_id = overwritten_run_id, type = overwritten_type, blob = overwritten_blob,
        overwritten_run_id = NULL, overwritten_type = NULL, overwritten_blob = NULL
        WHERE run_id = %s AND thread_id = %s AND overwritten_type IS NOT NULL""",
    "DELETE FROM checkpoint_writes WHERE run_id = %s AND thread_id = %s",
    "DELETE FROM checkpoints WHERE run_id = %s AND thread_id = %s",
)
_COPY_THREAD = (
    """INSERT INTO checkpoints
        SELECT %(to)s, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, checkpoint, metadata
        FROM checkpoints WHERE thread_id = %(from)s ON CONFLICT DO NOTHING""",
    """INSERT INTO checkpoint_blobs SELECT %(to)s, checkpoint_ns, channel, version, type, blob
        FROM checkpoint_blobs WHERE thread_id = %(from)s ON CONFLICT DO NOTHING""",
    """INSERT INTO checkpoint_writes
        SELECT %(to)s, checkpoint_ns, checkpoint_id, task_id, task_path, idx, run_id, channel, type, blob
        FROM checkpoint_writes WHERE thread_id = %(from)s ON CONFLICT DO NOTHING""",
)
_HAS_NEWER = """EXISTS (
    SELECT FROM checkpoints newer WHERE newer.thread_id = c.thread_id AND newer.checkpoint_ns = c.checkpoint_ns
        AND newer.checkpoint_id > c.checkpoint_id)"""
# Rows that `keep_latest` removes: in each namespace all checkpoints but the newest, their writes, and the blobs that the
# newest does not refer to. Each condition holds before and after the other rows are deleted.
STALE = {
    "checkpoints c": _HAS_NEWER,
    "checkpoint_writes w": f"""NOT EXISTS (
        SELECT FROM checkpoints c WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns
            AND c.checkpoint_id = w.checkpoint_id AND NOT {_HAS_NEWER})""",
    "checkpoint_blobs b": f"""NOT EXISTS (
        SELECT FROM checkpoints c WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
            AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version AND NOT {_HAS_NEWER})""",
}
KEEP_LATEST = (
    *(f"DELETE FROM {table} WHERE {table.split()[1]}.thread_id = %s AND {stale}" for table, stale in STALE.items()),
    "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = %s",
)
# A DeltaChannel rebuilds its value from earlier checkpoints, so such a thread must keep them.
HAS_DELTAS = "(metadata ? 'counters_since_delta_snapshot' OR metadata ? 'delta_writes_versioned')"
NEEDS_HISTORY = f"SELECT EXISTS (SELECT FROM checkpoints WHERE thread_id = %s AND {HAS_DELTAS}) AS yes"
_SIZE_OF_CHECKPOINTS = """
SELECT count(*) AS count, coalesce(sum(pg_column_size(checkpoint) + pg_column_size(metadata)), 0)::bigint AS bytes
FROM checkpoints WHERE thread_id = %s
"""
_SIZE_OF_VALUES = """
SELECT channel, count(*) AS count, coalesce(sum(octet_length(blob)), 0)::bigint AS bytes
FROM checkpoint_blobs WHERE thread_id = %s GROUP BY channel ORDER BY channel
"""
_SIZE_OF_WRITES = """
SELECT count(*) AS count, coalesce(sum(octet_length(blob)), 0)::bigint AS bytes
FROM checkpoint_writes WHERE thread_id = %s
"""
_HAS_CHECKPOINT_OF_RUN = (
    "SELECT EXISTS (SELECT FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = '' AND run_id = %s) AS yes"
)


class CheckpointStore:
    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        self.bytes_written = 0  # by this process; counted by savers

    async def read(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> dict[str, Any] | None:
        """Return a checkpoint with all its parts; without an id, the latest of the namespace."""
        where = "WHERE thread_id = %s AND checkpoint_ns = %s"
        if checkpoint_id:
            return await self.postgres.fetch_one(
                f"{SELECT} {where} AND checkpoint_id = %s", (thread_id, checkpoint_ns, checkpoint_id)
            )
        return await self.postgres.fetch_one(
            f"{SELECT} {where} ORDER BY checkpoint_id DESC LIMIT 1", (thread_id, checkpoint_ns)
        )

    async def page(
        self, conditions: Sequence[tuple[str, Any]], before: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        """Return checkpoints that meet all conditions (SQL text from this package, value), newest first."""
        clauses, values = [text for text, _ in conditions], [value for _, value in conditions]
        if before is not None:
            clauses.append("checkpoint_id < %s")
            values.append(before)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        return await self.postgres.fetch(f"{SELECT} {where} ORDER BY checkpoint_id DESC LIMIT %s", [*values, limit])

    async def remove_thread(self, thread_id: str) -> None:
        await self.postgres.execute_all([(sql, [(thread_id,)]) for sql in DELETE_THREAD])

    async def remove_run(self, thread_id: str, run_id: str) -> None:
        """Delete everything that a run left on its thread: its checkpoints, and its writes on other runs' checkpoints."""
        await self.postgres.execute_all([(sql, [(run_id, thread_id)]) for sql in _DELETE_RUN])

    async def copy_thread(self, source: str, target: str) -> None:
        await self.postgres.execute_all([(sql, [{"from": source, "to": target}]) for sql in _COPY_THREAD])

    async def keep_latest(self, thread_id: str) -> bool:
        """Delete all checkpoints but the newest. Returns False for a thread that needs the others."""
        if (await self.postgres.fetch(NEEDS_HISTORY, (thread_id,)))[0]["yes"]:
            return False
        await self.postgres.execute_all([(sql, [(thread_id,)]) for sql in KEEP_LATEST])
        return True

    async def size(self, thread_id: str) -> ThreadStorage:
        checkpoints = (await self.postgres.fetch(_SIZE_OF_CHECKPOINTS, (thread_id,)))[0]
        writes = (await self.postgres.fetch(_SIZE_OF_WRITES, (thread_id,)))[0]
        by_channel = {
            row["channel"]: ChannelSize(versions=row["count"], bytes=row["bytes"])
            for row in await self.postgres.fetch(_SIZE_OF_VALUES, (thread_id,))
        }
        values = ValuesSize(
            count=sum(size["versions"] for size in by_channel.values()),
            bytes=sum(size["bytes"] for size in by_channel.values()),
            by_channel=by_channel,
        )
        return ThreadStorage(
            thread_id=thread_id,
            total_bytes=checkpoints["bytes"] + values["bytes"] + writes["bytes"],
            checkpoints=RowsSize(count=checkpoints["count"], bytes=checkpoints["bytes"]),
            channel_values=values,
            pending_writes=RowsSize(count=writes["count"], bytes=writes["bytes"]),
        )

    async def has_checkpoint_of(self, thread_id: str, run_id: str) -> bool:
        row = await self.postgres.fetch_one(_HAS_CHECKPOINT_OF_RUN, (thread_id, run_id))
        return bool(row and row["yes"])
