"""The job that removes expired threads, or all of their checkpoints but the latest."""

from __future__ import annotations

from moorage.agents.store.expiry import ExpiryStore

# Threads per transaction: few, so that each transaction is short.
_BATCH = 100


class Expiry:
    """Expiry of threads. Idempotent; any number of processes may sweep at once. `threads_max` bounds one sweep."""

    def __init__(self, store: ExpiryStore, threads_max: int) -> None:
        self._store = store
        self._threads_max = threads_max

    async def sweep(self) -> None:
        left = self._threads_max
        while left > 0:
            batch = min(left, _BATCH)
            if await self._store.sweep(batch) < batch:
                return
            left -= batch
