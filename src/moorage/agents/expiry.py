"""The job that removes threads whose time has come, or all of their checkpoints but the latest."""

from __future__ import annotations

from moorage.agents.store.expiry import ExpiryStore

# Threads of one transaction: few enough that it is short.
_BATCH = 100


class Expiry:
    """Idempotent; any number of processes may sweep at once. `threads_max` bounds one sweep."""

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
