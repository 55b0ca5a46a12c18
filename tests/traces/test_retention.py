"""Retention of runs: by project, by workspace, by tier; and nothing else is removed."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from moorage.kernel.errors import NotFoundError
from moorage.traces.records.deletion import TtlSettingsWrite
from moorage.traces.records.feedback import FeedbackCreate, FeedbackSearch
from moorage.traces.records.projects import ProjectCreate, ProjectSearch
from tests.traces.naive_filter import Feedback
from tests.traces.rooms import caller_of

pytest_plugins = "tests.traces.room_fixtures"


@pytest.fixture
def make(room):
    async def make(name, *ages_days, **fields):
        """Create a project with a trace of each age, and return it with the traces."""
        project = await room.projects.create(room.caller, ProjectCreate(name=name, **fields), upsert=False)
        runs = [
            room.run(
                project["id"],
                start_time=room.now - timedelta(days=age),
                metadata={"k": "v"},
                feedback=[Feedback("score", 1.0)],
            )
            for age in ages_days
        ]
        for run in runs:
            await room.attach(run)
        await room.keep(*runs)
        return project["id"], [run.id for run in runs]

    return make


async def settings(room, **fields):
    wanted = TtlSettingsWrite.model_validate({"default_trace_tier": "longlived", **fields})
    return await room.retention.write_settings(room.caller, wanted)


async def test_runs_are_kept_for_ever_when_nobody_says_otherwise(room, make):
    project, runs = await make("a", 1, 60)
    assert await room.retention.list_settings(room.caller) == []
    assert await room.housekeeping.expire(room.now) == 0
    assert await room.seen(project) == set(runs)


async def test_a_project_drops_what_is_older_than_its_days(room, make):
    project, runs = await make("a", 1, 6, 8, 40, longlived_ttl_days=7)
    other, all_of_it = await make("b", 40)
    assert await room.housekeeping.expire(room.now) == 1
    assert await room.seen(project) == set(runs[:2])
    assert await room.seen(other) == set(all_of_it)
    assert await room.left(project) == {
        "trace_run_rows": 2,
        "trace_run_keys": 2,
        "trace_keys": 2,
        "feedback_rows": 2,
    }
    assert await room.attached() == {*runs[:2], *all_of_it}
    assert await room.housekeeping.expire(room.now) == 0


async def test_time_passing_makes_runs_expire_a_day_at_a_time(room, make):
    project, runs = await make("a", 0, 1, 2, longlived_ttl_days=2)
    kept = []
    for _ in range(5):
        await room.housekeeping.expire(room.now)
        kept.append(len(await room.seen(project)))
        room.now += timedelta(days=1)
    assert kept == [3, 2, 1, 0, 0]
    assert len(runs) == 3


async def test_the_workspace_decides_for_projects_that_do_not(room, make):
    plain, plain_runs = await make("plain", 1, 31)
    own, own_runs = await make("own", 31, 61, longlived_ttl_days=60)
    ever, ever_runs = await make("ever", 61, longlived_ttl_days=0)
    short, short_runs = await make("short", 1, 15, trace_tier="shortlived")
    await settings(room, longlived_ttl_days=30)
    await room.housekeeping.expire(room.now)
    assert await room.seen(plain) == set(plain_runs[:1])
    assert await room.seen(own) == set(own_runs[:1])
    assert await room.seen(ever) == set(ever_runs)
    assert await room.seen(short) == set(short_runs[:1])


async def test_short_lived_runs_live_for_two_weeks_or_as_long_as_the_workspace_says(room, make):
    project, runs = await make("a", 3, 13, 15)
    await settings(room, default_trace_tier="shortlived")
    await room.housekeeping.expire(room.now)
    assert await room.seen(project) == set(runs[:2])
    await settings(room, default_trace_tier="shortlived", shortlived_ttl_days=5)
    await room.housekeeping.expire(room.now)
    assert await room.seen(project) == set(runs[:1])


async def test_settings_stay_until_they_are_named(room):
    first = await settings(room, longlived_ttl_days=30, shortlived_ttl_days=3)
    again = await settings(room)
    assert (again["id"], again["longlived_ttl_days"], again["shortlived_ttl_days"]) == (first["id"], 30, 3)
    assert (await settings(room, longlived_ttl_days=None))["longlived_ttl_days"] is None
    (shown,) = await room.retention.list_settings(room.caller)
    assert (shown["tenant_id"], shown["configured_by"]) == (room.caller.workspace_id, "user")
    with pytest.raises(NotFoundError):
        await settings(room, tenant_id=uuid4())
    assert await room.retention.list_settings(caller_of(uuid4())) == []


async def test_a_workspace_can_take_their_own_settings_from_its_projects(room, make):
    await make("a", longlived_ttl_days=3)
    foreign = caller_of(uuid4())
    theirs = await room.projects.create(foreign, ProjectCreate(name="a", trace_tier="shortlived"), upsert=False)
    answer = await settings(room, longlived_ttl_days=30, apply_to_all_projects=True)
    assert answer["apply_to_all_projects"] is True
    (mine,) = await room.projects.list(room.caller, ProjectSearch())
    assert mine["longlived_ttl_days"] is None
    assert (await room.projects.get(foreign, theirs["id"], ProjectSearch()))["trace_tier"] == "shortlived"


async def test_a_look_around_settles_feedback_and_expires_runs_and_may_be_taken_twice(room, make):
    project, runs = await make("a", 1, 8, longlived_ttl_days=7)
    late = room.run(project, start_time=room.now)
    await room.feedback.create(room.caller, FeedbackCreate(key="early", run_id=late.id))
    await room.keep(late)
    for _ in range(2):
        await room.housekeeping.tick()
    assert await room.seen(project) == {runs[0], late.id}
    found = await room.feedback.list(room.caller, FeedbackSearch(session=[project], key=["early"]))
    assert [row["run_id"] for row in found] == [late.id]


async def test_what_a_project_takes_is_shown_and_shrinks(room, make):
    project, _ = await make("a", 1, 8, 9, longlived_ttl_days=7)
    asked = ProjectSearch(include_stats=True)
    before = await room.projects.get(room.caller, project, asked)
    await room.housekeeping.expire(room.now)
    after = await room.projects.get(room.caller, project, asked)
    assert (before["stored_runs"], after["stored_runs"]) == (3, 1)
    assert before["stored_bytes"] > after["stored_bytes"] > 0


async def rows_on_disk(room) -> int:
    sql = "SELECT count() FROM trace_run_rows WHERE tenant_id = {t:UUID} SETTINGS apply_deleted_mask = 0"
    return await room.clickhouse.value(sql, {"t": room.caller.workspace_id})


async def test_the_space_of_deleted_runs_comes_back_at_night_a_month_at_a_time(room, make):
    ages = [0, 31, 62]
    (doomed, _), (kept, ids) = await make("doomed", *ages), await make("kept", *ages)
    await room.deletion.delete_projects(room.caller, [doomed])
    await room.work()
    room.now = room.now.replace(hour=2)
    await room.housekeeping.tick()
    months = {f"{room.now - timedelta(days=age):%Y%m}" for age in ages}
    assert {files.partition for files in await room.tombstones.masked() if files.table == "trace_run_rows"} >= months
    assert await rows_on_disk(room) == 6

    room.now = room.now.replace(hour=3)
    async with asyncio.timeout(60):
        while await room.tombstones.masked() or await room.tombstones.is_cleaning():
            await room.housekeeping.tick()
            await asyncio.sleep(0.02)
    assert await rows_on_disk(room) == 3
    assert await room.seen(kept) == set(ids)
