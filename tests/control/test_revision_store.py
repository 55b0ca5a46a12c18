"""The queue of a deployment's revisions, and their leases, on a real PostgreSQL."""

import asyncio

import pytest

from moorage.control.records.states import AT_WORK, Source
from tests.control.rows import Rows, S, make_rows, new_revision

pytest_plugins = "tests.accounts.fixtures"


@pytest.fixture
async def rows(platform_postgres) -> Rows:
    return await make_rows(platform_postgres)


async def test_a_first_revision_waits_for_its_build_and_an_image_for_nothing(rows):
    deployment, revision = await rows.deploy()
    assert await rows.status(deployment, revision) == S.AWAITING_BUILD
    deployment, revision = await rows.deploy(Source.EXTERNAL_DOCKER)
    assert await rows.status(deployment, revision) == S.AWAITING_DEPLOY


async def test_a_revision_is_held_by_one_worker_that_moves_it_to_the_end(rows):
    deployment, revision = await rows.deploy()
    held = await rows.claim(deployment)
    assert held.order.revision_id == revision
    assert held.order.status == S.AWAITING_BUILD
    assert held.lease.attempt == 1
    assert not [row for row in await rows.revisions.claim("other", 100, 60) if row.lease.key == revision]
    await rows.build(held)
    assert await rows.revisions.move(held.lease, S.AWAITING_DEPLOY, S.DEPLOYING, "Starting")
    assert not await rows.revisions.move(held.lease, S.AWAITING_DEPLOY, S.DEPLOYING), "it is not there any more"
    assert await rows.revisions.finish(held.lease, S.DEPLOYING, S.DEPLOYED)
    assert not await rows.revisions.finish(held.lease, S.DEPLOYING, S.DEPLOY_FAILED)
    row = await rows.deployments.read(rows.workspace_id, deployment)
    assert row["active_revision_id"] == row["latest_revision_id"] == revision
    assert [order.revision_id for order in await rows.revisions.read_active() if order.deployment_id == deployment] == [
        revision
    ]
    assert revision in await rows.revisions.read_built()


async def test_of_ten_pushes_the_first_and_the_last_are_built_and_the_others_skipped(rows):
    deployment, first = await rows.deploy()
    held = await rows.claim(deployment)
    pushed = await asyncio.gather(*(rows.push(deployment) for _ in range(9)))
    assert {row["status"] for row in pushed} == {S.QUEUED}
    assert sorted(row["number"] for row in pushed) == [*range(2, 11)]
    assert await rows.revisions.move(held.lease, S.AWAITING_BUILD, S.BUILDING)
    assert await rows.revisions.finish(held.lease, S.BUILDING, S.BUILD_FAILED, "It\0 does not compile")
    found = await rows.revisions.page(rows.workspace_id, deployment, None, 20, 0)
    assert [row["status"] for row in found] == [S.AWAITING_BUILD, *[S.SKIPPED] * 8, S.BUILD_FAILED]
    assert found[-1]["id"] == first
    assert found[-1]["status_message"] == "It\ufffd does not compile"
    assert found[1]["status_message"] == "Revision 10 took its place"


async def test_no_revision_stays_queued_when_one_ends_while_another_comes(rows):
    """Both operations lock the row of the deployment, so either order works."""
    deployment, _ = await rows.deploy()
    for _ in range(15):
        held = await rows.claim(deployment)
        await rows.revisions.move(held.lease, S.AWAITING_BUILD, S.BUILDING)
        await asyncio.gather(
            rows.push(deployment), rows.revisions.finish(held.lease, S.BUILDING, S.BUILD_FAILED), rows.push(deployment)
        )
        statuses = [row["status"] for row in await rows.revisions.page(rows.workspace_id, deployment, None, 100, 0)]
        assert len([status for status in statuses if status in AT_WORK]) == 1, statuses


async def test_the_lease_of_a_dead_worker_runs_out_and_what_it_still_writes_changes_nothing(rows):
    deployment, revision = await rows.deploy()
    dead = await rows.claim(deployment, worker="dead")
    assert await rows.revisions.move(dead.lease, S.AWAITING_BUILD, S.BUILDING)
    assert await rows.revisions.beat([dead.lease], 60) == [revision]
    await rows.run_out(revision)
    assert await rows.revisions.reap(3) == 1
    assert await rows.revisions.beat([dead.lease], 60) == []
    heir = await rows.claim(deployment)
    assert heir.order.status == S.BUILDING
    assert heir.lease.attempt == 2
    assert not await rows.revisions.move(dead.lease, S.BUILDING, S.AWAITING_DEPLOY)
    assert not await rows.revisions.set_commit(dead.lease, "a" * 40)
    assert await rows.revisions.set_commit(heir.lease, "b" * 40)
    assert await rows.revisions.finish(heir.lease, S.BUILDING, S.BUILD_FAILED)


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ([], S.BUILD_FAILED),
        ([S.BUILDING], S.BUILD_FAILED),
        ([S.BUILDING, S.AWAITING_DEPLOY], S.DEPLOY_FAILED),
        ([S.BUILDING, S.AWAITING_DEPLOY, S.DEPLOYING], S.DEPLOY_FAILED),
    ],
)
async def test_a_revision_that_kills_its_workers_ends_and_lets_the_next_go_on(rows, steps, end):
    deployment, revision = await rows.deploy()
    held = await rows.claim(deployment)
    next_one = await rows.push(deployment)
    at = S.AWAITING_BUILD
    for step in steps:
        assert await rows.revisions.move(held.lease, at, step)
        at = step
    for _ in range(2):
        await rows.run_out(revision)
        assert await rows.revisions.reap(3) == 1
        assert (await rows.claim(deployment)).order.revision_id == revision
    await rows.run_out(revision)
    assert await rows.revisions.reap(3) == 1
    assert await rows.status(deployment, revision) == end
    assert await rows.status(deployment, next_one["id"]) == S.AWAITING_BUILD


