"""Claims of export runs: limits that hold at every moment, fair turns, leases that run out, and final ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from uuid import uuid4

import pytest

from moorage.exports.records.exports import EXPORT_MOVES, ExportStatus
from moorage.exports.records.runs import EXPORT_RUN_MOVES, ExportRunStatus
from moorage.exports.store.exports import ExportStore
from moorage.exports.store.runs import ClaimLimits, ExportRunStore
from tests.exports.orders import insert_export

pytest_plugins = "tests.exports.fixtures"

LIMITS = ClaimLimits(runs_of_export_max=45, exports_of_workspace_max=15, export_timeout_s=3600)


@pytest.fixture
async def stores(platform_postgres):
    await platform_postgres.execute("DELETE FROM export_runs")
    await platform_postgres.execute("DELETE FROM exports")
    return ExportStore(platform_postgres), ExportRunStore(platform_postgres)


async def _end(runs, rows):
    for row in rows:
        assert await runs.complete(row.lease)


async def test_limits_hold_and_turns_are_fair_with_100_exports_of_10_workspaces(stores, platform_postgres):
    exports, runs = stores
    workspaces = [uuid4() for _ in range(10)]
    for number in range(100):
        await insert_export(exports, workspaces[0] if number < 55 else workspaces[number % 10], days=4)
    limits = ClaimLimits(3, 2, 3600)
    done, held = 0, []
    first = await asyncio.gather(*(runs.claim(f"worker-{n}", 5, 60, limits) for n in range(4)))
    held = [row for rows in first for row in rows]
    # 20 places for 10 workspaces: two for each, though one of them has ordered half of all exports.
    assert set(Counter(row.workspace_id for row in held).values()) == {2}
    random_ = random.Random(1)
    while True:
        claimed = await asyncio.gather(*(runs.claim(f"worker-{n}", 6, 60, limits) for n in range(4)))
        held += [row for rows in claimed for row in rows]
        if not held:
            break
        assert max(Counter(row.run.export_id for row in held).values()) <= 3
        begun = await platform_postgres.fetch("SELECT workspace_id FROM exports WHERE status = 'Running'")
        assert max(Counter(row["workspace_id"] for row in begun).values()) <= 2
        random_.shuffle(held)
        ended, held = held[: len(held) // 2 + 1], held[len(held) // 2 + 1 :]
        await _end(runs, ended)
        done += len(ended)
        for row in await exports.claim("finisher", 100, 60):
            assert await exports.complete(row.lease, "manifest")
    assert done == 400
    [count] = await platform_postgres.fetch("SELECT count(*) FILTER (WHERE status = 'Completed') AS n FROM exports")
    assert count["n"] == 100


async def test_the_earliest_days_come_first_and_each_run_once(stores):
    exports, runs = stores
    export = await insert_export(exports, uuid4(), days=5)
    claimed = await asyncio.gather(*(runs.claim(f"worker-{n}", 2, 60, LIMITS) for n in range(4)))
    rows = [row for rows in claimed for row in rows]
    assert len({row.lease.key for row in rows}) == len(rows) == 5
    assert {row.run.window.start_at.day for row in claimed[0]} in ({1, 2}, {3, 4}, {5})
    assert (await exports.read(export["tenant_id"], export["id"]))["status"] == "Running"


async def test_a_lost_lease_comes_back_without_using_up_an_attempt_and_fences_its_old_holder(stores, platform_postgres):
    exports, runs = stores
    await insert_export(exports, uuid4(), days=1)
    [old] = await runs.claim("old", 1, 60, LIMITS)
    assert list(await runs.beat([old.lease], 60)) == [old.lease.key]
    await platform_postgres.execute(
        "UPDATE export_runs SET lease_until = now() - interval '1 second' WHERE worker = 'old'"
    )
    assert await runs.reap() == 1
    [new] = await runs.claim("new", 1, 60, LIMITS)
    assert new.run.retry_number == 0
    assert list(await runs.beat([old.lease], 60)) == []
    assert not await runs.complete(old.lease)
    assert not await runs.fail(old.lease, "late")
    assert await runs.complete(new.lease)


async def test_an_attempt_waits_and_the_last_one_fails_the_whole_export(stores):
    exports, runs = stores
    export = await insert_export(exports, uuid4(), days=3)
    tenant, export_id = export["tenant_id"], export["id"]
    for number in range(2):
        [row] = await runs.claim("worker", 1, 60, LIMITS)
        assert row.run.retry_number == number
        assert await runs.retry(row.lease, f"trouble {number}", delay_s=0, retries_max=2)
    [row] = await runs.claim("worker", 1, 60, LIMITS)
    assert await runs.retry(row.lease, "a while", delay_s=30, retries_max=3)
    [other] = await runs.claim("worker", 1, 60, LIMITS)
    assert other.lease.key != row.lease.key  # the first export waits
    assert not await runs.retry(other.lease, "no more", delay_s=0, retries_max=0)
    assert await runs.fail(other.lease, "no more")
    first, second, third = await runs.read_all(tenant, export_id)
    assert first.errors == {"retry_0": "trouble 0", "retry_1": "trouble 1", "retry_2": "a while"}
    assert (first.status, second.status, third.status) == ("Cancelled", "Failed", "Cancelled")
    assert second.errors == {"retry_0": "no more"}
    failed = await exports.read(tenant, export_id)
    assert failed["status"] == "Failed"
    assert failed["finished_at"] is not None
    assert "no more" in failed["error"]
    assert await runs.claim("worker", 1, 60, LIMITS) == []


async def test_an_export_that_takes_too_long_is_timed_out_with_its_runs(stores, platform_postgres):
    exports, runs = stores
    export = await insert_export(exports, uuid4(), days=2)
    [row] = await runs.claim("worker", 1, 60, LIMITS)
    assert await exports.time_out() == 0
    await platform_postgres.execute("UPDATE exports SET deadline_at = now() - interval '1 second'")
    assert await exports.time_out() == 1
    assert (await exports.read(export["tenant_id"], export["id"]))["status"] == "TimedOut"
    assert {run.status for run in await runs.read_all(export["tenant_id"], export["id"])} == {"TimedOut"}
    assert list(await runs.beat([row.lease], 60)) == []


async def test_states_move_along_the_table_whatever_happens_at_once(stores, platform_postgres):
    exports, runs = stores
    random_ = random.Random(7)
    made = [await insert_export(exports, uuid4(), days=2) for _ in range(40)]
    held, seen_exports, seen_runs = [], {}, {}

    async def one_step():
        match random_.randrange(8):
            case 0 | 1:
                held.extend(await runs.claim("worker", 5, 60, LIMITS))
            case 2 | 3 | 4 | 5 if held:
                await runs.complete(held.pop(random_.randrange(len(held))).lease)
            case 6 if held and random_.random() < 0.6:
                row = held.pop(random_.randrange(len(held)))
                if not await runs.retry(row.lease, "trouble", delay_s=0, retries_max=random_.randrange(2)):
                    await runs.fail(row.lease, "trouble")
            case 7 if random_.random() < 0.2:
                export = random_.choice(made)
                await exports.cancel(export["tenant_id"], export["id"])
            case _:
                for row in await exports.claim("finisher", 5, 60):
                    await exports.complete(row.lease, "manifest")

    async def note(table, seen, moves, kind):
        for row in await platform_postgres.fetch(f"SELECT id, status FROM {table}"):
            before, after = seen.get(row["id"]), kind(row["status"])
            assert before in (None, after) or _reachable(moves, before, after), (before, after)
            seen[row["id"]] = after

    for _ in range(120):
        await asyncio.gather(*(one_step() for _ in range(3)))
        await note("exports", seen_exports, EXPORT_MOVES, ExportStatus)
        await note("export_runs", seen_runs, EXPORT_RUN_MOVES, ExportRunStatus)
    assert {ExportStatus.COMPLETED, ExportStatus.FAILED, ExportStatus.CANCELLED} <= set(seen_exports.values())


def _reachable(moves, before, after):
    """Return True if `after` can be reached in one step or several, since a run may begin and end between two looks."""
    return after in moves[before] or any(_reachable(moves, between, after) for between in moves[before])
