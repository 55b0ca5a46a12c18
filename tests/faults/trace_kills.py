"""kill -9 of the platform and of its trace store at random moments of an ingest over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.faults.houses import RANDOM
from tests.faults.reports import Report, progress
from tests.faults.trace_loads import TraceLoad
from tests.platform.serving import Platform, make_platform
from tests.waiting import wait_until

_TAKEN_AGAIN_S_MAX = 120
VICTIMS = ("platform", "store", "both")


async def trace_kills(folder: Path, *, times: int = 20, clients: int = 6, ingest_s: float = 60) -> Report:
    """Kill this many times, spread over an ingest of at least this many seconds."""
    report = Report("trace-kills")
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        load = TraceLoad(platform, clients)
        ends_at = time.monotonic() + ingest_s
        async with load.running():
            for number in range(times):
                await load.until_taken(10, _TAKEN_AGAIN_S_MAX)
                await asyncio.sleep(RANDOM.random() * 2 * ingest_s / times)
                victim = VICTIMS[number % len(VICTIMS)]
                began = time.monotonic()
                await asyncio.to_thread(_kill, platform, victim)
                took_s = time.monotonic() - began
                progress(f"kill {number + 1} of {times}, of {victim}, {took_s:.1f} s: {load.told}")
            await asyncio.sleep(max(1, ends_at - time.monotonic()))
        wrongs = await load.judge(90)
        report.add(wrongs)
        report.tell(kills=times, **load.figures())
        acknowledged = sum(run.must_be_there for run in load.runs.values())
        report.check(acknowledged > 5 * times, "the load was too small to say anything")
    return report


def _kill(platform: Platform, victim: str) -> None:
    """Kill, and return when the platform serves again. Its store comes back by itself."""
    if victim in {"store", "both"}:
        store = wait_until(lambda: platform.engines().get("clickhouse"))
        os.kill(store, signal.SIGKILL)
    if victim in {"platform", "both"}:
        platform.kill()
        platform.start()
