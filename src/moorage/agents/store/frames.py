"""SQL of frames. Resumable streams keep theirs until some time after their run has ended."""

from __future__ import annotations

import asyncio
from uuid import UUID

from moorage.kernel.group_commit import BIGINT, BYTES, ID, INT, GroupCommit, Insert
from moorage.kernel.postgres import Postgres

_PUT = Insert("INSERT INTO run_frames (run_id, millis, number, frame) SELECT * FROM {rows}", (ID, BIGINT, INT, BYTES))
PAGE_FRAMES = 1000
_PAGE = f"""
SELECT millis, number, frame FROM run_frames WHERE run_id = %s AND (millis, number) > (%s, %s)
ORDER BY millis, number LIMIT {PAGE_FRAMES}
"""
_SWEEP = """
DELETE FROM run_frames f WHERE f.written_at < now() - %(keep_s)s * interval '1 second' AND NOT EXISTS (
    SELECT FROM runs r WHERE r.run_id = f.run_id AND (
        r.status IN ('pending', 'running') OR r.updated_at > now() - %(keep_s)s * interval '1 second'
    )
)
"""


class FrameStore:
    def __init__(self, postgres: Postgres, commits: GroupCommit) -> None:
        self._postgres = postgres
        self._commits = commits

    def put(self, run_id: UUID, millis: int, number: int, frame: bytes) -> asyncio.Future[None]:
        """Queue the frame. The future is done when the frame is durable."""
        return self._commits.write([(_PUT, [(run_id, millis, number, frame)])])

    async def all_written(self) -> None:
        """Wait until all frames that were put before are durable."""
        await self._commits.write([])

    async def page(self, run_id: UUID, after: tuple[int, int]) -> list[tuple[int, int, bytes]]:
        """Return the first `PAGE_FRAMES` frames later than (millis, number)."""
        rows = await self._postgres.fetch(_PAGE, (run_id, *after))
        return [(row["millis"], row["number"], row["frame"]) for row in rows]

    async def sweep(self, keep_s: float) -> int:
        return await self._postgres.execute(_SWEEP, {"keep_s": keep_s})
