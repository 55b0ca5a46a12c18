"""Rows with leases: claim, beat, wake, reap, and fence by attempt.

A room implements `Leased`, with its own SQL: which rows, and what to do with one. `Worker` does the rest. A row
is held by one worker until `lease_until`; the worker prolongs the lease while it works. After a kill -9 the lease runs
out, and any worker reaps the row back into the queue. Each claim raises `attempt`, and every write names the attempt of
its holder, so late writes of an earlier holder change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import structlog

from moorage.kernel.errors import UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.worker.stand_in import StandIn

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Lease:
    """Proof of holding a row. Every write to the row must name it."""

    key: UUID
    worker: str
    attempt: int


def proof_of(lease: Lease) -> dict[str, Any]:
    """Return the parameters of a statement that writes one row and must prove its lease."""
    return {"id": lease.key, "worker": lease.worker, "attempt": lease.attempt}


def arrays_of(leases: Collection[Lease]) -> dict[str, Any]:
    """Return parallel arrays for unnest. All leases of one call belong to one worker."""
    return {
        "keys": [lease.key for lease in leases],
        "attempts": [lease.attempt for lease in leases],
        "worker": next((lease.worker for lease in leases), ""),
    }


# Conditions of statements that must prove a lease: of several rows by `arrays_of`, and of one row by `proof_of`.
HELD = """FROM unnest(%(keys)s::uuid[], %(attempts)s::int[]) AS held (key, held_attempt)
WHERE id = key AND attempt = held_attempt AND worker = %(worker)s"""
MINE = "id = %(id)s AND worker = %(worker)s AND attempt = %(attempt)s"


class LeaseStore:
    """Store of leased rows. Subclasses have the statements: `BEAT` returns the ids of the rows that are still held."""

    BEAT: ClassVar[str]
    HAND_BACK: ClassVar[str]

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def beat(self, leases: Collection[Lease], lease_s: float) -> list[UUID]:
        rows = await self._postgres.fetch(self.BEAT, arrays_of(leases) | {"lease_s": lease_s})
        return [row["id"] for row in rows]

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self._postgres.execute(self.HAND_BACK, arrays_of(leases))


class HasLease(Protocol):
    @property
    def lease(self) -> Lease: ...


Row = TypeVar("Row", bound=HasLease)

_STOP_S = 2


class Leased(Protocol[Row]):
    """The operations on rows that a room supplies. All are idempotent and safe to call from many processes."""

    async def claim(self, worker: str, slots: int, lease_s: float) -> Sequence[Row]:
        """Lease up to `slots` rows that may run now to the worker, and return them."""

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        """Prolong the leases; return the keys that are still held."""

    async def reap(self) -> int:
        """Put rows whose lease ran out back into the queue, or end those out of attempts; return how many."""

    async def hand_back(self, leases: Collection[Lease]) -> None:
        """Put rows back at once without using up an attempt, because this worker stops."""

    async def execute(self, row: Row) -> bool:
        """Do the work and write its outcome; return True if another row may run now because of it.

        Cancelled when the lease is lost or the worker stops.
        """


@runtime_checkable
class BeatsFromThread(Protocol):
    """Further operations that a room supplies if its work may block the event loop."""

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        """Prolong the leases. Blocks."""


def worker_name() -> str:
    """Return a name that is unique for each start of a process and shows people which process it is."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid7().hex[-8:]}"


