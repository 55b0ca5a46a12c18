"""What becomes of the space of deleted runs: fills an embedded trace store, deletes, cleans, and shows the disk and the memory.

    .venv/bin/python bench/deleted_space.py --runs 500000

Of three projects one is deleted whole, one expires half, one stays. Disk is what the tables take; memory is what the engine's
process holds at most, sampled, against the limit of its configuration. Exits with 1 when runs that stay were lost, when
space did not come back, or when the engine gave a cleaning up.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import psutil

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.kernel.errors import UnavailableError
from moorage.traces.store.deletions import TombstoneStore

WORKSPACE = UUID(int=1)
DOOMED, EXPIRING, KEPT = UUID(int=2), UUID(int=3), UUID(int=4)
NOW = datetime(2026, 6, 30, tzinfo=UTC)
BATCH = 5_000
DAYS = 60
# Of 2.7 KB, which compress to a quarter, as those of real agents do.
_FILL = """
INSERT INTO trace_run_rows (tenant_id, session_id, start_time, id, trace_id, dotted_order, is_root, name, run_type, end_time,
    inputs, outputs, metadata_json, tags, total_tokens, total_cost, ingested_at)
SELECT {tenant:UUID}, [{doomed:UUID}, {expiring:UUID}, {kept:UUID}][1 + number % 3],
    {now:DateTime64(6, 'UTC')} - toIntervalSecond(cityHash64(number) % ({days:UInt32} * 86400)) AS at,
    reinterpretAsUUID(sipHash128(number)) AS run, run, concat(formatDateTime(at, '%Y%m%dT%H%i%S%fZ'), toString(run)), true,
    concat('step ', toString(number % 40)), ['llm', 'chain', 'tool'][1 + number % 3], at + toIntervalMillisecond(number % 9000),
    concat('{"messages":"', randomPrintableASCII(300, number), repeat('what a user asks, again and again. ', 30), '"}'),
    concat('{"answer":"', randomPrintableASCII(300, number), repeat('what a model answers to that. ', 30), '"}'),
    concat('{"user":"u', toString(number % 5000), '"}'), '["a","b"]', number % 3000, number % 3000 / 1e6, now64(6)
FROM numbers({first:UInt64}, {count:UInt64})
"""
_AS_INGEST: Settings = {"max_threads": 1, "exclude_materialize_skip_indexes_on_insert": "by_letters, by_digits"}
_DISK = """
SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase()
    AND table IN ('trace_run_rows', 'trace_run_keys', 'trace_keys')
"""
_RUNS = "SELECT session_id, count() FROM trace_runs GROUP BY session_id ORDER BY session_id"
_UNFINISHED = """
SELECT table, command, parts_to_do, latest_fail_reason FROM system.mutations WHERE NOT is_done AND database = currentDatabase()
"""


class Peak:
    """The most memory that the engine held, over the seconds of a step."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.rss_bytes = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while self._process.is_running():
            self.rss_bytes = max(self.rss_bytes, self._process.memory_info().rss)
            time.sleep(0.05)

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


class Steps:
    def __init__(self, clickhouse: ClickHouse, peak: Peak) -> None:
        self._clickhouse = clickhouse
        self._peak = peak
        print("| step | seconds | CPU s | disk MB | engine at most MB |\n|---|---|---|---|---|")

    async def show(self, name: str, since: tuple[float, float]) -> int:
        disk = int(await self._clickhouse.value(_DISK))
        wall, cpu = time.monotonic() - since[0], self._peak.cpu_s() - since[1]
        memory = self._peak.rss_bytes / 1e6
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {disk / 1e6:.0f} | {memory:.0f} |", flush=True)
        return disk

    def begin(self) -> tuple[float, float]:
        self._peak.rss_bytes = 0
        return time.monotonic(), self._peak.cpu_s()


async def fill(clickhouse: ClickHouse, runs: int) -> None:
    given = {"tenant": WORKSPACE, "doomed": DOOMED, "expiring": EXPIRING, "kept": KEPT, "now": NOW, "days": DAYS}
    for first in range(0, runs, BATCH):
        batch = {**given, "first": first, "count": min(BATCH, runs - first)}
        while True:
            try:
                await clickhouse.command(_FILL, batch, _AS_INGEST)
                break
            except UnavailableError:  # merges hold the memory; ingest's clients come again too
                await asyncio.sleep(1)


async def settled(clickhouse: ClickHouse, bound_s: float) -> list[tuple[object, ...]]:
    """Waits for what is under way; what the engine could not do within the bound, or failed to do."""
    give_up_at = time.monotonic() + bound_s
    while unfinished := await clickhouse.rows(_UNFINISHED):
        if time.monotonic() > give_up_at or any(row[3] for row in unfinished):
            return unfinished
        await asyncio.sleep(0.5)
    return []


async def measure(clickhouse: ClickHouse, peak: Peak, runs: int, bound_s: float) -> int:
    steps, tombstones = Steps(clickhouse, peak), TombstoneStore(clickhouse)
    began = steps.begin()
    await fill(clickhouse, runs)
    full = await steps.show(f"{runs} runs", began)
    before = dict(await clickhouse.rows(_RUNS))
    middle = NOW - timedelta(days=DAYS / 2)
    began = steps.begin()
    await tombstones.erase_projects([(WORKSPACE, DOOMED)])
    await tombstones.erase_before({middle: [(WORKSPACE, EXPIRING)]})
    await steps.show("deleted: 1 of 3 projects, half of another", began)
    began = steps.begin()
    failed: list[tuple[object, ...]] = []
    for files in await tombstones.masked():
        await tombstones.clean(files)
        failed += await settled(clickhouse, bound_s)
    left = await steps.show("cleaned", began)
    after = dict(await clickhouse.rows(_RUNS))
    print(
        f"\nruns before {sorted(before.values())}, after {sorted(after.values())}; {left / full:.0%} of the disk is left"
    )
    for row in failed:
        print("NOT DONE:", *row, sep="\n  ")
    return int(bool(failed) or after.get(KEPT) != before[KEPT] or DOOMED in after or left > 0.6 * full)


@contextmanager
def make_folder() -> Iterator[Path]:
    """Open to others: under root the engine has a user of its own."""
    with TemporaryDirectory(prefix="moorage-space-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=500_000)
    options.add_argument("--bound-s", type=float, default=1800, help="how long a cleaning may take")
    given = options.parse_args()
    with make_folder() as folder:
        store = EmbeddedClickHouse(folder / "home")
        clickhouse = ClickHouse(await asyncio.to_thread(store.start))
        try:
            await clickhouse.migrate()
            return await measure(clickhouse, Peak(store._server_pid() or 0), given.runs, given.bound_s)  # noqa: SLF001
        finally:
            await clickhouse.close()
            await asyncio.to_thread(store.stop)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
