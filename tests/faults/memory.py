"""The memory of a server under a steady load."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

from tests.faults.houses import House, house_in, rss_mb
from tests.faults.loads import MixedLoad, judge
from tests.faults.reports import Report, progress

GROWTH_MAX = 0.05
# A share of the whole time, in which caches fill and the allocator finds its size.
WARM_UP = 1 / 6


async def memory(folder: Path, *, minutes: float = 30, row_s: float = 60, growth_max: float = GROWTH_MAX) -> Report:
    report = Report("memory")
    with house_in(folder) as house:
        server = house.serve(MOORAGE_LEASE_SECONDS="15", RESUMABLE_STREAM_TTL_SECONDS="120")
        load = MixedLoad(house, [server], clients=16, seconds=0.05, pause_s=0.1)
        async with load.running():
            rows = await _watch(house, load, minutes * 60, row_s)
        await asyncio.to_thread(house.await_the_end_of_all_runs, 60)
        if minutes <= 5:  # otherwise the database would have forgotten frames that the judge asks for
            report.add(judge(load))
        report.add(load.ledger.wrongs)
        # Medians of equal parts, so that a single moment with many open streams does not decide.
        warm = rows[int(len(rows) * WARM_UP) :]
        part = max(1, len(warm) // 5)
        before, after = median(warm[:part]), median(warm[-part:])
        report.tell(minutes=minutes, runs=len(load.ledger.accepted), at_the_start_mb=rows[0], after_warm_up_mb=before)
        report.tell(at_the_end_mb=after, most_mb=max(rows), growth_percent=100 * (after / before - 1))
        report.check(after <= before * (1 + growth_max), f"memory grew by {100 * (after / before - 1):.1f} %")
    return report


async def _watch(house: House, load: MixedLoad, seconds: float, row_s: float) -> list[float]:
    """Record the memory, as often as rows are printed."""
    pid, rows, started = house.servers[0].pid, [], time.monotonic()
    while time.monotonic() - started < seconds:
        await asyncio.sleep(row_s)
        rows.append(rss_mb(pid))
        runs = len(load.ledger.accepted)
        slow_s = max((took for _, took in load.ledger.latencies[-200:]), default=0)
        elapsed = time.monotonic() - started
        progress(f"| {elapsed / 60:5.1f} min | {rows[-1]:6.1f} MB | {runs} runs | slowest of late {slow_s:.2f} s |")
    return rows
