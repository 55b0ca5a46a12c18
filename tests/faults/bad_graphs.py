"""Graphs that misbehave: they ignore their cancellation, block the loop, fork, or end the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.faults.houses import House, house_in, is_up
from tests.faults.reports import Report, progress
from tests.serving import Server
from tests.waiting import wait_until


class User:
    """Creates runs, as one client of one server."""

    def __init__(self, house: House, server: Server) -> None:
        self.house = house
        self.http = httpx.Client(base_url=server.url, timeout=60)
        house.at_stop.append(self.http.close)

    def run(self, graph: str, **given: Any) -> str:
        """Start a run in the background, and return its path."""
        thread_id = self.http.post("/threads", json={}).json()["thread_id"]
        given["file"] = self.house.new_marks(graph)
        run = self.http.post(f"/threads/{thread_id}/runs", json={"assistant_id": graph, "input": given}).json()
        return f"/threads/{thread_id}/runs/{run['run_id']}"

    def status(self, place: str) -> str:
        return str(self.http.get(place).json()["status"])

    def await_end(self, place: str, bound_s: float) -> str:
        wait_until(lambda: self.status(place) not in {"pending", "running"}, bound_s)
        return self.status(place)

    def marks(self, graph: str) -> list[str]:
        return [mark.what for mark in self.house.read_marks(graph)]

    def works(self) -> None:
        """Check that a normal run ends well."""
        answer = self.http.post("/runs/wait", json={"assistant_id": "steps", "input": {"seconds": 0}})
        assert answer.json()["done"] == ["a", "b", "c"], answer.text


Case = Callable[[Path, Report, int], Awaitable[None]]


async def bad_graphs(folder: Path, *, seconds: int = 20, only: Collection[str] = ()) -> Report:
    """Run every bad graph. `seconds` is how long the loop is blocked; the lease is a fifth of it."""
    report = Report("bad-graphs")
    cases: list[Case] = [_ignore, _stop_ignoring, _block_alone, _block_beside_another_server, _fork, _exit]
    for case in cases:
        name = case.__name__.strip("_")
        if only and name not in only:
            continue
        own = folder / name
        own.mkdir(mode=0o755)
        try:
            await case(own, report, seconds)
        except (AssertionError, httpx.HTTPError) as error:
            report.check(right=False, wrong=f"{name}: {str(error)[-300:]!r}")
        progress(f"{name}: {len(report.wrongs)} wrong so far")
    return report


async def _ignore(folder: Path, report: Report, seconds: int) -> None:
    """Cancel a run that ignores it: the cancellation is answered at once, others are not disturbed, and the run ends
    when its graph gives up.
    """
    with house_in(folder) as house:
        user = User(house, house.serve())
        place = user.run("ignores", seconds=10)
        await asyncio.to_thread(wait_until, lambda: user.marks("ignores"))
        answer = user.http.post(f"{place}/cancel")
        report.check(answer.status_code == 202, f"cancel of a graph that ignores it: {answer.status_code}")
        user.works()
        report.check(user.status(place) == "running", "what ignores its cancellation held up its answer, or others")
        status = user.await_end(place, 60)
        report.tell(ended_that_ignored_its_cancellation=status)
        report.check(status in {"interrupted", "success"}, f"a graph that ignored its cancellation ended as {status}")
        report.check(
            user.marks("ignores").count("ignore start") == 1, "a graph that ignored its cancellation ran twice"
        )


async def _stop_ignoring(folder: Path, report: Report, seconds: int) -> None:
    """Stop a server whose run ignores it: the server stops within its time limit, and the run continues in the next
    server.
    """
    with house_in(folder) as house:
        server = house.serve()
        user = User(house, server)
        user.run("ignores", seconds=20)
        await asyncio.to_thread(wait_until, lambda: user.marks("ignores"))
        user.http.close()
        started = time.monotonic()
        code = await asyncio.to_thread(_stop, server)
        took_s = time.monotonic() - started
        report.tell(stop_of_a_server_whose_graph_ignores_it_s=took_s)
        report.check(code == 0 and took_s < 15, f"the server stopped with {code} after {took_s:.0f} s")


def _stop(server: Server) -> int | None:
    try:
        return server.stop()
    except subprocess.TimeoutExpired:
        return None


async def _block_alone(folder: Path, report: Report, seconds: int) -> None:
    await _block(folder, report, seconds, servers=1)


async def _block_beside_another_server(folder: Path, report: Report, seconds: int) -> None:
    await _block(folder, report, seconds, servers=2)


async def _block(folder: Path, report: Report, seconds: int, *, servers: int) -> None:
    """Block the loop for longer than the lease: the process still holds its run, and nobody else executes it too."""
    with house_in(folder) as house:
        running = [house.serve(MOORAGE_LEASE_SECONDS=str(seconds / 5)) for _ in range(servers)]
        user = User(house, running[0])
        place = user.run("blocks", seconds=seconds)
        status = await asyncio.to_thread(User(house, running[-1]).await_end, place, seconds * 4 + 20)
        starts = user.marks("blocks").count("block start")
        report.tell(
            **{f"blocked for {seconds} s beside {servers - 1} other servers": f"{status}, executed {starts} times"}
        )
        report.check(status == "success", f"a run that blocked the loop ended as {status}")
        report.check(starts == 1, f"a run that blocked the loop was executed {starts} times")
        user.works()


async def _fork(folder: Path, report: Report, seconds: int) -> None:
    """Fork a child that holds copies of sockets and locks: neither the server nor the next one is disturbed by it."""
    with house_in(folder) as house:
        server = house.serve()
        user = User(house, server)
        place = user.run("forks", seconds=300)
        report.check(user.await_end(place, 60) == "success", "a graph that forks does not end well")
        user.works()
        child = int(user.marks("forks")[0].split()[1])
        user.http.close()
        started = time.monotonic()
        code = await asyncio.to_thread(server.stop)
        report.check(code == 0, f"the server whose graph forked stopped with {code}")
        report.check(psutil.pid_exists(child), "the forked child ended before the server did: nothing was tried")
        await asyncio.to_thread(server.start)
        report.tell(stop_and_start_beside_a_forked_child_s=time.monotonic() - started)
        report.check(is_up(server), "no server can start while a forked child lives")
        os.kill(child, signal.SIGKILL)
        User(house, server).works()


async def _exit(folder: Path, report: Report, seconds: int) -> None:
    """End the process from a run: the run ends as an error after its attempts, and the runs beside it end well."""
    with house_in(folder) as house:
        server = house.serve("--workers", "2")
        user = User(house, server)
        innocent = [user.run("steps", seconds=0.3) for _ in range(10)]
        place = user.run("exits", seconds=0.2)
        ends = [await asyncio.to_thread(_await_end_somehow, user, each) for each in [place, *innocent]]
        attempts = house.query("SELECT attempt FROM runs WHERE graph_id = 'exits'")[0]["attempt"]
        report.tell(ended_that_exits=f"{ends[0]} after {attempts} attempts")
        report.tell(ended_beside_it=f"{ends[1:].count('success')} of {len(innocent)} well")
        report.check(ends[0] == "error", f"a run that ends its process ended as {ends[0]}")
        report.check(attempts == user.marks("exits").count("exit start"), "attempts and executions differ")
        report.check(set(ends[1:]) == {"success"}, f"runs beside one that ends its process ended as {ends[1:]}")
        await asyncio.to_thread(wait_until, lambda: is_up(server))
        user.works()


def _await_end_somehow(user: User, place: str) -> str:
    """Wait until the run has ended, also while workers end and are restarted, which cuts connections."""
    for _ in range(400):
        try:
            status = user.status(place)
        except httpx.TransportError:
            status = "running"
        if status not in {"pending", "running"}:
            return status
        time.sleep(0.3)
    return "running"
