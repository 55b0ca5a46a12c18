"""kill -9 of a server at random moments of a mixed load."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tests.faults.houses import RANDOM, house_in
from tests.faults.loads import MixedLoad, come_back, judge
from tests.faults.reports import Report, progress
from tests.waiting import wait_until

RUNS_BETWEEN = 12


async def kills(folder: Path, *, times: int = 30, clients: int = 8) -> Report:
    report = Report("kills")
    with house_in(folder) as house:
        # More attempts than a run can lose by chance, so a run that ends as an error is a fault.
        server = house.serve(BG_JOB_MAX_RETRIES="20")
        load = MixedLoad(house, [server], clients=clients, seconds=0.4)
        async with load.running():
            for number in range(times):
                # Each kill happens under load, however slow the machine is.
                wanted = len(load.ledger.accepted) + RUNS_BETWEEN
                await asyncio.to_thread(wait_until, partial(_has_accepted, load, wanted), 120)
                await asyncio.sleep(RANDOM.random())
                server.kill()
                await asyncio.to_thread(server.start)
                progress(f"kill {number + 1} of {times}: {len(load.ledger.accepted)} runs accepted")
            await asyncio.sleep(1)
        joined = await come_back(load, server)
        await asyncio.to_thread(house.await_the_end_of_all_runs, 60)
        report.add(judge(load))
        runs = house.runs()
        report.tell(
            kills=times,
            runs_accepted=len(load.ledger.accepted),
            runs_with_more_than_one_attempt=sum(run["attempt"] > 1 for run in runs),
            most_attempts=max(run["attempt"] for run in runs),
            streams_and_waits_cut=load.ledger.answers["cut"],
            joined_again=joined,
        )
    return report


def _has_accepted(load: MixedLoad, runs: int) -> bool:
    return len(load.ledger.accepted) >= runs
