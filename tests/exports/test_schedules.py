"""Schedules: windows that follow one another, started ten minutes after their end, without gaps or duplicates."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.exports.notify import Webhooks
from moorage.exports.records.exports import SEALED_WEBHOOK_SECRET, SPAWN_DELAY
from moorage.exports.schedules import windows_due
from moorage.exports.spawn import Spawner
from moorage.exports.store.exports import ExportStore
from moorage.exports.store.runs import ExportRunStore
from moorage.kernel.crypto import MasterKeys
from tests.exports.orders import SINCE, insert_export

pytest_plugins = "tests.exports.fixtures"

KEYS = MasterKeys([os.urandom(32)])


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
async def store(platform_postgres):
    await platform_postgres.execute("DELETE FROM export_runs")
    await platform_postgres.execute("DELETE FROM exports")
    return ExportStore(platform_postgres)


def _spawner(store, now, sessions=()):
    async def experiments(_):
        return list(sessions)

    return Spawner(store, Webhooks(KEYS, allow_private=True), experiments, Clock(now))


async def _schedule(store, hours=6, **changes):
    return await insert_export(store, uuid4(), window=None, interval_hours=hours, partitions=(), **changes)


async def _spawned(store, schedule):
    exports = await store.page(schedule["tenant_id"], limit=1000, offset=0)
    children = [export for export in exports if export["source_bulk_export_id"] == schedule["id"]]
    return sorted(children, key=lambda export: export["start_time"])


@given(
    st.integers(1, 168).map(lambda hours: timedelta(hours=hours)),
    st.timedeltas(timedelta(0), timedelta(days=40)),
    st.integers(1, 5),
)
def test_windows_tile_from_the_start_to_the_last_that_ended_ten_minutes_ago(interval, passed, most):
    now = SINCE + passed
    start, windows = SINCE, []
    while due := windows_due(start, interval, now, most):
        windows += due
        start = due[-1].end_at
        assert len(due) <= most
    assert all(window.end_at - window.start_at == interval for window in windows)
    assert all(before.end_at == after.start_at for before, after in pairwise(windows))
    assert len(windows) == max(0, (passed - SPAWN_DELAY) // interval)


async def test_an_export_is_spawned_at_the_end_of_its_window_plus_ten_minutes(store):
    schedule = await _schedule(store, export_fields=["id", "name"], filter='eq(name, "x")')
    assert (schedule["status"], schedule["end_time"]) == ("IntervalScheduled", None)
    due_at = SINCE + timedelta(hours=6, minutes=10)
    assert await _spawner(store, due_at - timedelta(seconds=1)).spawn() == 0
    assert await _spawner(store, due_at).spawn() == 1
    assert await _spawner(store, due_at).spawn() == 0
    [child] = await _spawned(store, schedule)
    assert (child["start_time"], child["end_time"]) == (SINCE, SINCE + timedelta(hours=6))
    assert child["status"] == "Created"
    for name in ("bulk_export_destination_id", "session_id", "filter", "export_fields", "format_version"):
        assert child[name] == schedule[name]
    assert child["interval_hours"] is None


async def test_after_a_downtime_every_window_is_caught_up_once_by_however_many_processes(store, platform_postgres):
    schedule = await _schedule(store, hours=5)
    now = SINCE + timedelta(days=9, hours=1)
    while sum(await asyncio.gather(*(_spawner(store, now).spawn() for _ in range(4)))):
        pass
    children = await _spawned(store, schedule)
    assert len(children) == 43
    assert all(before["end_time"] == after["start_time"] for before, after in pairwise(children))
    assert children[0]["start_time"] == SINCE
    runs = await ExportRunStore(platform_postgres).page_of_schedule(
        schedule["tenant_id"], schedule["id"], limit=1000, offset=0
    )
    # A window over midnight has two runs, except one that ends there. Together they cover the time exactly.
    assert len(runs) == 43 + 7
    assert all(before.window.end_at == after.window.start_at for before, after in pairwise(runs))


async def test_a_clock_that_jumps_back_and_forth_leaves_no_gap_and_makes_no_double(store):
    schedule = await _schedule(store, hours=5)
    for hours in (11, 2, 30, -400, 29, 61, 60):
        while await _spawner(store, SINCE + timedelta(hours=hours)).spawn():
            pass
    children = await _spawned(store, schedule)
    assert len(children) == 12
    assert all(before["end_time"] == after["start_time"] for before, after in pairwise(children))


async def test_a_spawn_that_was_not_noted_is_not_made_twice(store, platform_postgres):
    schedule = await _schedule(store)
    now = SINCE + timedelta(hours=7)
    assert await _spawner(store, now).spawn() == 1
    await platform_postgres.execute("UPDATE exports SET next_start_at = start_at WHERE status = 'IntervalScheduled'")
    assert await _spawner(store, now).spawn() == 0
    assert len(await _spawned(store, schedule)) == 1


async def test_cancelling_a_schedule_leaves_what_it_spawned_alone(store):
    schedule = await _schedule(store)
    await _spawner(store, SINCE + timedelta(hours=13)).spawn()
    cancelled = await store.cancel(schedule["tenant_id"], schedule["id"])
    assert cancelled["status"] == "Cancelled"
    assert await _spawner(store, SINCE + timedelta(days=9)).spawn() == 0
    assert [child["status"] for child in await _spawned(store, schedule)] == ["Created", "Created"]


async def test_a_schedule_of_all_experiments_spawns_runs_for_those_there_are_by_then(store, platform_postgres):
    schedule = await _schedule(store, hours=24, session_id=None)
    sessions = [uuid4(), uuid4()]
    await _spawner(store, SINCE + timedelta(days=1, minutes=10), sessions).spawn()
    [child] = await _spawned(store, schedule)
    runs = await ExportRunStore(platform_postgres).read_all(child["tenant_id"], child["id"])
    assert {run.session_id for run in runs} == set(sessions)


async def test_the_secret_of_a_webhook_opens_for_each_export_on_its_own(store, platform_postgres):
    sealed_for = uuid4()
    sealed = KEYS.seal(b"the secret of it", SEALED_WEBHOOK_SECRET.place(sealed_for))
    schedule = await _schedule(store, id=sealed_for, webhook_url="https://example.com", webhook_secret=sealed)
    await _spawner(store, SINCE + timedelta(hours=7)).spawn()
    [child] = await _spawned(store, schedule)
    row = await platform_postgres.fetch_one("SELECT webhook_secret FROM exports WHERE id = %s", (child["id"],))
    assert KEYS.open(row["webhook_secret"], SEALED_WEBHOOK_SECRET.place(child["id"])) == b"the secret of it"