async def test_a_worker_that_stops_hands_back_without_using_up_an_attempt(rows):
    deployment, _ = await rows.deploy()
    held = await rows.claim(deployment)
    await rows.revisions.hand_back([held.lease])
    held = await rows.claim(deployment)
    assert held.lease.attempt == 1
    assert await rows.revisions.postpone(held.lease, 60)
    assert deployment not in {row.order.deployment_id for row in await rows.revisions.claim("w", 100, 0)}


async def test_nothing_is_claimed_before_the_database_is_there(rows):
    deployment, _ = await rows.deploy(ready=False)
    assert deployment not in {row.order.deployment_id for row in await rows.revisions.claim("w", 100, 0)}
    chores = await rows.deployments.claim("w", 100, 60)
    mine = next(row for row in chores if row.deployment_id == deployment)
    assert mine.status == "AWAITING_DATABASE"
    assert mine.number > 0
    assert deployment in await rows.deployments.beat([row.lease for row in chores], 60)
    assert await rows.deployments.set_ready(mine.lease)
    assert not await rows.deployments.set_ready(mine.lease)
    await rows.deployments.hand_back([row.lease for row in chores])
    assert (await rows.claim(deployment)).order.deployment_id == deployment


async def test_a_deletion_ends_what_is_at_work_and_waits_for_its_holder(rows):
    deployment, revision = await rows.deploy()
    held = await rows.claim(deployment, lease_s=30)
    waiting = await rows.push(deployment)
    async with rows.deployments.locked(rows.workspace_id, deployment) as locked:
        await locked.set_deleted(deletes_project=True, actor="test")
    assert await rows.status(deployment, revision) == S.INTERRUPTED == await rows.status(deployment, waiting["id"])
    assert await rows.revisions.beat([held.lease], 30) == []
    assert await rows.deployments.read(rows.workspace_id, deployment) is None
    assert deployment not in {row.deployment_id for row in await rows.deployments.claim("w", 100, 0)}
    await rows.postgres.execute("UPDATE deployments SET not_before = now() WHERE id = %s", (deployment,))
    await rows.deployments.reap()
    [chore] = [row for row in await rows.deployments.claim("w", 100, 60) if row.deployment_id == deployment]
    assert chore.status == "AWAITING_DELETE"
    assert chore.deletes_project
    assert await rows.deployments.remove(chore.lease)
    assert deployment not in (await rows.deployments.read_numbers()).values()
    assert await rows.revisions.read_order(revision) is None


async def test_numbers_are_small_and_used_again_but_never_twice_at_a_time(rows):
    made = await asyncio.gather(*(rows.deploy() for _ in range(8)))
    numbers = await rows.deployments.read_numbers()
    assert len({number for number, owner in numbers.items() if owner in {one for one, _ in made}}) == 8
    gone = made[3][0]
    number = next(number for number, owner in numbers.items() if owner == gone)
    await rows.postgres.execute("DELETE FROM deployments WHERE id = %s", (gone,))
    again, _ = await rows.deploy()
    assert (await rows.deployments.read_numbers())[number] == again


async def test_an_interrupted_revision_makes_way_for_the_next(rows):
    deployment, revision = await rows.deploy()
    held = await rows.claim(deployment)
    next_one = await rows.push(deployment)
    async with rows.deployments.locked(rows.workspace_id, deployment) as locked:
        assert (await locked.interrupt(revision, "Interrupted", "test"))["status"] == S.INTERRUPTED
        assert await locked.interrupt(revision, "Interrupted", "test") is None
    assert await rows.revisions.beat([held.lease], 60) == []
    assert await rows.status(deployment, next_one["id"]) == S.AWAITING_BUILD


async def test_builds_are_kept_that_serve_or_are_to_serve_and_those_used_last(rows):
    deployment, _ = await rows.deploy()
    built = [await rows.roll_out(deployment)]
    for _ in range(4):
        await rows.push(deployment)
        built.append(await rows.roll_out(deployment))
    # Back to the first build, which is now the most recently used one.
    await rows.push(deployment, new_revision(build_of=built[0]))
    # The active build is kept, and that of a revision that is to serve.
    assert set(await rows.revisions.forget_builds(deployment, 0)) == set(built[1:4])
    await rows.roll_out(deployment)
    assert await rows.revisions.forget_builds(deployment, 2) == []
    assert await rows.revisions.forget_builds(deployment, 1) == [built[4]]
    async with rows.deployments.locked(rows.workspace_id, deployment) as locked:
        assert await locked.has_build(built[0])
        assert not await locked.has_build(built[1])
