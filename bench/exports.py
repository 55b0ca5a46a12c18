"""Measures bulk export: a platform with runs of 30 days writes them to a real S3 server. See bench/README.md.

CPU time counts: of the process that writes (the platform's) and of the trace store's. In the same sitting the ceiling:
pyarrow encodes rows of the same files from memory. Nothing leaves the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
from exports_data import SINCE, Days
from exports_ingest import Rate, ingest
from exports_subjects import S3, Exported, Platform, ceiling_rows_per_cpu_s, exported

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.clickhouse import ClickHouse

# As ingest inserts.
_INSERT = {"max_partitions_per_insert_block": 0, "exclude_materialize_skip_indexes_on_insert": "by_letters, by_digits"}
_MERGES = "SELECT count() FROM system.merges"
_RUNS = """
SELECT uniqExact(id) FROM trace_run_rows
WHERE session_id = {session_id:UUID} AND start_time >= {since:DateTime64(6, 'UTC')} AND start_time < {until:DateTime64(6, 'UTC')}
"""
_SETTLE_S = 120
_LOOK_S = 0.3


@dataclass(frozen=True)
class Loads:
    """What ingest did without an export beside it, and with one."""

    alone: Rate
    beside: Rate
    exports: int  # that were at work beside it, one after the other


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with ExitStack() as stack:
        folder = options.home or Path(stack.enter_context(TemporaryDirectory(prefix="moorage-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # engines have a user of their own under root
        platform = stack.enter_context(Platform(folder / "home", options.key))
        s3 = stack.enter_context(S3())
        return _measure(options, folder, platform, s3)


def _measure(options: argparse.Namespace, folder: Path, platform: Platform, s3: S3) -> int:
    session_id, since = _runs(options, folder, platform)
    destination_id = platform.destination(s3)
    found: dict[str, Exported] = {}
    for days in sorted({1, min(7, options.days), options.days}):
        _say(f"v2_beta, {days} days ...")
        found[f"v2_beta, {days} days"] = exported(platform, destination_id, session_id, since, days, "v2_beta")
    _say(f"v1, {options.days} days ...")
    found[f"v1, {options.days} days"] = exported(platform, destination_id, session_id, since, options.days, "v1")
    whole = found[f"v2_beta, {options.days} days"]
    _say("the ceiling ...")
    ceiling = ceiling_rows_per_cpu_s(s3, whole.export_id)
    loads = _ingest_beside(options, platform, destination_id, session_id, since) if options.ingest_s else None
    print(_table(found, ceiling, loads))
    if options.json:
        numbers = {"ceiling_rows_per_cpu_s": ceiling, "exports": {name: each.__dict__ for name, each in found.items()}}
        options.json.write_text(json.dumps(numbers, indent=1))
    expected = asyncio.run(_counted(folder / "home", UUID(session_id), since, {1, 7, options.days}))
    wrong = [name for name, each in found.items() if each.rows != expected[int(name.split()[1])]]
    for name in wrong:
        _say(f"{name}: {found[name].rows} rows are not all that there are")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=666_000, help="runs in all (default 666,000)")
    options.add_argument("--days", type=int, default=30, help="over how many days (default 30)")
    options.add_argument("--home", type=Path, help="keep all in this folder; a second run goes on with its runs")
    options.add_argument(
        "--facts",
        type=Path,
        help="export the first project of HOME/home, which traces.py fill has filled and told here",
    )
    options.add_argument("--key", help="an API key of that home's workspace; goes with --facts")
    options.add_argument("--ingest-s", type=int, default=30, help="seconds of each ingest load (default 30); 0: none")
    options.add_argument("--json", type=Path, help="write the numbers of the exports to this file")
    return options.parse_args()


def _runs(options: argparse.Namespace, folder: Path, platform: Platform) -> tuple[str, datetime]:
    """The project to export, and where its runs begin."""
    if options.facts:
        return platform.project("bench-0"), datetime.fromisoformat(json.loads(options.facts.read_text())["since"])
    session_id = platform.project("bench")
    asyncio.run(_fill(options, folder / "home", platform.workspace_id, UUID(session_id)))
    return session_id, SINCE


async def _fill(options: argparse.Namespace, home: Path, workspace_id: UUID, session_id: UUID) -> None:
    """The runs, straight into the store: how they come in is measured elsewhere."""
    async with _store(home) as clickhouse:
        [(known,)] = await clickhouse.rows(
            "SELECT uniq(id) FROM trace_run_rows WHERE session_id = {session_id:UUID}", {"session_id": session_id}
        )
        if not known:
            days = Days(options.rows // options.days, workspace_id, session_id)
            for day in range(options.days):
                _say(f"filling day {day + 1} of {options.days}")
                for columns in days.inserts(day):
                    await clickhouse.insert("trace_run_rows", columns, _INSERT)
        for _ in range(_SETTLE_S):
            if not await clickhouse.value(_MERGES):
                break
            await asyncio.sleep(1)


async def _counted(home: Path, session_id: UUID, since: datetime, windows: set[int]) -> dict[int, int]:
    """How many runs there are in the first days, for each number of days."""
    async with _store(home) as clickhouse:
        return {
            days: int(
                await clickhouse.value(
                    _RUNS, {"session_id": session_id, "since": since, "until": since + timedelta(days=days)}
                )
            )
            for days in windows
        }


@asynccontextmanager
async def _store(home: Path) -> AsyncIterator[ClickHouse]:
    """The platform's, which is up."""
    store = EmbeddedClickHouse(home)
    clickhouse = ClickHouse(store.start())
    try:
        yield clickhouse
    finally:
        await clickhouse.close()
        store.stop()


