"""A ticker: calls periodic work at an interval while the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

_STOP_S = 2


class Ticker:
    """Calls of `work` every `every_s` seconds. The work is idempotent: any number of processes may tick at once."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], *, every_s: float) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._is_paused = False
        self._is_stopping = False
        self._woken = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    def wake(self) -> None:
        """Tick soon, because there is work."""
        self._woken.set()

    def pause(self) -> None:
        """Stop calling the work, as a replaced revision does, until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    async def stop(self) -> None:
        """Stop ticking. Work that ignores its cancellation is not waited for: any process may do it again."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_STOP_S)

    async def _loop(self) -> None:
        while not self._is_stopping:
            self._woken.clear()  # before the tick, which may miss what arrives during it
            if not self._is_paused:
                await self._tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._woken.wait()

    async def _tick(self) -> None:
        try:
            await self._work()
        except UnavailableError as error:
            log.warning("cannot tick", ticker=self._name, error=str(error))
        except Exception:  # if this loop ended, its work would never be done
            log.exception("a tick failed", ticker=self._name)
