"""Two servers on one home, either of them killed at random, and threads with several runs each."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.faults.houses import RANDOM, House, Mark, house_in
from tests.faults.loads import ANSWER_S_MAX, AwayError, Client, Ledger
from tests.faults.reports import Report, progress
from tests.serving import Server
from tests.waiting import wait_until

RUNS_PER_THREAD = 5
ACCEPTED_BETWEEN = 8


async def two_processes(folder: Path, *, times: int = 30, threads: int = 60) -> Report:
    report = Report("two-processes")
    with house_in(folder) as house:
        environment = {"BG_JOB_MAX_RETRIES": "20", "N_JOBS_PER_WORKER": "10"}
        servers = [house.serve(**environment), house.serve(**environment)]
        ledger = Ledger()
        users = [asyncio.create_task(_use_thread(house, servers, ledger, number)) for number in range(threads)]
        for number in range(times):
            # Each kill happens under load, however slow the machine is.
            wanted = ledger.answers["good"] + ACCEPTED_BETWEEN
            await asyncio.to_thread(wait_until, partial(_have_answers, ledger, wanted, users), 120)
            await asyncio.sleep(RANDOM.random())
            doomed = RANDOM.choice(servers)
            doomed.kill()
            await asyncio.to_thread(doomed.start)
            progress(
                f"kill {number + 1} of {times}: {sum(user.done() for user in users)} of {threads} threads accepted"
            )
        accepted: list[tuple[str, list[str]]] = await asyncio.gather(*users)
        await asyncio.to_thread(house.await_the_end_of_all_runs, 120)
        report.add(ledger.wrongs)
        runs = house.runs()
        for number, (thread_id, run_ids) in enumerate(accepted):
            report.add(_judge_thread(house, number, [r for r in runs if str(r["thread_id"]) == thread_id], run_ids))
        again = sum(run["attempt"] > 1 for run in runs)
        report.tell(kills=times, threads=threads, runs_accepted=sum(len(ids) for _, ids in accepted))
        report.tell(runs_with_more_than_one_attempt=again, most_attempts=max(run["attempt"] for run in runs))
    return report


def _have_answers(ledger: Ledger, wanted: int, users: list[asyncio.Task[Any]]) -> bool:
    return ledger.answers["good"] >= wanted or all(user.done() for user in users)


async def _use_thread(house: House, servers: list[Server], ledger: Ledger, number: int) -> tuple[str, list[str]]:
    """Enqueue runs on a new thread, each at a random server. Returns the thread and the accepted runs."""
    thread_id = ""
    while not thread_id:
        thread_id = await _try(servers, ledger, "/threads", {}, "thread_id")
    accepted = []
    while len(accepted) < RUNS_PER_THREAD:
        body = {
            "assistant_id": "steps",
            "input": {"file": house.new_marks(str(number)), "seconds": RANDOM.random() * 0.3},
            "durability": "sync",
        }
        if run_id := await _try(servers, ledger, f"/threads/{thread_id}/runs", body, "run_id"):
            accepted.append(run_id)
        await asyncio.sleep(RANDOM.random())
    return thread_id, accepted


async def _try(servers: list[Server], ledger: Ledger, path: str, body: dict[str, Any], name: str) -> str:
    """Return the named value of the answer, or an empty string when that server is away."""
    async with httpx.AsyncClient(base_url=RANDOM.choice(servers).url, timeout=ANSWER_S_MAX) as http:
        try:
            return str((await Client(http, ledger).ask("POST", path, body)).json()[name])
        except AwayError:
            await asyncio.sleep(0.1)
            return ""


def _judge_thread(house: House, number: int, rows: list[dict[str, Any]], accepted: list[str]) -> list[str]:
    """Check one thread. `rows` are all of its runs in the database, in order, including those whose acknowledgement was
    cut off.
    """
    known = [str(row["run_id"]) for row in rows]
    wrongs = [f"run {run_id} is lost" for run_id in accepted if run_id not in known]
    wrongs += [f"run {row['run_id']} ended as {row['status']}" for row in rows if row["status"] != "success"]
    marks = house.read_marks(str(number))
    order = [run_id for run_id, _ in groupby(mark.run_id for mark in marks)]
    if order != known:
        wrongs.append(f"thread {number}: runs took turns as {order}, and were accepted as {known}")
    return wrongs + _overlaps(number, marks) + _repeats(number, marks)


def _overlaps(number: int, marks: list[Mark]) -> list[str]:
    """Return overlaps. The marks of one run in one process must be adjacent, since nobody else works meanwhile."""
    turns = [turn for turn, _ in groupby((mark.run_id, mark.pid) for mark in marks)]
    return [
        f"thread {number}: {turn} worked at the same time as another" for turn in set(turns) if turns.count(turn) > 1
    ]


def _repeats(number: int, marks: list[Mark]) -> list[str]:
    """Return repeats. A completed node runs again only if its process was killed before the node was saved, so it must
    be the next mark.
    """
    wrongs = []
    for run_id, group in groupby(marks, key=lambda mark: mark.run_id):
        own = list(group)
        starts = [mark.what for mark in own if mark.what.endswith("start")]
        if starts != sorted(starts):
            wrongs.append(f"thread {number}: run {run_id} went back: {starts}")
        for before, after in pairwise(mark for mark in own if mark.what.endswith("start")):
            if before.what == after.what and before.pid == after.pid:
                wrongs.append(f"thread {number}: run {run_id} ran {after.what} twice in one process")
    return wrongs