def _ingest_beside(
    options: argparse.Namespace, platform: Platform, destination_id: str, session_id: str, since: datetime
) -> Loads:
    _say("ingest alone ...")
    alone = asyncio.run(ingest(platform.url, platform.key, options.ingest_s))
    _say("ingest beside exports ...")
    until = since + timedelta(days=options.days)
    body = {"format_version": "v2_beta", "start_time": since.isoformat(), "end_time": until.isoformat()}
    over = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        exports = thread.submit(_export_until, over, platform, lambda: platform.order(destination_id, session_id, body))
        beside = asyncio.run(ingest(platform.url, platform.key, options.ingest_s))
        over.set()
        return Loads(alone, beside, exports.result())


def _export_until(over: threading.Event, platform: Platform, order: Callable[[], Any]) -> int:
    """One export after the other, the last of which is cancelled; how many."""
    for number in itertools.count(1):
        export_id = order()["id"]
        while platform.get(f"/api/v1/bulk-exports/{export_id}")["status"] in {"Created", "Running"}:
            if over.wait(_LOOK_S):
                with suppress(httpx.HTTPStatusError):  # it may just have ended
                    platform.cancel(export_id)
                return number
    raise AssertionError


def _table(found: dict[str, Exported], ceiling: float, loads: Loads | None) -> str:
    lines = [
        "| export | rows | rows per CPU s | CPU: writer, engine | of the ceiling | over idle | MB written | wall |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        cells: list[Any] = [
            name,
            f"{each.rows:,}",
            f"{each.rows_per_cpu_s:,.0f}",
            f"{each.writer_cpu_s:.1f} s, {each.engine_cpu_s:.1f} s",
            f"{each.rows_per_cpu_s / ceiling:.0%}",
            f"{each.over_idle_mb:.0f} MB",
            f"{each.size_bytes / 1e6:.0f}",
            f"{each.wall_s:.0f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"The ceiling: pyarrow encodes {ceiling:,.0f} rows a CPU second from memory, zstandard, one thread."]
    if loads:
        lost = 1 - loads.beside.runs_per_s / loads.alone.runs_per_s
        lines.append(
            f"Ingest of 1,000 runs/s: alone {loads.alone}; beside {loads.exports} exports, one after the other, "
            f"{loads.beside}; lost {lost:.0%}."
        )
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
