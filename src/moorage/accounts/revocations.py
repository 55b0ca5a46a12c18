"""A feed of revoked keys, so that processes and agents drop a cached key as soon as it is revoked.

Each process reads new revocations twice a second and answers all waiting callers from them, so many agents cost one
statement. A cursor is `<reader>:<position>:<time>`. The process that gave out the cursor answers it from memory.
Another process, or the same one after a restart, reads from the cursor's time on, so a revocation may be reported twice
but is never left out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import structlog

from moorage.accounts.records import RevokedKey, RevokedKeys, actor_of_key
from moorage.accounts.store import AccountStore
from moorage.kernel.errors import InvalidRequestError, UnavailableError

log = structlog.get_logger(__name__)

WAIT_S_MAX = 30
_EVERY_S = 0.5
_STALE_S = 10.0
# A revocation becomes visible at most this long after its timestamp: it is one short statement.
_OVERLAP = timedelta(minutes=1)
_WITHOUT_CURSOR = timedelta(hours=1)
# Agents may trust cached keys for less than this (MOORAGE_AGENT_OFFLINE_SECONDS).
_BACK_MAX = timedelta(days=2)
_REMEMBERED_MAX = 10_000


class _Cursor(NamedTuple):
    reader: str
    position: int
    read_at: datetime

    def __str__(self) -> str:
        return f"{self.reader}:{self.position}:{int(self.read_at.timestamp())}"


class Revocations:
    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self._reader = secrets.token_hex(8)
        self._told: list[RevokedKey] = []
        self._first = 0  # position of the oldest remembered revocation
        self._read_at = datetime.now(UTC)
        self._recent: frozenset[UUID] = frozenset()
        self._actors: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._stopped = False
        self._good_until = float("-inf")

    def actors(self) -> frozenset[str]:
        """Return the actors of keys that were revoked in the last minute."""
        return self._actors

    async def start(self) -> None:
        await self._read_new(await self._store.now() - _OVERLAP)
        self._reading = asyncio.create_task(self._read_on())

    async def stop(self) -> None:
        """Answer all waiting callers, so that no connection is held open."""
        self._stopped = True
        self._changed.set()
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    async def page(self, workspace_id: UUID, cursor: str, wait_s: float) -> RevokedKeys:
        """Return the workspace's keys that were revoked after the cursor; wait up to `wait_s` while there are none.

        Raises InvalidRequestError for a cursor that no process has given out.
        """
        after = _read_cursor(cursor) if cursor else None
        if after is None or after.reader != self._reader or after.position < self._first:
            return await self._from_the_store(workspace_id, after)
        self._check_reads()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._since(workspace_id, after) and not self._stopped:
                    await self._changed.wait()
        return {"key_ids": self._since(workspace_id, after), "cursor": str(self._here())}

    def _check_reads(self) -> None:
        """Raise UnavailableError while revocations cannot be read: an empty answer would mean that nothing was
        revoked.
        """
        if time.monotonic() > self._good_until:
            raise UnavailableError("Revocations cannot be read at the moment; try again")

    async def _from_the_store(self, workspace_id: UUID, after: _Cursor | None) -> RevokedKeys:
        here, now = self._here(), await self._store.now()
        since = now - _WITHOUT_CURSOR if after is None else max(after.read_at - _OVERLAP, now - _BACK_MAX)
        revoked = await self._store.read_revoked(since, workspace_id)
        return {"key_ids": [key["id"] for key in revoked], "cursor": str(here)}

    def _since(self, workspace_id: UUID, after: _Cursor) -> list[UUID]:
        told = self._told[max(after.position - self._first, 0) :]
        return [key["id"] for key in told if key["workspace_id"] == workspace_id]

    def _here(self) -> _Cursor:
        return _Cursor(self._reader, self._first + len(self._told), self._read_at)

    async def _read_on(self) -> None:
        """Read new revocations for ever. While the database is away nothing can be revoked, and each read starts at the
        last successful one.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._read_new(self._read_at - _OVERLAP)
            except Exception as error:  # of any kind: without this loop revocations would be noticed too late
                log.warning("new revocations cannot be read; trying again", error=type(error).__name__)

    async def _read_new(self, since: datetime) -> None:
        now = await self._store.now()
        keys = await self._store.read_revoked(since)
        new = [key for key in keys if key["id"] not in self._recent]
        self._read_at, self._good_until = now, time.monotonic() + _STALE_S
        if new or len(keys) != len(self._recent):
            self._recent = frozenset(key["id"] for key in keys)
            self._actors = frozenset(map(actor_of_key, self._recent))
        if new:
            self._tell(new)

    def _tell(self, new: list[RevokedKey]) -> None:
        self._told += new
        if beyond := max(len(self._told) - _REMEMBERED_MAX, 0):
            del self._told[:beyond]
            self._first += beyond
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _read_cursor(text: str) -> _Cursor:
    reader, _, rest = text.partition(":")
    position, _, read_at = rest.partition(":")
    try:
        return _Cursor(reader, int(position), datetime.fromtimestamp(int(read_at), UTC))
    except (ValueError, OverflowError, OSError):
        raise InvalidRequestError("Invalid cursor: send the one of the last answer, or none") from None
