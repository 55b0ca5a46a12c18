"""A stream that is joined while another process executes the run, on the buses and stores of two processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from moorage.agents.live import LiveRuns
from moorage.agents.store.frames import FrameStore
from moorage.agents.store.runs import RunStore
from moorage.agents.stream import BEGINNING, RunStream, StreamReader, topic
from moorage.kernel.broadcast import PostgresBroadcast
from moorage.kernel.group_commit import GroupCommit
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.kernel.shared_bus import SharedBus

pytest_plugins = "tests.kernel.fixtures"

RUN = """
INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, metadata, kwargs, multitask_strategy)
VALUES (%s, %s, gen_random_uuid(), 'echo', 'running', '{}', '{}', 'enqueue')
"""
END = "UPDATE runs SET status = 'success' WHERE run_id = %s"


class Process:
    """The parts of a server process that deal with runs and their streams."""

    def __init__(self, name: str, postgres: Postgres) -> None:
        self.commits = GroupCommit(postgres)
        self.runs = RunStore(postgres)
        self.frames = FrameStore(postgres, self.commits)
        self.bus = SharedBus(PostgresBroadcast(postgres), name)
        self.reader = StreamReader(self.runs, self.frames, self.bus, LiveRuns())

    async def close(self) -> None:
        await self.bus.stop()
        await self.commits.close()


@pytest.fixture
async def processes(agents_postgres: Postgres) -> AsyncIterator[tuple[Process, Process]]:
    """Make two processes: one that executes, and one that is asked."""
    made = Process("executes", agents_postgres), Process("is asked", agents_postgres)
    for process in made:
        await process.bus.start()
    yield made
    for process in made:
        await process.close()


async def read(process: Process, thread_id: UUID, run_id: UUID) -> list[str]:
    """Return the events of the whole stream."""
    frames = process.reader.join(thread_id, run_id, after=BEGINNING, resumable=True, modes=None)
    text = b"".join([frame async for some in frames for frame in some]).decode()
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


@pytest.mark.parametrize("heard", [True, False], ids=["asked in time", "never asked"])
async def test_frames_that_are_kept_late_are_not_lost(
    processes: tuple[Process, Process], agents_postgres: Postgres, heard: bool
):
    """The executing process publishes the frames, and the database is slow to store their rows."""
    executing, asked = processes
    thread_id, run_id = uuid7(), uuid7()
    await agents_postgres.execute(RUN, (run_id, thread_id))
    stream = RunStream(run_id, executing.bus, executing.frames, resumable=True)
    async with agents_postgres.connection() as locking, locking.transaction():
        await locking.execute("LOCK TABLE run_frames IN SHARE MODE")
        for number in range(3):
            stream.send(f"early-{number}", b"{}")
        reading = asyncio.create_task(read(asked, thread_id, run_id))
        async with asyncio.timeout(10):
            while heard and not executing.bus.has_followers(topic(run_id)):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        for number in range(3):
            stream.send(f"late-{number}", b"{}")
        await asyncio.sleep(0.3)
    await stream.flush()
    await agents_postgres.execute(END, (run_id,))
    stream.close(b"{}")
    async with asyncio.timeout(10):
        assert await reading == [f"{when}-{number}" for when in ("early", "late") for number in range(3)]
