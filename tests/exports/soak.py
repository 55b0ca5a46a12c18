"""`scripts/soak export-turns`: how places are shared while many exports wait. test_turns.py has its short form."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from tests.exports.platform import QUICK, Platform, make_platform
from tests.exports.turns import WORKSPACES, ended, keep_ledger, order_all, order_one, read_turns
from tests.exports.worker_process import WorkerProcess
from tests.faults.reports import Report, progress
from tests.kernel.databases import Engine
from tests.traces.fixtures import make_database

RUNS_OF_EXPORT_MAX, EXPORTS_OF_WORKSPACE_MAX = 45, 15  # the defaults of the settings
# More places than the limits leave.
_SLOTS, _PROCESSES = 60, 2
_DAYS_ALONE, _DAYS = 60, 12
_TIMEOUT_S = 1800.0


class House:
    """All engines of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = Engine(folder / "postgres")
        self._store = EmbeddedClickHouse(folder / "clickhouse")
        self._store_url = self._store.start()
        self.conninfo = self.postgres.make_database()
        self.clickhouse_url = ""
        self.secret = os.urandom(32)
        self.options = {**QUICK, "slots": _SLOTS, "lease_s": 15.0}

    async def prepare(self) -> None:
        self.clickhouse_url = await make_database(self._store_url)
        pool = Postgres(self.conninfo, 2)
        await pool.open()
        await migrate(pool, "platform")
        await pool.close()

    def worker(self) -> WorkerProcess:
        return WorkerProcess(
            conninfo=self.conninfo,
            clickhouse_url=self.clickhouse_url,
            folder=str(self.folder),
            secret=self.secret.hex(),
            options=self.options,
        )

    def stop(self) -> None:
        self._store.stop()
        self.postgres.stop()


async def export_turns(folder: Path, *, exports: int = 100) -> Report:
    """Run one export alone first, which takes all places that it may; then this many of ten workspaces, ordered at
    once.
    """
    report = Report("export-turns")
    house = House(folder)
    workers: list[WorkerProcess] = []
    try:
        await house.prepare()
        workers += [house.worker() for _ in range(_PROCESSES)]
        keys = MasterKeys([house.secret])
        async with make_platform(
            house.conninfo, house.clickhouse_url, folder, works=False, keys=keys, **house.options
        ) as platform:
            await keep_ledger(platform.postgres)
            for worker in workers:
                worker.start()
            await _alone(report, platform)
            await _together(report, platform, exports, workers)
    finally:
        for worker in workers:
            worker.kill()
        await asyncio.to_thread(house.stop)
    return report


async def _alone(report: Report, platform: Platform) -> None:
    key, workspace_id = platform.keys.add()
    states = await ended([await order_one(platform.client(key), _DAYS_ALONE)], _TIMEOUT_S)
    turns = await read_turns(platform.postgres, Counter({workspace_id: _DAYS_ALONE}))
    report.check(states == {"Completed": 1}, f"alone: {states}")
    report.check(
        turns.runs_of_export == RUNS_OF_EXPORT_MAX, f"alone it had {turns.runs_of_export} places at most, not all"
    )
    report.tell(places_of_one_export_alone=turns.runs_of_export)
    await platform.postgres.execute("DELETE FROM turns")


async def _together(report: Report, platform: Platform, exports: int, workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:  # nobody gets a place because the others have not been heard yet
        worker.kill()
    ordered, runs = await order_all(platform, exports, _DAYS)
    for worker in workers:
        worker.start()
    progress(f"{len(ordered)} exports of {WORKSPACES} workspaces are ordered")
    states = await ended(ordered, _TIMEOUT_S)
    turns = await read_turns(platform.postgres, runs)
    report.check(states == {"Completed": exports}, f"together: {states}")
    report.check(turns.runs_of_export <= RUNS_OF_EXPORT_MAX, f"an export had {turns.runs_of_export} runs at work")
    report.check(
        turns.exports_of_workspace <= EXPORTS_OF_WORKSPACE_MAX, f"{turns.exports_of_workspace} exports of one at once"
    )
    report.check(turns.unfairness < 1.5, f"one workspace had {turns.unfairness:.2f} times what another had")
    report.tell(
        exports=exports,
        export_runs=runs.total(),
        places_at_most=f"{turns.places} of {_SLOTS * _PROCESSES}",
        runs_of_an_export_at_most=turns.runs_of_export,
        exports_of_a_workspace_at_most=turns.exports_of_workspace,
        moments_at_which_all_waited=turns.contended,
        largest_share_by_smallest=turns.unfairness,
    )
