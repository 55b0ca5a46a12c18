"""Crons of two servers on one database, either or both killed at random: each time fires once, and
none is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.faults.houses import RANDOM, House, house_in
from tests.faults.reports import Report, progress
from tests.serving import Server
from tests.waiting import wait_until

SECONDLY, YEARLY = "* * * * * *", "0 0 1 1 *"
# The fired times, as the database records them: each due time, before the next one replaces it.
WATCH = """
CREATE TABLE cron_fires (cron_id uuid, due timestamptz, fired_at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION note_fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cron_fires (cron_id, due) VALUES (OLD.cron_id, OLD.next_run_date);
    RETURN NEW;
END $$;
CREATE TRIGGER note_fire AFTER UPDATE ON crons FOR EACH ROW
    WHEN (OLD.fired_at IS DISTINCT FROM NEW.fired_at AND OLD.enabled AND NEW.enabled) EXECUTE FUNCTION note_fire();
"""


async def crons(folder: Path, *, times: int = 30, each_second: int = 20, between_s: float = 3) -> Report:
    report = Report("crons")
    with house_in(folder) as house:
        servers = [house.serve(BG_JOB_MAX_RETRIES="50", CRON_SCHEDULER_SLEEP_TIME="0.2") for _ in range(2)]
        house.query(WATCH)
        made = [await _make(servers, SECONDLY) for _ in range(each_second)]
        paused, set_back = await _make(servers, YEARLY), await _make(servers, YEARLY)
        for number in range(times):
            await asyncio.sleep(RANDOM.random() * between_s)
            doomed = servers if RANDOM.random() < 0.3 else [RANDOM.choice(servers)]
            for server in doomed:
                server.kill()
            if number == 0:
                _jump(house, paused, set_back)
            await asyncio.sleep(RANDOM.random() * between_s)
            for server in doomed:
                await asyncio.to_thread(server.start)
            fired = house.query("SELECT count(*) AS n FROM cron_fires")[0]["n"]
            progress(f"kill {number + 1} of {times}: {fired} times fired")
        await asyncio.sleep(2)
        for cron in made:
            await _ask(servers, "PATCH", f"/runs/crons/{cron}", {"enabled": False})
        await asyncio.to_thread(house.await_the_end_of_all_runs, 120)
        report.add(_judge_clock(house, paused, set_back))
        late_s = _judge_fires(house, made, report)
        runs = house.query("SELECT count(*) AS n, max(attempt) AS attempts FROM runs")[0]
        report.tell(kills=times, crons=each_second, times_fired=len(late_s), runs=runs["n"])
        report.tell(
            most_attempts=runs["attempts"], late_s_median=sorted(late_s)[len(late_s) // 2], late_s_most=max(late_s)
        )
    return report


async def _make(servers: list[Server], schedule: str) -> str:
    body = {"assistant_id": "steps", "schedule": schedule, "input": {"seconds": 0}, "on_run_completed": "keep"}
    return str((await _ask(servers, "POST", "/runs/crons", body))["cron_id"])


async def _ask(servers: list[Server], method: str, path: str, body: dict[str, Any]) -> Any:
    async with httpx.AsyncClient(base_url=RANDOM.choice(servers).url, timeout=60) as http:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _jump(house: House, paused: str, set_back: str) -> None:
    """Check what is left after three years without a server, and after a clock that went three years ahead and back
    again.
    """
    house.query("UPDATE crons SET next_run_date = now() - interval '3 years' WHERE cron_id = %s", (paused,))
    ahead = "UPDATE crons SET fired_at = now() + interval '3 years', next_run_date = now() + interval '4 years'"
    house.query(f"{ahead} WHERE cron_id = %s", (set_back,))


def _judge_clock(house: House, paused: str, set_back: str) -> list[str]:
    def settled() -> bool:
        rows = house.query("SELECT next_run_date FROM crons WHERE cron_id = ANY(%s::uuid[])", ([paused, set_back],))
        now = datetime.now(UTC)
        return all(now < row["next_run_date"] < now + timedelta(days=367) for row in rows)

    wait_until(settled, 30)
    count = {cron: len(_runs_of(house, cron)) for cron in (paused, set_back)}
    wrongs = [] if count[paused] == 1 else [f"after years of pause {count[paused]} runs began instead of one"]
    return wrongs + ([] if count[set_back] == 0 else ["a clock that was set back let a time fire again"])


def _judge_fires(house: House, made: list[str], report: Report) -> list[float]:
    """Return how late each time fired, in seconds."""
    fires = defaultdict[str, list[dict[str, Any]]](list)
    for row in house.query("SELECT * FROM cron_fires ORDER BY cron_id, due"):
        fires[str(row["cron_id"])].append(row)
    for cron in made:
        dues = [row["due"] for row in fires[cron]]
        report.add(f"{due} of {cron} fired {n} times" for due, n in Counter(dues).items() if n > 1)
        # A time right after one that fired late may have been skipped with it. Any other time may not.
        for before, after in pairwise(fires[cron]):
            passed = max(before["fired_at"], before["due"])
            report.check(
                after["due"] <= passed + timedelta(seconds=1.1), f"{cron}: nothing fired before {after['due']}"
            )
        runs = _runs_of(house, cron)
        report.check(len(runs) == len(dues), f"{cron}: {len(dues)} times fired, and there are {len(runs)} runs")
        report.add(f"run {run['run_id']} ended as {run['status']}" for run in runs if run["status"] != "success")
    return [(row["fired_at"] - row["due"]).total_seconds() for cron in made for row in fires[cron]]


def _runs_of(house: House, cron: str) -> list[dict[str, Any]]:
    sql = "SELECT run_id, status FROM runs WHERE kwargs #>> '{config,configurable,cron_id}' = %s"
    return house.query(sql, (cron,))
