"""Tickers, which stop when they are told to, whatever their work does."""

from __future__ import annotations

import asyncio
import contextlib

from moorage.worker.ticker import Ticker


async def test_work_is_done_again_and_again_also_after_it_failed() -> None:
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("once")

    ticker = Ticker("test", work, every_s=0.01)
    ticker.start()
    async with asyncio.timeout(10):
        while calls < 3:  # noqa: ASYNC110 - that is what is tested
            await asyncio.sleep(0.01)
    await ticker.stop()


async def test_work_that_swallows_its_cancellation_does_not_hold_up_the_stop() -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

    ticker = Ticker("test", work, every_s=0.01)
    ticker.start()
    await began.wait()
    async with asyncio.timeout(5):
        await ticker.stop()
