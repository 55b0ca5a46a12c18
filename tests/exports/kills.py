"""`scripts/soak exports`: kill -9 of every program that an export needs, at random moments. test_kills.py has its short
form.

A platform and two workers beside it write to a real S3 server. Each killed program is restarted, as an operator would
do it. Afterwards the files are, byte for byte, those of an undisturbed export.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pyarrow.parquet as pq

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.buckets.s3 import S3Address, s3_bucket
from moorage.kernel.clickhouse import ClickHouse
from tests.exports.platform import Client
from tests.exports.seaweed import BUCKET, EXPORTER, Seaweed
from tests.faults.reports import Report, progress
from tests.platform.serving import Platform, environment, make_platform
from tests.traces.naive_filter import StoredRun
from tests.traces.trace_data import insert_runs, random_runs
from tests.waiting import until

SINCE = date(2026, 1, 1)
TEXT_BYTES = 30_000  # of each run; nothing makes it smaller
SETTINGS = {
    "MOORAGE_EXPORT_PART_BYTES": str(2**20),
    "MOORAGE_EXPORT_LEASE_SECONDS": "2",
    "MOORAGE_EXPORT_RETRY_SECONDS": "0.2",
    "MOORAGE_EXPORT_SLOTS": "1",
    "LOG_LEVEL": "WARNING",
}
VICTIMS = ("worker", "trace store", "platform")
_WORKERS = 2
_PAUSES_S = 0.1, 0.5  # between two kills
_END_S = 600.0


@dataclass
class House:
    """A platform with its workers. Each of them may be killed, and is started again."""

    platform: Platform
    workers: list[subprocess.Popen[bytes] | None] = field(default_factory=lambda: [None] * _WORKERS)

    def start_workers(self) -> None:
        """Start the workers that do not run, including one that ended by itself because an engine was away."""
        command = [sys.executable, "-m", "moorage", "worker", "--home", str(self.platform.home)]
        for number, worker in enumerate(self.workers):
            if worker is None or worker.poll() is not None:
                with self.platform.log.open("ab") as log:
                    self.workers[number] = subprocess.Popen(
                        command, stdout=log, stderr=log, env=environment(**SETTINGS)
                    )

    def stop_workers(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.kill()
                worker.wait()

    def start_platform(self) -> None:
        """Start the platform, also again if it ended by itself at its start because an engine was killed then."""
        while True:
            try:
                return self.platform.start()
            except AssertionError:
                if self.platform.process is None or self.platform.process.poll() is None:
                    raise

    def kill(self, victim: str, random_: random.Random) -> None:
        """Kill the process. Engines come back by themselves."""
        if victim == "worker":
            worker = random_.choice(self.workers)
            assert worker is not None
            worker.kill()
            worker.wait()
        else:
            name = {"trace store": "clickhouse", "PostgreSQL": "postgres"}[victim]
            while (engine := self.platform.engines().get(name)) is None:
                time.sleep(0.05)
            os.kill(engine, signal.SIGKILL)
        self.start_workers()


@contextmanager
def _house(folder: Path) -> Iterator[House]:
    with make_platform(folder / "home", **SETTINGS) as platform:
        house = House(platform)
        house.start_workers()
        try:
            yield house
        finally:
            house.stop_workers()


async def exports(folder: Path, *, times: int = 50, days: int = 60, seed: int = 0) -> Report:
    """Kill the platform, its workers, its trace store and PostgreSQL while an export of this many days is written."""
    report, seed = Report("exports"), seed or int(time.time())
    report.tell(seed=seed)
    with Seaweed() as s3, _house(folder) as house:
        headers = {"X-Api-Key": house.platform.key}
        async with httpx.AsyncClient(base_url=house.platform.url, headers=headers, timeout=60) as http:
            await _Run(report, house, Client(http), s3, days, seed).run(times)
    return report


class _Run:
    def __init__(self, report: Report, house: House, client: Client, s3: Seaweed, days: int, seed: int) -> None:
        self._report = report
        self._house = house
        self._client = client
        self._s3 = s3
        self._days = days
        self._random = random.Random(seed)
        self._bucket: Bucket = s3_bucket(S3Address(BUCKET, endpoint_url=s3.url), EXPORTER.lend, patience_s=5)

    async def run(self, times: int) -> None:
        report, client = self._report, self._client
        answer = await client.http.post("/api/v1/sessions", json={"name": "exported"})
        session_id, workspace_id = UUID(answer.json()["id"]), self._house.platform.workspace_id
        assert workspace_id is not None
        runs = await self._fill(workspace_id, session_id)
        undisturbed = await self._order(session_id)
        await until(lambda: self._is_over(undisturbed), _END_S)
        expected = await self._files(undisturbed)
        progress(f"an undisturbed export of {len(runs)} runs has {len(expected)} files")
        disturbed, begun_at = await self._order(session_id), time.monotonic()
        killed = await self._disturb(disturbed, times)
        await until(lambda: self._is_over_with_workers(disturbed), _END_S)
        took_s = time.monotonic() - begun_at
        report.check(killed.total() == times, f"the export was over after {killed.total()} of {times} kills")
        report.tell(**{f"killed {what}": count for what, count in sorted(killed.items())}, seconds=took_s)
        await self._judge(disturbed, expected, runs)

    async def _fill(self, workspace_id: UUID, session_id: UUID) -> list[StoredRun]:
        """Insert traces of every hour, straight into the store of the home."""
        midnight = datetime.combine(SINCE, datetime.min.time(), UTC)
        runs = random_runs(self._random.randrange(2**32), 24 * self._days, workspace_id, session_id, midnight)
        runs = [replace(run, inputs={"text": self._text()}) for run in runs]
        engine = EmbeddedClickHouse(self._house.platform.home)
        clickhouse = ClickHouse(await asyncio.to_thread(engine.start))
        for start in range(0, len(runs), 200):
            await insert_runs(clickhouse, runs[start : start + 200])
        await clickhouse.close()
        await asyncio.to_thread(engine.stop)
        return runs

    def _text(self) -> str:
        return base64.b64encode(self._random.randbytes(TEXT_BYTES)).decode()

    async def _order(self, session_id: UUID) -> str:
        config = {"bucket_name": BUCKET, "prefix": uuid4().hex, "endpoint_url": self._s3.url}
        destination_id = await self._client.make_destination(config, EXPORTER.as_credentials())
        end = SINCE + timedelta(days=self._days)
        made = await self._client.make_export(
            destination_id, session_id, SINCE.isoformat(), end.isoformat(), format_version="v2_beta"
        )
        return str(made["id"])

    async def _is_over(self, export_id: str) -> bool:
        try:
            answer = await self._client.get(f"/{export_id}")
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["status"] in {"Completed", "Failed", "TimedOut"}

    async def _is_over_with_workers(self, export_id: str) -> bool:
        self._house.start_workers()
        return await self._is_over(export_id)

    async def _disturb(self, export_id: str, times: int) -> Counter[str]:
        """Kill this many times, or until the export has ended: first one program after the other, then at random."""
        victims = [VICTIMS[number % len(VICTIMS)] if number % 10 != 9 else "PostgreSQL" for number in range(times)]
        later = victims[len(VICTIMS) :]
        self._random.shuffle(later)
        victims[len(VICTIMS) :] = later
        killed, house = Counter[str](), self._house
        starting = asyncio.ensure_future(asyncio.sleep(0))
        for victim in victims:
            await asyncio.sleep(self._random.uniform(*_PAUSES_S))
            if await self._is_over(export_id):
                break
            if victim == "platform":
                await starting
                house.platform.kill()
                # While it starts, other programs are killed.
                starting = asyncio.ensure_future(asyncio.to_thread(house.start_platform))
            else:
                await asyncio.to_thread(house.kill, victim, self._random)
            killed[victim] += 1
            progress(f"killed {killed.total()} of {times}: {victim}")
        await starting
        return killed

    async def _judge(self, export_id: str, expected: dict[tuple[str, int], str], runs: Sequence[StoredRun]) -> None:
        report, client = self._report, self._client
        export = (await client.get(f"/{export_id}")).json()
        report.check(export["status"] == "Completed", f"the export is {export['status']}: {export['error']}")
        ids = Counter[str]()
        found = await self._files(export_id, ids)
        report.check(found == expected, "its files are not those of the undisturbed one")
        report.check(
            ids == Counter(str(run.id) for run in runs), "not every run is in them exactly once, and none else"
        )
        proof = (await client.post(f"/{export_id}/verify", None)).json()
        report.check(proof.get("verified"), f"it does not verify: {proof}")
        attempts = sum(run["retry_number"] for run in await client.runs(export_id))
        report.tell(files=len(expected), rows=ids.total(), attempts_used_up=attempts)

    async def _files(self, export_id: str, ids: Counter[str] | None = None) -> dict[tuple[str, int], str]:
        """Return the digest of each file by its day and number; `ids` collects the runs in the files."""
        found: dict[tuple[str, int], str] = {}
        for run in await self._client.runs(export_id):
            for number, path in enumerate(_paths(run)):
                data = await self._bucket.get(path.partition("/")[2])
                assert data is not None, path
                found[run["start_time"], number] = hashlib.sha256(data).hexdigest()
                if ids is not None:
                    ids.update(pq.read_table(io.BytesIO(data), columns=["id"])["id"].to_pylist())
        return found


def _paths(run: dict[str, Any]) -> list[str]:
    result = run["metadata"]["result"]
    return result["exported_files"] if result else []
