"""Gathering: what is asked for while work is under way is done together by the next round.

For work that costs per round rather than per item, such as an insert that is flushed to the disk. Who asks when nothing
is under way is served at once, so waiting begins only where the work itself is the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Gathering(Generic[T]):
    def __init__(self, work: Callable[[Sequence[T]], Awaitable[None]], *, items_max: int) -> None:
        """`work` is given up to `items_max` items, or those of one member when it brings more. It may be repeated."""
        self._work = work
        self._items_max = items_max
        self._waiting: list[tuple[Sequence[T], asyncio.Future[None]]] = []
        self._rounds: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[T]) -> None:
        """Returns when the items are done, and raises what went wrong with them."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            await self._work_on(self._next_group())

    def _next_group(self) -> list[tuple[Sequence[T], asyncio.Future[None]]]:
        taken, size = 0, 0
        for items, _ in self._waiting:
            size += len(items)
            if taken and size > self._items_max:
                break
            taken += 1
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return group

    async def _work_on(self, group: list[tuple[Sequence[T], asyncio.Future[None]]]) -> None:
        try:
            await self._work([item for items, _ in group for item in items])
        except UnavailableError as error:  # it is away for all of them: trying each would only take longer
            _settle(group, error)
        except Exception as error:
            if len(group) == 1:
                _settle(group, error)
                return
            log.info("work on a group failed, trying each member alone", members=len(group), error=str(error))
            for member in group:
                await self._work_on([member])
        else:
            _settle(group, None)


def _settle(group: list[tuple[Sequence[T], asyncio.Future[None]]], error: Exception | None) -> None:
    for _, done in group:
        if done.done():  # who asked was cancelled meanwhile
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
