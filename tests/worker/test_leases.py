"""Rows with leases, on a table of the test's own in a real database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from moorage.kernel.errors import UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.worker.leases import Lease, Worker, worker_name
from tests.kernel.databases import Engine
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"

LEASE_S = 0.6

TABLE = """
CREATE TABLE jobs (
    key uuid PRIMARY KEY, status text NOT NULL DEFAULT 'pending', attempt int NOT NULL DEFAULT 0,
    worker text, lease_until timestamptz
)
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT key FROM jobs WHERE status = 'pending' ORDER BY key FOR UPDATE SKIP LOCKED LIMIT %(slots)s
)
UPDATE jobs SET status = 'running', attempt = attempt + 1, worker = %(worker)s,
    lease_until = now() + %(lease_s)s * interval '1 second'
FROM picked WHERE jobs.key = picked.key RETURNING jobs.key, jobs.worker, jobs.attempt
"""
HELD = "key = %(key)s AND worker = %(worker)s AND attempt = %(attempt)s AND status = 'running'"
BEAT = f"UPDATE jobs SET lease_until = now() + %(lease_s)s * interval '1 second' WHERE {HELD}"
HAND_BACK = f"UPDATE jobs SET status = 'pending', attempt = attempt - 1, worker = NULL WHERE {HELD}"
END = f"UPDATE jobs SET status = 'done', worker = NULL WHERE {HELD}"
REAP = "UPDATE jobs SET status = 'pending', worker = NULL WHERE status = 'running' AND lease_until < now()"
LOSE = "UPDATE jobs SET attempt = attempt + 1, worker = 'somebody else' WHERE key = %s"


@dataclass(frozen=True)
class Job:
    lease: Lease


Work = Callable[[Job], Awaitable[Any]]


async def nothing(job: Job) -> None: ...


class Jobs:
    """Leased jobs of the table. The test decides what happens to one."""

    def __init__(self, postgres: Postgres, work: Work = nothing) -> None:
        self.postgres = postgres
        self.work = work
        self.started: list[Lease] = []
        self.interrupted: list[Lease] = []
        self.at_once = self.at_once_max = 0

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[Job]:
        rows = await self.postgres.fetch(CLAIM, {"worker": worker, "slots": slots, "lease_s": lease_s})
        return [Job(Lease(row["key"], row["worker"], row["attempt"])) for row in rows]

    async def beat(self, leases: Collection[Lease], lease_s: float) -> list[UUID]:
        return [lease.key for lease in leases if await self.postgres.execute(BEAT, {**vars(lease), "lease_s": lease_s})]

    async def reap(self) -> int:
        return await self.postgres.execute(REAP)

    async def hand_back(self, leases: Collection[Lease]) -> None:
        for lease in leases:
            await self.postgres.execute(HAND_BACK, vars(lease))

    async def execute(self, row: Job) -> bool:
        self.started.append(row.lease)
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await self.work(row)
            await self.postgres.execute(END, vars(row.lease))
        except asyncio.CancelledError:
            self.interrupted.append(row.lease)
            raise
        finally:
            self.at_once -= 1
        return False

    # Operations and reads of the tests.

    async def add(self, number: int = 1) -> list[UUID]:
        keys = [uuid7() for _ in range(number)]
        for key in keys:
            await self.postgres.execute("INSERT INTO jobs (key) VALUES (%s)", (key,))
        return keys

    async def row(self, key: UUID) -> dict[str, Any]:
        [row] = await self.postgres.fetch("SELECT status, attempt, worker FROM jobs WHERE key = %s", (key,))
        return row

    async def number_of(self, status: str) -> int:
        [row] = await self.postgres.fetch("SELECT count(*) AS number FROM jobs WHERE status = %s", (status,))
        return row["number"]


@pytest.fixture
async def jobs(postgres: Postgres) -> Jobs:
    await postgres.execute("DROP TABLE IF EXISTS jobs")
    await postgres.execute(TABLE)
    return Jobs(postgres)


@asynccontextmanager
async def working(
    jobs: Any, *, slots: int = 10, lease_s: float = LEASE_S, poll_s: float = 0.05
) -> AsyncIterator[Worker[Job]]:
    worker = Worker[Job](jobs, name=worker_name(), slots=slots, lease_s=lease_s, poll_s=poll_s)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def all_done(jobs: Jobs) -> bool:
    return not await jobs.postgres.fetch("SELECT FROM jobs WHERE status <> 'done'")


async def for_ever(job: Job) -> None:
    await asyncio.sleep(3600)


# --- claiming ---------------------------------------------------------------------------------------------------------


async def test_a_worker_claims_up_to_its_slots_and_gets_through_all(jobs: Jobs):
    jobs.work = lambda job: asyncio.sleep(0.05)
    await jobs.add(9)
    async with working(jobs, slots=3):
        await until(lambda: all_done(jobs))
    assert jobs.at_once_max == 3
    assert len(jobs.started) == 9


async def test_a_full_worker_leaves_the_rest_to_others(jobs: Jobs):
    jobs.work = for_ever
    await jobs.add(5)
    async with working(jobs, slots=2) as worker:
        await until(lambda: len(jobs.started) == 2)
        assert not worker.has_free_slot
        await asyncio.sleep(0.2)
        assert await jobs.number_of("pending") == 3


async def test_two_workers_never_work_on_the_same_row(jobs: Jobs):
    jobs.work = lambda job: asyncio.sleep(0.01)
    keys = await jobs.add(40)
    async with working(jobs, slots=4), working(jobs, slots=4):
        await until(lambda: all_done(jobs))
    assert sorted(lease.key for lease in jobs.started) == keys
    assert len({lease.worker for lease in jobs.started}) == 2


async def test_a_leased_row_is_taken_at_once_without_the_queue(jobs: Jobs):
    [key] = await jobs.add()
    async with working(jobs, poll_s=3600) as worker:
        await until(lambda: all_done(jobs))
        await jobs.add()
        [job] = await jobs.claim(worker.name, 1, LEASE_S)
        worker.take(job)
        await until(lambda: all_done(jobs), bound_s=1)
    assert jobs.started == [Lease(key, worker.name, 1), job.lease]


async def test_a_wake_makes_a_worker_look_before_its_next_poll(jobs: Jobs):
    async with working(jobs, poll_s=3600) as worker:
        await asyncio.sleep(0.1)
        await jobs.add()
        worker.wake()
        await until(lambda: all_done(jobs), bound_s=1)


async def test_without_a_wake_polling_finds_the_row(jobs: Jobs):
    async with working(jobs, poll_s=0.1):
        await asyncio.sleep(0.05)
        await jobs.add()
        await until(lambda: all_done(jobs), bound_s=1)


async def test_a_paused_worker_ends_what_it_has_and_takes_no_more_until_it_goes_on(jobs: Jobs):
    finish = asyncio.Event()

    async def wait(job: Job) -> None:
        await finish.wait()

    jobs.work = wait
    [held] = await jobs.add()
    async with working(jobs) as worker:
        await until(lambda: jobs.started)
        worker.pause()
        assert not worker.has_free_slot
        [later] = await jobs.add()
        worker.wake()
        finish.set()
        await until(lambda: jobs.number_of("done"))
        assert (await jobs.row(held))["status"] == "done"
        assert (await jobs.row(later))["status"] == "pending"
        worker.resume()
        await until(lambda: all_done(jobs))


async def test_a_freed_slot_is_used_before_the_next_poll(jobs: Jobs):
    await jobs.add(4)
    async with working(jobs, slots=1, poll_s=3600):
        await until(lambda: all_done(jobs), bound_s=2)


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_a_beating_worker_keeps_its_row_for_longer_than_a_lease(jobs: Jobs):
    jobs.work = lambda job: asyncio.sleep(3 * LEASE_S)
    [key] = await jobs.add()
    async with working(jobs), working(jobs):  # the other one reaps
        await until(lambda: all_done(jobs))
    assert await jobs.row(key) == {"status": "done", "attempt": 1, "worker": None}
    assert len(jobs.started) == 1


async def test_a_lost_lease_stops_the_work(jobs: Jobs):
    jobs.work = for_ever
    [key] = await jobs.add()
    async with working(jobs) as worker:
        await until(lambda: jobs.started)
        await jobs.postgres.execute(LOSE, (key,))
        await until(lambda: jobs.interrupted, bound_s=LEASE_S)
        assert worker.has_free_slot
    assert await jobs.row(key) == {"status": "running", "attempt": 2, "worker": "somebody else"}


async def test_a_lost_lease_stops_no_other_work(jobs: Jobs):
    jobs.work = for_ever
    lost, kept = await jobs.add(2)
    async with working(jobs):
        await until(lambda: len(jobs.started) == 2)
        await jobs.postgres.execute(LOSE, (lost,))
        await until(lambda: jobs.interrupted)
        await asyncio.sleep(LEASE_S)
        assert [lease.key for lease in jobs.interrupted] == [lost]
        assert (await jobs.row(kept))["status"] == "running"


async def test_a_row_whose_worker_died_is_put_back_and_done_by_another(jobs: Jobs):
    [key] = await jobs.add()
    await jobs.claim("died", 1, 0.1)
    async with working(jobs):
        await until(lambda: all_done(jobs))
    assert [(lease.key, lease.attempt) for lease in jobs.started] == [(key, 2)]


async def test_a_row_whose_work_failed_is_put_back_when_its_lease_has_run_out(jobs: Jobs):
    async def fail_first(job: Job) -> None:
        if job.lease.attempt == 1:
            raise ValueError("boom")

    jobs.work = fail_first
    [key] = await jobs.add()
    async with working(jobs):
        await until(lambda: all_done(jobs))
    assert (await jobs.row(key))["attempt"] == 2


async def test_a_loop_that_was_blocked_for_longer_than_a_lease_does_not_reap_its_own_rows(jobs: Jobs):
    jobs.work = lambda job: asyncio.sleep(2.5 * LEASE_S)
    [key] = await jobs.add()
    async with working(jobs):
        await until(lambda: jobs.started)
        time.sleep(1.5 * LEASE_S)  # noqa: ASYNC251 - a node that computes for long blocks the loop just so
        await until(lambda: all_done(jobs))
    assert (await jobs.row(key))["attempt"] == 1
    assert not jobs.interrupted


class Steadfast(Jobs):
    """Jobs that are kept while their work blocks the event loop."""

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        for lease in leases:
            self.postgres.fetch_from_thread(f"{BEAT} RETURNING key", {**vars(lease), "lease_s": lease_s})


@contextmanager
def another_who_reaps(postgres: Postgres) -> Iterator[list[UUID]]:
    """Reap in a thread, as another process would, and return the reaped rows."""
    over, reaped = threading.Event(), list[UUID]()

    def reap() -> None:
        while not over.wait(LEASE_S / 6):
            reaped.extend(row["key"] for row in postgres.fetch_from_thread(f"{REAP} RETURNING key"))

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        yield reaped
    finally:
        over.set()
        reaper.join()


async def block_first(job: Job) -> None:
    if job.lease.attempt == 1:
        time.sleep(4 * LEASE_S)  # noqa: ASYNC251 - a node that computes for long blocks the loop just so


async def test_work_that_blocks_the_loop_for_longer_than_a_lease_keeps_its_row(jobs: Jobs):
    lease_s = 2.0  # long enough for a busy machine to beat in time

    async def block_longer(job: Job) -> None:
        time.sleep(1.5 * lease_s)  # noqa: ASYNC251 - as above

    steadfast = Steadfast(jobs.postgres, block_longer)
    [key] = await steadfast.add()
    with another_who_reaps(jobs.postgres) as reaped:
        async with working(steadfast, lease_s=lease_s):
            await until(lambda: all_done(steadfast), bound_s=20)
    assert reaped == []
    assert (await steadfast.row(key))["attempt"] == 1


async def test_work_that_blocks_the_loop_for_too_long_is_given_up(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moorage.worker.stand_in._SILENCE_S_MAX", LEASE_S)
    steadfast = Steadfast(jobs.postgres, block_first)
    [key] = await steadfast.add()
    with another_who_reaps(jobs.postgres) as reaped:
        async with working(steadfast):
            await until(lambda: all_done(steadfast), bound_s=10)
    assert reaped == [key]
    assert (await steadfast.row(key))["attempt"] == 2


async def test_an_attempt_that_lost_its_row_makes_way_for_the_next_in_the_same_process(jobs: Jobs):
    jobs.work = for_ever
    [key] = await jobs.add()
    async with working(jobs, lease_s=60) as worker:
        await until(lambda: jobs.started)
        await jobs.postgres.execute("UPDATE jobs SET status = 'pending' WHERE key = %s", (key,))
        worker.wake()
        await until(lambda: len(jobs.started) == 2)
        await until(lambda: jobs.interrupted)
        assert [lease.attempt for lease in jobs.interrupted] == [1]
        assert not jobs.at_once > 1


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_stopping_hands_rows_back_without_using_an_attempt(jobs: Jobs):
    jobs.work = for_ever
    keys = await jobs.add(3)
    async with working(jobs):
        await until(lambda: len(jobs.started) == 3)
    assert len(jobs.interrupted) == 3
    for key in keys:
        assert await jobs.row(key) == {"status": "pending", "attempt": 0, "worker": None}
    jobs.work = nothing
    async with working(jobs):
        await until(lambda: all_done(jobs))
    assert {lease.attempt for lease in jobs.started} == {1}


async def test_work_that_ignores_its_cancellation_does_not_hold_up_the_stop(jobs: Jobs):
    released = asyncio.Event()

    async def ignore(job: Job) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass

    jobs.work = ignore
    [key] = await jobs.add()
    async with working(jobs):
        await until(lambda: jobs.started)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 4
    assert await jobs.row(key) == {"status": "pending", "attempt": 0, "worker": None}
    [other] = await jobs.claim("other", 1, LEASE_S)
    released.set()
    await asyncio.sleep(0.2)  # it now writes its end, which is refused
    assert await jobs.row(key) == {"status": "running", "attempt": 1, "worker": other.lease.worker}


async def test_a_stopping_worker_takes_nothing_more(jobs: Jobs):
    async with working(jobs) as worker:
        pass
    await jobs.add()
    worker.wake()
    await asyncio.sleep(0.2)
    assert not worker.has_free_slot
    assert not jobs.started


async def test_rows_that_are_claimed_in_the_instant_of_the_stop_are_handed_back_too(jobs: Jobs):
    claimed = asyncio.Event()

    class SlowAnswer(Jobs):
        async def claim(self, worker: str, slots: int, lease_s: float) -> list[Job]:
            rows = await super().claim(worker, slots, lease_s)
            claimed.set()
            await asyncio.sleep(0.2)  # the database has done it; the answer is on its way
            return rows

    [key] = await jobs.add()
    async with working(SlowAnswer(jobs.postgres)):
        await claimed.wait()
    assert await jobs.row(key) == {"status": "pending", "attempt": 0, "worker": None}


# --- a database that goes away ----------------------------------------------------------------------------------------


@pytest.fixture
def mortal(engine: Engine) -> Iterator[Engine]:
    yield engine
    engine.start()


async def test_the_loops_outlive_a_database_that_is_away(jobs: Jobs, mortal: Engine):
    async with working(jobs, poll_s=0.2):
        await jobs.add()
        await until(lambda: all_done(jobs))
        mortal.kill()
        await asyncio.sleep(1)
        await asyncio.to_thread(mortal.start)
        keys: list[UUID] = []
        while not keys:
            try:
                keys = await jobs.add()
            except UnavailableError:
                await asyncio.sleep(0.1)
        await jobs.claim("died", 1, 0.1)  # or the worker was quicker: both loops are alive if the row gets done
        await until(lambda: all_done(jobs), bound_s=10)
    assert (await jobs.row(keys[0]))["status"] == "done"


@pytest.mark.parametrize("what", ["claim", "beat", "reap"])
async def test_the_loops_outlive_an_error_that_nobody_foresaw(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, what: str):
    jobs.work = lambda job: asyncio.sleep(2 * LEASE_S)
    original, failed = getattr(jobs, what), asyncio.Event()

    async def fail_once(*args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("boom")
        return await original(*args)

    async with working(jobs, poll_s=0.1):
        await jobs.add()
        await until(lambda: jobs.started)
        monkeypatch.setattr(jobs, what, fail_once)
        await until(failed.is_set)
        [key] = await jobs.add()
        await until(lambda: all_done(jobs))
        assert (await jobs.row(key))["attempt"] == 1
        await jobs.add()
        await jobs.claim("died", 1, 0.1)
        await until(lambda: all_done(jobs))


async def test_a_worker_stops_also_while_the_database_is_away(jobs: Jobs, mortal: Engine):
    jobs.work = for_ever
    await jobs.add()
    worker = Worker[Job](jobs, name=worker_name(), slots=2, lease_s=LEASE_S, poll_s=0.1)
    worker.start()
    await until(lambda: jobs.started)
    mortal.kill()
    stopping = time.monotonic()
    await worker.stop()  # the lease runs out by itself
    assert time.monotonic() - stopping < 15
    assert jobs.interrupted
