"""Rotation of the master key: wraps the data key of every sealed value again, with the newest master key."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from moorage.accounts.records import Rotation
from moorage.accounts.store import AccountStore
from moorage.kernel.crypto import MasterKeys, SealedColumn, UnsealError

log = structlog.get_logger(__name__)

_AT_ONCE_MAX = 10_000


class MasterKeyRotation:
    """Rotation over the sealed columns of all rooms, which are `columns`. A column that is missing here would need its
    old master key for ever.
    """

    def __init__(self, store: AccountStore, keys: MasterKeys, columns: Sequence[SealedColumn]) -> None:
        self._store = store
        self._keys = keys
        self._columns = columns

    async def rotate(self) -> Rotation:
        """Re-wrap the values that older keys sealed. May be repeated, and may run while values are read and written."""
        rewrapped = 0
        for column in self._columns:
            rewrapped += await self._rewrap(column)
        left = sum([await self._store.count_outdated(column, self._keys.newest_prefix) for column in self._columns])
        log.info("master key rotated", key_id=self._keys.ids[0], rewrapped=rewrapped, left=left)
        return {"key_id": self._keys.ids[0], "rewrapped": rewrapped, "left": left}

    async def _rewrap(self, column: SealedColumn) -> int:
        count = 0
        for row_id, sealed in await self._store.read_outdated(column, self._keys.newest_prefix, _AT_ONCE_MAX):
            try:
                rewrapped = self._keys.rewrap(sealed)
            except UnsealError as error:  # reported in `left`; the other rows go on
                log.warning("secret not re-wrapped", place=column.place(row_id), error=str(error))
                continue
            count += await self._store.set_rewrapped(column, row_id, sealed, rewrapped)
        return count
