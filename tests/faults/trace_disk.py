"""The data of traces on a small file system that becomes full."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.faults.full_disk import fill, small_file_system
from tests.faults.reports import Report, progress
from tests.faults.trace_loads import TraceLoad
from tests.platform.serving import make_platform

_BACK_S_MAX = 30


async def trace_disk(folder: Path, *, times: int = 3, full_s: float = 10) -> Report:
    report = Report("trace-disk")
    home = folder / "home"
    with small_file_system(home / "clickhouse", 300) as small, make_platform(home, LOG_LEVEL="WARNING") as platform:
        load = TraceLoad(platform, 4)
        reads: list[int] = []
        back_s: list[float] = []
        async with load.running():
            for number in range(times):
                await load.until_taken(10, 30)
                told = load.turned_away
                with (small / "filler").open("wb") as filler:
                    reads += await _full(load, filler.fileno(), full_s)
                    filler.truncate(0)
                back_s.append(await load.until_taken(10, _BACK_S_MAX))
                report.check(load.turned_away > told, "the disk was not full enough for anybody to notice")
                progress(f"full {number + 1} of {times}: {load.told}; back after {back_s[-1]:.1f} s {load.wrongs[:1]}")
        report.add(await load.judge(60))
        report.tell(times_full=times, **load.figures(), reads_while_it_was_full=len(reads))
        report.tell(longest_until_runs_were_taken_again_s=max(back_s))
        report.check(set(reads) == {200}, f"reads were answered {sorted(set(reads))} while the disk was full")
    return report


async def _full(load: TraceLoad, filler: int, seconds: float) -> list[int]:
    """Keep the disk full for this many seconds, and then up to a minute until a client was told. Returns the statuses
    of reads meanwhile.
    """
    reads, told, began = [], load.turned_away, time.monotonic()
    async with load.http() as http:
        while (now := time.monotonic()) < began + seconds or (load.turned_away == told and now < began + 60):
            fill(filler)
            run = next(run for run in load.runs.values() if run.must_be_there)
            reads.append((await http.get(f"/api/v1/runs/{run.id}")).status_code)
            reads.append((await http.post("/api/v1/runs/query", json={"trace": run.trace[0].id})).status_code)
            reads.append((await http.post("/api/v1/runs/stats", json={"trace": run.trace[0].id})).status_code)
            await asyncio.sleep(0.2)
    return reads
