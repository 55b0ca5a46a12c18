"""A store of runs with helpers of tests: notifications, remaining rows, and leases that run out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from moorage.agents.records.runs import RUN_TRANSITIONS, RunStatus
from moorage.agents.store.new_runs import NewRun
from moorage.agents.store.runs import Created, LeasedRun, RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

ASSISTANT_ID = UUID(int=7)
LEASE_S = 60.0
EXPIRE = "UPDATE runs SET lease_until = now() - interval '1 second' WHERE status = 'running'"


class House:
    """A store, with the things that tests need around it."""

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        self.runs = RunStore(postgres)
        self.threads = ThreadStore(postgres)

    async def make_thread(self) -> UUID:
        thread_id = uuid7()
        await self.threads.insert(thread_id, {})
        return thread_id

    async def create(self, thread_id: UUID, *, worker: str = "one", start: bool = True, **more: Any) -> Created:
        return await self.runs.create(replace(new_run(thread_id), **more), worker=worker, lease_s=LEASE_S, start=start)

    async def start(self, thread_id: UUID, worker: str = "one", **more: Any) -> LeasedRun:
        created = await self.create(thread_id, worker=worker, **more)
        assert created.leased is not None
        return created.leased

    async def claim(self, worker: str = "one", slots: int = 100) -> list[LeasedRun]:
        return await self.runs.claim(worker, slots, LEASE_S, ["echo"], attempts_max=99)

    async def reap(self, attempts_max: int = 3) -> int:
        await self.postgres.execute(EXPIRE)
        return await self.runs.reap(attempts_max)

    async def row(self, run_id: UUID) -> dict[str, Any]:
        [row] = await self.postgres.fetch(
            "SELECT status, attempt, worker, error FROM runs WHERE run_id = %s", (run_id,)
        )
        return row

    async def status(self, run_id: UUID) -> str:
        return str((await self.row(run_id))["status"])

    async def statuses(self) -> dict[UUID, str]:
        return {row["run_id"]: row["status"] for row in await self.postgres.fetch("SELECT run_id, status FROM runs")}

    async def check_the_law(self) -> None:
        twice = "SELECT thread_id FROM runs WHERE status = 'running' GROUP BY thread_id HAVING count(*) > 1"
        assert await self.postgres.fetch(twice) == []
        for move in await self.postgres.fetch("SELECT DISTINCT before, after FROM moves"):
            assert RunStatus(move["after"]) in RUN_TRANSITIONS[RunStatus(move["before"])]


def new_run(thread_id: UUID) -> NewRun:
    return NewRun(
        run_id=uuid7(),
        thread_id=thread_id,
        assistant_id=ASSISTANT_ID,
        metadata={},
        kwargs=b"{}",
        thread_config=b"{}",
        strategy="enqueue",
        after_s=0,
        temporary=False,
        make_thread=False,
        followed=False,
    )
