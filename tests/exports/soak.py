"""The full fault runs of exports: `scripts/soak exports` and `export-turns`. test_faults.py and test_turns.py have their
short forms.

In the first, one export of 30 days is written by two worker processes, while workers, the trace store and PostgreSQL are killed (-9) at
random moments. Afterwards its files are, byte for byte, those of an export that nothing happened to.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.aws_signature import Credentials
from moorage.kernel.buckets import Bucket, S3Address, s3_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import UnavailableError
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from tests.exports.platform import QUICK, Client, Platform, make_platform, until
from tests.exports.seaweed import BUCKET, EXPORTER, Seaweed
from tests.exports.turns import WORKSPACES, ended, keep_ledger, order_all, order_one, read_turns
from tests.exports.worker_process import WorkerProcess
from tests.faults.reports import Report, progress
from tests.kernel.databases import Engine
from tests.traces.fixtures import make_database
from tests.traces.trace_data import insert_runs, random_runs

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
TRACES = 24 * 30  # one an hour
PART_BYTES = 8_000
_PAUSES_S = 0.1, 0.7  # between two kills: an export takes ten seconds where nothing happens

RUNS_OF_EXPORT_MAX, EXPORTS_OF_WORKSPACE_MAX = 45, 15  # the defaults of the settings
# More places than the limits leave.
_SLOTS, _PROCESSES = 60, 2
_DAYS_ALONE, _DAYS = 60, 12
_TIMEOUT_S = 1800.0


class House:
    """All engines of one run in one folder, each of which may be killed and comes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = Engine(folder / "postgres")
        self._store_home = folder / "clickhouse"
        self._store = EmbeddedClickHouse(self._store_home)
        self._store_url = self._store.start()
        self.conninfo = self.postgres.make_database()
        self.clickhouse_url = ""
        self.secret = os.urandom(32)
        self.options = {**QUICK, "part_bytes_max": PART_BYTES, "slots": 2, "lease_s": 1.0}

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

    def kill_store(self) -> None:
        server = self._store_home / "clickhouse" / "server.lock"
        os.kill(int(server.read_text().split()[0]), signal.SIGKILL)
        assert self._store.start() == self._store_url

    def kill_postgres(self) -> None:
        self.postgres.kill()
        self.postgres.start()

    def stop(self) -> None:
        self._store.stop()
        self.postgres.stop()


async def _ordered(client: Client, url: str, session_id: object) -> str:
    config = {"bucket_name": BUCKET, "prefix": uuid4().hex, "endpoint_url": url}
    destination_id = await client.make_destination(config, EXPORTER.as_credentials())
    made = await client.make_export(destination_id, session_id, "2026-01-01", "2026-01-31", format_version="v2_beta")
    return str(made["id"])


async def _files(client: Client, bucket: Bucket, export_id: str) -> dict[tuple[str, int], str]:
    found = {}
    for run in await client.runs(export_id):
        for number, path in enumerate(run["metadata"]["result"]["exported_files"]):
            data = await bucket.get(path.partition("/")[2])
            assert data is not None, path
            found[run["start_time"], number] = hashlib.sha256(data).hexdigest()
    return found


async def _is_over(client: Client, export_id: str) -> bool:
    try:
        answer = await client.get(f"/{export_id}")
    except UnavailableError:
        return False
    return answer.status_code == 200 and answer.json()["status"] in {"Completed", "Failed", "TimedOut"}


async def _disturb(house: House, client: Client, export_id: str, times: int, seed: int) -> Counter[str]:
    """Kills until it was done so often, or the export has ended."""
    random_, killed = random.Random(seed), Counter[str]()
    workers = [house.worker() for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        while killed.total() < times and not await _is_over(client, export_id):
            await asyncio.sleep(random_.uniform(*_PAUSES_S))
            match random_.randrange(10):
                case 0:
                    await asyncio.to_thread(house.kill_postgres)
                    killed["PostgreSQL"] += 1
                case 1 | 2 | 3:
                    await asyncio.to_thread(house.kill_store)
                    killed["trace store"] += 1
                case _:
                    worker = random_.choice(workers)
                    worker.kill()
                    worker.start()
                    killed["worker"] += 1
            progress(f"killed {killed.total()} of {times}")
        await until(lambda: _is_over(client, export_id), 900)
    finally:
        for worker in workers:
            worker.kill()
    return killed


async def exports(folder: Path, *, times: int = 50, seed: int = 0) -> Report:
    """Worker processes, the trace store and PostgreSQL are killed while an export is written; it comes out the same."""
    report = Report("exports")
    with Seaweed() as s3:
        house = House(folder)
        try:
            await _run(report, house, s3, times, seed or int(time.time()))
        finally:
            await asyncio.to_thread(house.stop)
    return report


async def _run(report: Report, house: House, s3: Seaweed, times: int, seed: int) -> None:
    await house.prepare()
    report.tell(seed=seed)
    keys = MasterKeys([house.secret])
    bucket = s3_bucket(
        S3Address(BUCKET, endpoint_url=s3.url), lambda: Credentials(*EXPORTER.as_credentials().values()), patience_s=5
    )
    async with make_platform(
        house.conninfo, house.clickhouse_url, house.folder, works=False, keys=keys, **house.options
    ) as platform:
        key, tenant_id = platform.keys.add()
        client, session_id = platform.client(key), uuid4()
        await _fill(house, tenant_id, session_id, seed)
        undisturbed = await _files(client, bucket, await _calm(house, client, s3, session_id))
        progress(f"an undisturbed export has {len(undisturbed)} files")
        export_id = await _ordered(client, s3.url, session_id)
        begun_at = time.monotonic()
        killed = await _disturb(house, client, export_id, times, seed)
        took_s = time.monotonic() - begun_at
        report.check(killed.total() == times, f"the export was over after {killed.total()} of {times} kills")
        export = (await client.get(f"/{export_id}")).json()
        report.check(export["status"] == "Completed", f"the export is {export['status']}: {export['error']}")
        report.check(
            await _files(client, bucket, export_id) == undisturbed, "its files are not those of the undisturbed one"
        )
        proof = (await client.post(f"/{export_id}/verify", None)).json()
        report.check(proof.get("verified"), f"it does not verify: {proof}")
        attempts = sum(run["retry_number"] for run in await client.runs(export_id))
    report.tell(**{f"killed {what}": count for what, count in killed.items()}, seconds=took_s)
    report.tell(files=len(undisturbed), rows=proof["rows"], attempts_used_up=attempts)


async def _fill(house: House, tenant_id: UUID, session_id: UUID, seed: int) -> None:
    clickhouse = ClickHouse(house.clickhouse_url)
    runs = random_runs(seed, TRACES, tenant_id, session_id, SINCE)
    for start in range(0, len(runs), 500):
        await insert_runs(clickhouse, runs[start : start + 500])
    await clickhouse.close()


async def _calm(house: House, client: Client, s3: Seaweed, session_id: object) -> str:
    """An export that nothing happens to, by a worker that then is gone."""
    export_id = await _ordered(client, s3.url, session_id)
    with house.worker():
        assert (await client.ended(export_id, 600))["status"] == "Completed"
    return export_id


async def export_turns(folder: Path, *, exports: int = 100) -> Report:
    """First one export alone, which takes all places that it may; then so many of ten workspaces, ordered at once."""
    report = Report("export-turns")
    house = House(folder)
    house.options |= {"slots": _SLOTS, "lease_s": 15.0}
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
