"""Many waiting runs: accepting stays fast, claiming takes constant time, and all runs end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from moorage.agents.store import runs as sql
from tests.faults.houses import House, house_in
from tests.faults.reports import Report, progress
from tests.serving import Server

CLIENTS = 16
CLAIM_MS_MAX = 10


async def queue(folder: Path, *, runs: int = 50_000) -> Report:
    report = Report("queue")
    with house_in(folder) as house:
        # One slot with a run in it, so that every later run waits.
        server = house.serve(N_JOBS_PER_WORKER="1", MOORAGE_LEASE_SECONDS="15")
        thread_id, run_id = _fill_the_slot(server)
        _make_history(house, 6 * runs)
        claim_ms = [_claim_ms(house)]
        started = time.monotonic()
        for part in range(10):
            await _accept(server, runs // 10, part)
            claim_ms.append(_claim_ms(house))
            progress(f"{(part + 1) * runs // 10} runs wait, a claim takes {claim_ms[-1]:.2f} ms")
        rate = runs / (time.monotonic() - started)
        busy_ms = await _claim_ms_behind_a_busy_thread(house, thread_id, runs)
        report.tell(runs=runs, accepted_per_s=rate, claim_of_an_empty_queue_ms=claim_ms[0])
        report.tell(
            claim_of_a_tenth_ms=claim_ms[1], claim_of_all_ms=claim_ms[-1], claim_behind_a_busy_thread_ms=busy_ms
        )
        report.check(max(claim_ms) < CLAIM_MS_MAX, f"a claim takes {max(claim_ms):.1f} ms of the database")
        report.check(busy_ms < 10 * CLAIM_MS_MAX, f"behind a thread with {runs} runs a claim takes {busy_ms:.0f} ms")
        server.kill()
        await asyncio.to_thread(house.serve, MOORAGE_LEASE_SECONDS="15")
        _cancel(house.servers[-1], thread_id, run_id)
        await _all_end(report, house, runs)
    return report


def _fill_the_slot(server: Server) -> tuple[str, str]:
    """Start a run that fills the slot, and return its thread and its id."""
    thread_id = httpx.post(f"{server.url}/threads", json={}).json()["thread_id"]
    body = {"assistant_id": "steps", "input": {"seconds": 3600}}
    return thread_id, httpx.post(f"{server.url}/threads/{thread_id}/runs", json=body).json()["run_id"]


def _make_history(house: House, number: int) -> None:
    """Insert many runs that ended long ago, which a claim must not have to scan."""
    house.query(
        """
        INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, metadata, kwargs, multitask_strategy)
        SELECT ('00000000-0000-7001-8000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), assistant_id,
            'history', 'success', metadata, kwargs, multitask_strategy
        FROM runs, generate_series(1, %s) AS n WHERE status = 'running'
        """,
        (number,),
    )


def _cancel(server: Server, thread_id: str, run_id: str) -> None:
    httpx.post(f"{server.url}/threads/{thread_id}/runs/{run_id}/cancel", timeout=60)


async def _accept(server: Server, number: int, part: int) -> None:
    """Create the runs, two for each thread."""
    left = iter(range(number // 2))

    async def accept() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            for _ in left:
                thread_id = (await http.post("/threads", json={})).json()["thread_id"]
                for _ in range(2):
                    body = {"assistant_id": "steps", "input": {"seconds": 0}, "durability": "exit"}
                    (await http.post(f"/threads/{thread_id}/runs", json=body)).raise_for_status()

    await asyncio.gather(*(accept() for _ in range(CLIENTS)))


def _claim_ms(house: House) -> float:
    """Return how long a claim takes, by the database's own measure. The claim is rolled back."""
    house.query("VACUUM ANALYZE runs")
    return min(_explain_claim(house) for _ in range(3))


def _explain_claim(house: House) -> float:
    values = {"worker": "nobody", "slots": 10, "lease_s": 1, "graph_ids": ["steps"], "attempts_max": 3}
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + sql._CLAIM
    plan: Any = house.query_and_undo(explain, values)[0]["QUERY PLAN"][0]
    return float(plan["Execution Time"])


async def _claim_ms_behind_a_busy_thread(house: House, thread_id: str, number: int) -> float:
    """Measure a claim while this many runs wait on one busy thread: the claim has to pass them all."""
    house.query(
        """
        INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, metadata, kwargs, multitask_strategy)
        SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, thread_id, assistant_id, graph_id,
            'pending', metadata, kwargs, multitask_strategy
        FROM runs, generate_series(1, %s) AS n WHERE thread_id = %s AND status = 'running'
        """,
        (number, thread_id),
    )
    taken_ms = _claim_ms(house)
    house.query("DELETE FROM runs WHERE thread_id = %s AND status = 'pending'", (thread_id,))
    return taken_ms


async def _all_end(report: Report, house: House, runs: int) -> None:
    started, last, last_change = time.monotonic(), 0, time.monotonic()
    while True:
        [row] = house.query("SELECT count(*) AS ended FROM runs WHERE status = 'success' AND graph_id = 'steps'")
        if row["ended"] >= runs:
            report.tell(executed_per_s=runs / (time.monotonic() - started))
            return
        if row["ended"] > last:
            last, last_change = row["ended"], time.monotonic()
            progress(f"{last} of {runs} ended")
        if time.monotonic() - last_change > 60:
            report.check(right=False, wrong=f"only {last} of {runs} runs ended")
            return
        await asyncio.sleep(min(5, runs / 1000))
