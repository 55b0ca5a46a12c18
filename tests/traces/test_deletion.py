"""Deleting traces and projects: hidden at once, removed soon, and never back, whichever process dies meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from moorage.kernel.errors import BadRequestError, NotFoundError
from moorage.traces.records.feedback import FeedbackCreate, FeedbackSearch
from moorage.traces.records.projects import ProjectCreate
from moorage.traces.store.run_writes import RunWrites
from tests.traces.naive_filter import Feedback
from tests.traces.rooms import NOW, caller_of

pytest_plugins = "tests.traces.room_fixtures"

NOTHING = {"trace_run_rows": 0, "trace_run_keys": 0, "trace_keys": 0, "feedback_rows": 0}


@pytest.fixture
async def project(room):
    return (await room.projects.create(room.caller, ProjectCreate(name="a"), upsert=False))["id"]


async def keep_trace(room, project):
    """Create a root with two children, feedback on the root and an attachment of a child."""
    root = room.run(project, metadata={"user": "ann"}, feedback=[Feedback("score", 1.0)])
    runs = [root, room.run(project, root), room.run(project, root)]
    await room.attach(runs[-1])
    await room.keep(*runs)
    return runs


async def test_a_deleted_trace_is_unseen_at_once_and_gone_soon(room, project):
    doomed, other = await keep_trace(room, project), await keep_trace(room, project)
    await room.deletion.delete_traces(room.caller, project, [doomed[0].id])
    assert await room.seen(project) == {run.id for run in other}
    assert await room.work() == 1
    assert await room.left(project) == {
        "trace_run_rows": 3,
        "trace_run_keys": 3,
        "trace_keys": 3,
        "feedback_rows": 1,
    }
    assert await room.seen(project) == {run.id for run in other}
    assert await room.attached() == {other[0].id}
    assert await room.work() == 0


async def test_what_comes_late_for_a_run_of_a_deleted_trace_stays_unseen_and_is_removed(room, project):
    doomed = await keep_trace(room, project)
    await room.deletion.delete_traces(room.caller, project, [doomed[0].id])
    await room.keep(*doomed)
    assert await room.seen(project) == set()
    await room.work()
    assert await room.left(project) == NOTHING


async def test_ingest_can_tell_what_was_deleted(room, project):
    doomed = await keep_trace(room, project)
    await room.deletion.delete_traces(room.caller, project, [doomed[0].id, (never_seen := uuid4())])
    await room.deletion.delete_projects(room.caller, [project])
    asked = [(room.caller.workspace_id, str(each)) for each in (doomed[0].id, never_seen, project, uuid4())]
    writes = RunWrites(room.clickhouse)
    assert await writes.deleted(asked) == set(asked[:3])
    assert await writes.deleted([(uuid4(), run_id) for _, run_id in asked]) == set()


async def test_feedback_on_a_deleted_run_is_refused_or_dropped(room, project):
    doomed = await keep_trace(room, project)
    await room.deletion.delete_traces(room.caller, project, [doomed[0].id])
    await room.work()
    with pytest.raises(NotFoundError, match="was deleted"):
        await room.feedback.create(room.caller, FeedbackCreate(key="k", trace_id=doomed[0].id))
    item = {"key": "k", "run_id": str(doomed[1].id), "trace_id": str(doomed[0].id)}
    await room.feedback.accept(room.caller, [item])
    assert not await room.feedback.list(room.caller, FeedbackSearch())


async def test_traces_are_deleted_from_the_project_that_is_named_only(room, project):
    doomed = await keep_trace(room, project)
    other = await room.projects.create(room.caller, ProjectCreate(name="b"), upsert=False)
    with pytest.raises(BadRequestError, match="is not in session"):
        await room.deletion.delete_traces(room.caller, other["id"], [doomed[0].id])
    with pytest.raises(NotFoundError):
        await room.deletion.delete_traces(caller_of(uuid4()), project, [doomed[0].id])
    await room.work()
    assert await room.seen(project) == {run.id for run in doomed}


async def test_traces_go_by_any_of_some_metadata_on_any_run(room, project):
    ann, bob, number = room.run(project), room.run(project, metadata={"user": "bob"}), room.run(project)
    child = room.run(project, ann, metadata={"user": "ann"})
    count = room.run(project, number, metadata={"n": 5})
    # A value that an update has replaced is still on one of the rows of its run.
    changed = room.run(project, metadata={"user": "cleo"})
    await room.keep(ann, child, bob, number, count, changed)
    await room.clickhouse.command(
        """INSERT INTO trace_run_rows (tenant_id, session_id, start_time, id, metadata_json)
        VALUES ({t:UUID}, {s:UUID}, {at:DateTime64(6)}, {id:UUID}, '{"user":"ann"}')""",
        {"t": changed.tenant_id, "s": project, "at": changed.start_time, "id": changed.id},
    )
    await room.deletion.delete_with_metadata(room.caller, {"user": "ann", "n": "5"})
    await room.deletion.delete_with_metadata(caller_of(uuid4()), {"user": "bob"})
    assert room.wakes == 2
    await room.work()
    assert await room.seen(project) == {bob.id, changed.id}
    assert (await room.left(project))["trace_keys"] == 2


async def test_a_deleted_project_takes_everything_with_it(room, project):
    await keep_trace(room, project)
    kept = (await room.store.ensure(room.caller.workspace_id, {"kept": NOW}))["kept"]
    neighbour = room.run(kept)
    await room.keep(neighbour)
    await room.deletion.delete_projects(room.caller, [project, uuid4()])
    assert room.wakes == 1
    # Once now, and once when no process uses the name for this project any more.
    assert await room.work() == 2
    assert await room.left(project) == NOTHING
    assert await room.attached() == set()
    assert await room.seen(kept) == {neighbour.id}
    with pytest.raises(NotFoundError):
        await room.deletion.delete_projects(room.caller, [project])


async def test_what_another_process_still_wrote_to_a_deleted_project_goes_too(room, project):
    await keep_trace(room, project)
    await room.deletion.delete_projects(room.caller, [project])
    (first,) = await room.queue.claim("a", 1, 60)
    await room.queue.execute(first)
    await keep_trace(room, project)
    assert await room.work() == 1
    assert await room.left(project) == NOTHING


async def test_a_large_trace_goes_in_pieces(room, project):
    root = room.run(project)
    await room.keep(root, *(room.run(project, root) for _ in range(2500)))
    await room.deletion.delete_traces(room.caller, project, [root.id])
    assert await room.seen(project) == set()
    await room.work()
    assert await room.left(project) == NOTHING


async def test_a_worker_that_died_leaves_its_work_to_the_next(room, project):
    await keep_trace(room, project)
    await room.deletion.delete_projects(room.caller, [project])
    first = await room.queue.claim("dead", 10, 0.05)
    assert not await room.queue.claim("next", 10, 60)
    await asyncio.sleep(0.1)
    assert await room.queue.reap() == 2
    assert await room.work("next") == 2
    # Later writes of the dead worker change nothing.
    assert [await room.orders.end(order.lease) for order in first] == [False, False]
    assert await room.left(project) == NOTHING


async def test_leases_are_kept_by_beating_and_given_back_at_a_stop(room, project):
    await room.deletion.delete_projects(room.caller, [project])
    orders = await room.queue.claim("a", 10, 60)
    assert set(await room.queue.beat([order.lease for order in orders], 60)) == {order.lease.key for order in orders}
    await room.queue.hand_back([orders[0].lease])
    assert await room.queue.beat([orders[0].lease], 60) == []
    assert await room.work() == 1


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from tests.traces.rooms import Room

async def main(conninfo, url, bucket, commands):
    postgres = Postgres(conninfo, pool_max=2)
    await postgres.open()
    room = Room(postgres, ClickHouse(url), Path(bucket))
    sent, command = 0, room.clickhouse.command

    async def counted(*arguments, **named):
        nonlocal sent
        sent += 1
        if sent > commands:
            os.kill(os.getpid(), signal.SIGKILL)
        await command(*arguments, **named)

    room.clickhouse.command = counted
    while orders := await room.queue.claim("killed", 1, 0.01):
        await room.queue.execute(orders[0])

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


@pytest.mark.parametrize("commands", [0, 1, 3, 4])
async def test_a_removal_that_is_killed_in_the_middle_is_finished_by_another_process(
    room, project, tmp_path, platform_conninfo, clickhouse_url, commands
):
    doomed, other = await keep_trace(room, project), await keep_trace(room, project)
    await room.deletion.delete_traces(room.caller, project, [doomed[0].id])
    command = [sys.executable, "-c", KILLED, platform_conninfo, clickhouse_url, str(tmp_path), str(commands)]
    killed = await asyncio.to_thread(subprocess.run, command, timeout=60, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert await room.seen(project) == {run.id for run in other}
    assert await room.queue.reap() == 1
    await room.work()
    assert (await room.left(project))["trace_keys"] == 3
    assert await room.seen(project) == {run.id for run in other}


async def test_space_is_given_back(room, project):
    await keep_trace(room, project)
    await room.deletion.delete_projects(room.caller, [project])
    await room.work()
    room.now = datetime.combine(NOW + timedelta(days=1), datetime.min.time(), UTC) + timedelta(hours=4)
    sql = """SELECT count() FROM system.parts
        WHERE active AND database = currentDatabase() AND has_lightweight_delete"""
    for _ in range(300):
        await room.housekeeping.tick()  # one month of each table
        if not await room.clickhouse.value(sql):
            return
        await asyncio.sleep(0.1)
    pytest.fail("what was deleted is still in the files")
