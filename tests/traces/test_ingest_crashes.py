"""kill -9 of the trace store while runs come in: what was acknowledged is there, once and whole."""

import asyncio
import random
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel.clickhouse import ClickHouse
from tests.traces.ingest_rooms import make_run, make_sender, update_of

pytest_plugins = "tests.accounts.fixtures"

KILLS = 3
SENDERS = 6


@pytest.fixture
def store():
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        embedded = EmbeddedClickHouse(Path(name) / "home")
        yield embedded, embedded.start(), Path(name) / "home"
        embedded.stop()


def kill_store(home):
    process = psutil.Process(int((home / "clickhouse" / "server.lock").read_text()))
    process.send_signal(signal.SIGKILL)
    process.wait(10)


async def test_no_acknowledged_run_is_lost_or_doubled(store, platform_postgres):
    embedded, url, home = store
    clickhouse = ClickHouse(url)
    await clickhouse.migrate()
    acknowledged, ended, stop = [], set(), asyncio.Event()

    async def send(sender):
        while not stop.is_set():
            runs = [make_run(inputs={"text": "x" * 1000}) for _ in range(20)]
            if await accepted(sender, {"post": runs}):
                acknowledged.extend(runs)
                updates = [update_of(run, outputs={"of": run["id"]}) for run in runs]
                if await accepted(sender, {"patch": updates}):
                    ended.update(run["id"] for run in runs)

    async def accepted(sender, batch):
        answer = await sender.http.post("/runs/batch", json=batch, timeout=30)
        assert answer.status_code in {202, 503}, answer.text
        return answer.status_code == 202

    async with make_sender(platform_postgres, clickhouse) as sender:
        senders = [asyncio.create_task(send(sender)) for _ in range(SENDERS)]
        for _ in range(KILLS):
            await asyncio.sleep(random.uniform(0.2, 0.8))
            await asyncio.to_thread(kill_store, home)
            await asyncio.to_thread(embedded.start)
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.gather(*senders)
        sql = "SELECT id, inputs, outputs FROM trace_runs WHERE tenant_id = {t:UUID}"
        rows = await clickhouse.rows(sql, {"t": sender.workspace_id})
    stored = {str(run_id): (inputs, outputs) for run_id, inputs, outputs in rows}
    assert len(stored) == len(rows)
    assert len(acknowledged) > 100
    assert {run["id"] for run in acknowledged} <= stored.keys()
    assert all(len(inputs or "") > 1000 for inputs, _ in stored.values())
    assert all(stored[run_id][1] == f'{{"of":"{run_id}"}}' for run_id in ended)
    await clickhouse.close()
