"""SQL that empties the tables of an agent server in development."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.kernel.postgres import Postgres

_RUNS = ("DELETE FROM runs", "DELETE FROM run_frames")
_CHECKPOINTS = ("DELETE FROM checkpoint_writes", "DELETE FROM checkpoint_blobs", "DELETE FROM checkpoints")
_STATEMENTS = {
    "runs": _RUNS,
    "checkpointer": _CHECKPOINTS,
    "threads": (*_RUNS, *_CHECKPOINTS, "DELETE FROM threads"),  # crons of a thread go with it
    "assistants": ("DELETE FROM assistants",),
    "store": ("DELETE FROM items",),
}


async def truncate_tables(postgres: Postgres, names: Iterable[str]) -> None:
    await postgres.execute_all([(sql, [()]) for name in names for sql in _STATEMENTS[name]])
