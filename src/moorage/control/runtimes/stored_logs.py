"""Storing the lines that agents print."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from moorage.control.runtimes.log_tail import LogTail
from moorage.control.store.logs import LogStore
from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)


class StoredLogs:
    """Stores the lines of agents. Hold `lock` while renaming or removing log files, so that each
    line is stored once.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.lock = asyncio.Lock()

    async def store(self, tails: Sequence[LogTail]) -> None:
        """Store new lines of all tails in one batch. Lines that cannot be stored now are read again later."""
        async with self.lock:
            await self.store_locked(tails)

    async def store_locked(self, tails: Sequence[LogTail]) -> None:
        """Store new lines, for a caller that already holds the lock."""
        read = await asyncio.to_thread(lambda: [(tail, *tail.read()) for tail in tails])
        lines = [line for _, some, _ in read for line in some]
        if not lines:
            return
        try:
            await self._store.insert(lines)
        except UnavailableError as error:
            log.warning("logs of agents cannot be stored now", error=str(error))
            return
        for tail, _, reached in read:
            await asyncio.to_thread(tail.keep, reached)
