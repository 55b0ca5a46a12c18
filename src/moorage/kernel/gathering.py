"""Group commit: members that arrive while a round of work is under way form the next round.

For work that costs per round rather than per member, such as a transaction that waits for the disk. When idle, a member
is worked on at once, so members wait only while the work itself is the bottleneck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

M = TypeVar("M")
_Waiting = tuple[M, "asyncio.Future[None]"]


class Gathering(Generic[M]):
    """Queue of members that are worked on together, in rounds.

    If an engine is away (UnavailableError), the round and all waiting members fail: they would only wait longer. If a
    round fails for another reason, each member is retried alone, so that a bad member does not fail the others.
    """

    def __init__(self, work: Callable[[Sequence[M]], Awaitable[None]], *limits: tuple[Callable[[M], int], int]) -> None:
        """Make the queue. Each of `limits` is a function for a member's size, and the largest size of a round, which a
        single member may exceed.

        `work` is repeated for single members, so it must be all or nothing, or idempotent.
        """
        self._work = work
        self._limits = limits
        self._waiting: list[_Waiting[M]] = []
        self._rounds: asyncio.Task[None] | None = None

    def add(self, member: M) -> asyncio.Future[None]:
        """Queue the member. The future is done when the work on the member is done, and holds its error if it failed.

        Cancelling the future does not take the member back; `withdraw` does.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((member, done))
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._run())
        return done

    def withdraw(self, member: M) -> None:
        """Remove a member that still waits. A member that is being worked on is finished."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not member]

    async def finish(self, timeout_s: float) -> None:
        """Wait for the work on all added members."""
        if self._rounds is not None:
            await asyncio.wait([self._rounds], timeout=timeout_s)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._work_on(self._next_round())
        finally:
            self._rounds = None

    def _next_round(self) -> list[_Waiting[M]]:
        taken, left = 0, [size_max for _, size_max in self._limits]
        for member, _ in self._waiting:
            left = [rest - size(member) for rest, (size, _) in zip(left, self._limits, strict=True)]
            if taken and min(left) < 0:
                break
            taken += 1
        members, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return members

    async def _work_on(self, members: list[_Waiting[M]]) -> None:
        try:
            await self._work([member for member, _ in members])
        except UnavailableError as error:
            members, self._waiting = members + self._waiting, []
            _settle(members, error)
        except Exception as error:
            if len(members) == 1:
                _settle(members, error)
                return
            log.info("work on a group failed, trying each member alone", members=len(members), error=str(error))
            for member in members:
                await self._work_on([member])
        else:
            _settle(members, None)


def _settle(members: Sequence[_Waiting[M]], error: Exception | None) -> None:
    for _, done in members:
        if done.done():  # the waiting task was cancelled meanwhile
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