class Worker(Generic[Row]):
    """The loop that keeps up to `slots` rows of one kind at work in this process."""

    def __init__(self, leased: Leased[Row], *, name: str, slots: int, lease_s: float, poll_s: float) -> None:
        self.name = name
        self.lease_s = lease_s
        self._leased = leased
        self.slots = slots
        self._poll_s = poll_s
        self._held: dict[UUID, tuple[Lease, asyncio.Task[bool]]] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._is_paused = False
        self._claiming = asyncio.Lock()
        self._loops: list[asyncio.Task[None]] = []
        self._stand_in = StandIn(lease_s)

    @property
    def has_free_slot(self) -> bool:
        return len(self._held) < self.slots and not self._stopping and not self._is_paused

    @property
    def at_work(self) -> int:
        """Number of rows that this worker holds."""
        return len(self._held)

    @property
    def is_idle(self) -> bool:
        return not self._held

    def start(self) -> None:
        self._loops = [asyncio.create_task(self._claim_loop()), asyncio.create_task(self._beat_loop())]
        if isinstance(self._leased, BeatsFromThread):
            self._stand_in.start(partial(self._beat_from_thread, self._leased))

    def pause(self) -> None:
        """Claim and reap no more rows. Work on held rows continues to its end."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.wake()

    def wake(self) -> None:
        """Check for rows to claim soon."""
        self._wake.set()

    def take(self, row: Row) -> None:
        """Work on a row that is already leased to this worker, without going through the queue."""
        task = asyncio.create_task(self._leased.execute(row))
        if earlier := self._held.get(row.lease.key):  # an attempt that has lost its lease unnoticed
            earlier[1].cancel()
        self._held[row.lease.key] = (row.lease, task)
        task.add_done_callback(lambda done: self._drop(row.lease, done))

    async def stop(self) -> None:
        """Stop claiming, interrupt what runs and hand it back to the queue."""
        self._stopping = True
        self._stand_in.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S), self._claiming:
                pass  # a claim under way hands back the rows it got
        for loop in self._loops:
            loop.cancel()
        held = dict(self._held)
        for _, task in held.values():
            task.cancel()
        if held:
            # Work that ignores its cancellation is not waited for: after the next line it holds no lease.
            await asyncio.wait([task for _, task in held.values()], timeout=_STOP_S)
            try:
                await self._leased.hand_back([lease for lease, _ in held.values()])
            except UnavailableError as error:
                log.warning("cannot hand work back; its leases run out", error=str(error))

    def _drop(self, lease: Lease, done: asyncio.Task[bool]) -> None:
        was_full = len(self._held) >= self.slots
        current = self._held.get(lease.key)
        if current is not None and current[1] is done:
            del self._held[lease.key]
        if done.cancelled():
            return
        if error := done.exception():
            log.error("work on a leased row failed", key=str(lease.key), attempt=lease.attempt, exc_info=error)
        elif done.result() or was_full:
            self.wake()

    async def _claim_loop(self) -> None:
        while True:
            try:
                async with self._claiming:
                    await self._claim()
            except UnavailableError as error:
                log.warning("cannot claim work", error=str(error))
                await asyncio.sleep(1)
            except Exception:  # if this loop ended, the server would accept work and never do it
                log.exception("cannot claim work")
                await asyncio.sleep(1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _claim(self) -> None:
        while not self._is_paused and (free := self.slots - len(self._held)) > 0:
            rows = await self._leased.claim(self.name, free, self.lease_s)
            if self._stopping:
                await self._leased.hand_back([row.lease for row in rows])
                return
            for row in rows:
                self.take(row)
            if len(rows) < free:
                return

    async def _beat_loop(self) -> None:
        """Beat, then reap, so that a process that was blocked for long does not reap its own rows first."""
        while True:
            try:
                await self._beat()
                self._stand_in.note_beat()
                if not self._is_paused and await self._leased.reap():
                    self.wake()
            except UnavailableError as error:
                log.warning("cannot beat", error=str(error))
            except Exception:  # without beats, all work of this process would be taken away
                log.exception("cannot beat")
            await asyncio.sleep(self.lease_s / 3)

    async def _beat(self) -> None:
        held = dict(self._held)
        if not held:
            return
        kept = await self._leased.beat([lease for lease, _ in held.values()], self.lease_s)
        for key in held.keys() - set(kept):
            lease, task = held[key]
            if not task.done():
                log.warning("lease lost, stopping", key=str(key), attempt=lease.attempt)
                task.cancel()

    def _beat_from_thread(self, leased: BeatsFromThread) -> int:
        if leases := [lease for lease, _ in self._held.copy().values()]:
            leased.beat_from_thread(leases, self.lease_s)
        return len(leases)
