"""Engines that go away while a server runs: PostgreSQL, and Redis between two servers."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.faults.houses import House, freeze, house_in, is_up
from tests.faults.loads import ANSWER_S_MAX, MixedLoad, come_back, judge
from tests.faults.reports import Report, progress
from tests.kernel.databases import end_postmaster
from tests.serving import Server, free_port
from tests.waiting import wait_until

BACK_S_MAX = 30


async def postgres(folder: Path, *, times: int = 5, frozen_s: float = 10, clients: int = 8) -> Report:
    """Kill and freeze the embedded PostgreSQL under load; the server brings it back by itself."""
    report = Report("postgres")
    with house_in(folder) as house:
        server = house.serve(BG_JOB_MAX_RETRIES="20")
        load = MixedLoad(house, [server], clients=clients, seconds=0.4)
        back_s = []
        async with load.running():
            for number in range(times):
                await asyncio.sleep(1.5)
                back_s.append(await asyncio.to_thread(_kill_postgres, house, server))
                progress(f"kill {number + 1} of {times}: back after {back_s[-1]:.1f} s")
            for number in range(max(1, times // 5)):
                await asyncio.sleep(1.5)
                await asyncio.to_thread(freeze, house.postgres_family(), frozen_s)
                progress(f"frozen for {frozen_s} s, {number + 1} times")
                back_s.append(await asyncio.to_thread(seconds_until_up, server))
            await asyncio.sleep(1)
        await _conclude(report, load, server)
        report.tell(longest_until_service_was_back_s=max(back_s), slowest_answer_s=load.ledger.slowest_s)
    return report


def _kill_postgres(house: House, server: Server) -> float:
    end_postmaster(house.home, signal.SIGKILL)
    return seconds_until_up(server)


def seconds_until_up(server: Server) -> float:
    started = time.monotonic()
    wait_until(lambda: is_up(server), BACK_S_MAX)
    return time.monotonic() - started


async def _conclude(report: Report, load: MixedLoad, server: Server) -> None:
    """Wait until every client is back and every run has ended, and report what is wrong."""
    joined = await come_back(load, server)
    await asyncio.to_thread(load.house.await_the_end_of_all_runs, 60)
    report.add(judge(load))
    answers = load.ledger.answers
    report.tell(runs_accepted=len(load.ledger.accepted), told_to_try_again=answers["503"], joined_again=joined)
    report.tell(answers_cut_half_way=answers["cut"], most_attempts=max(run["attempt"] for run in load.house.runs()))
    report.check(load.ledger.slowest_s < ANSWER_S_MAX, f"an answer took {load.ledger.slowest_s:.0f} s")


# --- Redis ------------------------------------------------------------------------------------------------------------


class Redis:
    """A Redis server that a fault run may kill, and restart at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.process = self.start()

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    def start(self) -> subprocess.Popen[bytes]:
        command = ["redis-server", "--port", str(self._port), "--save", "", "--bind", "127.0.0.1"]
        with (self._folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=log)
        return self.process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def has_redis() -> bool:
    return shutil.which("redis-server") is not None


@contextmanager
def _redis(folder: Path) -> Iterator[Redis]:
    server = Redis(folder)
    try:
        yield server
    finally:
        server.kill()


async def redis(folder: Path, *, times: int = 5, frozen_s: float = 10, clients: int = 8) -> Report:
    """Kill and freeze Redis under two servers that reach each other through it."""
    report = Report("redis")
    with _redis(folder) as engine, house_in(folder) as house:
        # One server executes nearly nothing, so nearly all of its clients are served from the other.
        environment = {"REDIS_URI": engine.uri, "BG_JOB_MAX_RETRIES": "20"}
        servers = [house.serve(**environment), house.serve(N_JOBS_PER_WORKER="1", **environment)]
        load = MixedLoad(house, servers, clients=clients, seconds=0.4)
        async with load.running():
            for number in range(times):
                await _under_load(lambda: _restart_redis(engine))
                progress(f"kill {number + 1} of {times}: {len(load.ledger.accepted)} runs accepted")
            for _ in range(max(1, times // 5)):
                await _under_load(lambda: freeze([psutil.Process(engine.process.pid)], frozen_s))
                progress(f"frozen for {frozen_s} s: {len(load.ledger.accepted)} runs accepted")
            await asyncio.sleep(2)
        report.add(await asyncio.to_thread(_crosses_again, servers))
        await _conclude(report, load, servers[0])
        report.tell(slowest_answer_s=load.ledger.slowest_s)
    return report


async def _under_load(fault: Callable[[], None]) -> None:
    await asyncio.sleep(1.5)
    await asyncio.to_thread(fault)


def _restart_redis(engine: Redis) -> None:
    engine.kill()
    time.sleep(2)
    engine.start()


def _crosses_again(servers: list[Server]) -> list[str]:
    """Check that a stream crosses from one server to the other without anyone's help."""
    time.sleep(2)  # servers look for Redis once a second
    free, full = servers
    thread = httpx.post(f"{free.url}/threads", json={}).json()["thread_id"]
    body = {"assistant_id": "steps", "input": {"seconds": 0.7}, "stream_mode": ["updates"]}
    run = httpx.post(f"{free.url}/threads/{thread}/runs", json=body).json()
    text = httpx.get(f"{full.url}/threads/{thread}/runs/{run['run_id']}/stream", timeout=30).text
    return [] if '"c"' in text else [f"a stream does not cross after Redis came back: {text[-200:]!r}"]
