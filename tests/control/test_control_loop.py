"""The control loop on rows of a real PostgreSQL, with a runtime that runs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from moorage.control.control_loop import AtWork, Chores, Keeper, LoopRules, RevisionQueue
from moorage.control.records.logs import LogLine
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import IMAGE_SOURCES, Source
from moorage.control.records.states import RevisionStatus as S
from moorage.control.revisions import Revisions
from moorage.control.runtimes import DeployError
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.errors import UnavailableError
from tests.control.rows import Rows, make_rows, new_revision

pytest_plugins = "tests.accounts.fixtures"


class Stage:
    """A runtime, builds and a log store that record their calls."""

    def __init__(self) -> None:
        self.serving: dict[UUID, UUID] = {}
        self.stopped: list[UUID] = []
        self.removed: list[str] = []
        self.lines: list[LogLine] = []
        self.build_error: Exception | None = None
        self.fetch_error: Exception | None = None
        self.started: Order | None = None
        self.start_error: Exception | None = None
        self.before_end: Callable[[], Awaitable[Any]] | None = None
        self.looked_after: list[UUID] = []

    async def build(self, order: Order, secrets: dict[str, str], say: Callable[[str], None]) -> Any:
        say("building")
        if self.build_error:
            raise self.build_error
        return type("Build", (), {"commit": "c" * 40, "authentication": "platform_keys"})

    async def fetch(self, order: Order, secrets: dict[str, str], say: Callable[[str], None]) -> str | None:
        if order.source not in IMAGE_SOURCES:
            return None
        say("pulling")
        if self.fetch_error:
            raise self.fetch_error
        return order.image_pin or f"image@sha256:{order.revision_id.hex}"

    async def prepare(self, deployment: LeasedDeployment) -> None: ...

    async def start(self, order: Order, secrets: dict[str, str]) -> None:
        self.started = order
        if self.start_error:
            raise self.start_error

    async def switch(self, order: Order) -> None:
        self.serving[order.deployment_id] = order.revision_id
        if self.before_end:
            await self.before_end()

    async def stop(self, order: Order) -> None:
        self.stopped.append(order.revision_id)

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        self.looked_after = [order.revision_id for order in active if order.deployment_number not in busy]

    async def remove(self, deployment: Any, *more: Any) -> None:
        self.removed.append(getattr(deployment, "name", "logs"))

    async def insert(self, lines: list[LogLine]) -> None:
        self.lines += lines


async def no_secrets(deployment_id: UUID) -> dict[str, str]:
    return {}


@pytest.fixture
async def rows(platform_postgres) -> Rows:
    return await make_rows(platform_postgres)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def at_work() -> AtWork:
    return AtWork()


@pytest.fixture
def queue(rows: Rows, stage: Stage, at_work: AtWork) -> RevisionQueue:
    return RevisionQueue(LoopRules(), rows.revisions, stage, stage, stage, no_secrets, at_work)


async def message(rows: Rows, deployment_id: UUID, revision_id: UUID) -> str:
    return (await rows.revisions.read(rows.workspace_id, deployment_id, revision_id))["status_message"]


async def test_a_revision_goes_all_the_way_and_the_one_before_leaves(
    rows: Rows, stage: Stage, queue: RevisionQueue
) -> None:
    deployment_id, first = await rows.deploy()
    assert await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOYED
    second = (await rows.push(deployment_id))["id"]
    assert await queue.execute(await rows.claim(deployment_id))
    assert stage.serving == {deployment_id: second}
    assert stage.stopped == [first]
    assert [line.message for line in stage.lines] == ["building", "building"]


async def test_each_failure_ends_with_its_reason(rows: Rows, stage: Stage, queue: RevisionQueue) -> None:
    deployment_id, first = await rows.deploy()
    stage.build_error = OSError(28, "No space left on device", "/a/path")
    assert not await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.BUILD_FAILED
    assert await message(rows, deployment_id, first) == "No space left on device"
    stage.build_error, stage.start_error = None, DeployError("it ended")
    second = (await rows.push(deployment_id))["id"]
    assert not await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, second) is S.DEPLOY_FAILED
    assert await message(rows, deployment_id, second) == "it ended"
    stage.start_error = RuntimeError("our own mistake, with a secret")
    third = (await rows.push(deployment_id))["id"]
    assert not await queue.execute(await rows.claim(deployment_id))
    assert await message(rows, deployment_id, third) == "The platform failed; its log says why"


async def test_what_is_said_of_a_revision_that_serves_is_shown_until_it_is_well(
    rows: Rows, queue: RevisionQueue
) -> None:
    deployment_id, first = await rows.deploy()
    waiting = (await rows.push(deployment_id))["id"]
    await queue.execute(await rows.claim(deployment_id))
    for revision_id in (first, waiting):
        await rows.revisions.report(revision_id, "it crashes in a loop")
    assert await message(rows, deployment_id, first) == "it crashes in a loop"
    assert await message(rows, deployment_id, waiting) is None, "it does not serve"
    await rows.revisions.report(first, None)
    assert await message(rows, deployment_id, first) is None


async def test_an_image_is_fetched_once_and_the_way_back_uses_its_digest(
    rows: Rows, stage: Stage, queue: RevisionQueue
) -> None:
    deployment_id, first = await rows.deploy(Source.EXTERNAL_DOCKER)
    stage.fetch_error = DeployError("no such image")
    assert not await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOY_FAILED
    assert await message(rows, deployment_id, first) == "no such image"
    stage.fetch_error = None
    second = (await rows.push(deployment_id, new_revision(Source.EXTERNAL_DOCKER)))["id"]
    assert await queue.execute(await rows.claim(deployment_id))
    assert stage.started.image_pin == f"image@sha256:{second.hex}"
    revisions = Revisions(rows.revisions, rows.deployments, lambda: None)
    caller = Caller(rows.workspace_id, Plan.ENTERPRISE, frozenset(Scope), "test")
    await revisions.redeploy(caller, deployment_id, second)
    assert await queue.execute(await rows.claim(deployment_id))
    assert stage.started.image_pin == f"image@sha256:{second.hex}"
    assert stage.started.revision_id != second
    assert [line.message for line in stage.lines][:3] == ["pulling", "error: no such image", "pulling"]


async def test_an_engine_that_is_away_is_waited_for(rows: Rows, stage: Stage, queue: RevisionQueue) -> None:
    deployment_id, first = await rows.deploy()
    stage.start_error = UnavailableError("away")
    assert not await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOYING
    await rows.postgres.execute("UPDATE revisions SET not_before = now() WHERE id = %s", (first,))
    stage.start_error = None
    assert await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOYED


async def test_a_revision_that_has_waited_often_is_not_given_up_at_the_first_kill(
    rows: Rows, stage: Stage, queue: RevisionQueue
) -> None:
    deployment_id, first = await rows.deploy()
    stage.build_error = UnavailableError("the listener is away")
    for _ in range(5):
        assert not await queue.execute(await rows.claim(deployment_id))
        await rows.postgres.execute("UPDATE revisions SET not_before = now() WHERE id = %s", (first,))
    await rows.claim(deployment_id)
    await rows.run_out(first)
    await queue.reap()
    stage.build_error = None
    assert await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOYED


@pytest.mark.parametrize("left_at", [S.AWAITING_BUILD, S.BUILDING, S.AWAITING_DEPLOY, S.DEPLOYING])
async def test_what_a_killed_platform_left_is_gone_on_with(rows: Rows, queue: RevisionQueue, left_at: S) -> None:
    deployment_id, first = await rows.deploy()
    held, way = await rows.claim(deployment_id), [S.AWAITING_BUILD, S.BUILDING, S.AWAITING_DEPLOY, S.DEPLOYING]
    for before, after in pairwise(way[: way.index(left_at) + 1]):
        await rows.revisions.move(held.lease, before, after)
    await rows.run_out(first)
    await queue.reap()
    assert await queue.execute(await rows.claim(deployment_id))
    assert await rows.status(deployment_id, first) is S.DEPLOYED


async def test_an_interruption_that_is_faster_than_the_switch_puts_the_old_one_back(
    rows: Rows, stage: Stage, queue: RevisionQueue
) -> None:
    deployment_id, first = await rows.deploy()
    await queue.execute(await rows.claim(deployment_id))
    second = (await rows.push(deployment_id))["id"]

    async def interrupt() -> None:
        stage.before_end = None
        async with rows.deployments.locked(rows.workspace_id, deployment_id) as locked:
            await locked.interrupt(second, "stopped", "test")

    stage.before_end = interrupt
    assert not await queue.execute(await rows.claim(deployment_id))
    assert stage.serving == {deployment_id: first}
    assert stage.stopped == [second]
    assert await rows.status(deployment_id, second) is S.INTERRUPTED


async def test_what_was_changed_while_it_was_read_is_not_put_back(
    rows: Rows, stage: Stage, queue: RevisionQueue, at_work: AtWork
) -> None:
    deployment_id, first = await rows.deploy()
    await queue.execute(await rows.claim(deployment_id))
    read_active = rows.revisions.read_active

    async def read_and_be_overtaken() -> list[Order]:
        found = await read_active()
        await rows.push(deployment_id)
        await queue.execute(await rows.claim(deployment_id))
        return found

    under_way = staticmethod(rows.revisions.read_under_way)
    store = type("Store", (), {"read_active": staticmethod(read_and_be_overtaken), "read_under_way": under_way})
    keeper = Keeper(LoopRules(), store, rows.deployments, stage, at_work, no_secrets)
    await keeper.reconcile()
    assert first not in stage.looked_after
    store.read_active = staticmethod(read_active)
    await keeper.reconcile()
    assert stage.serving[deployment_id] in stage.looked_after


async def test_a_deployment_gets_its_database_and_goes_with_all_it_had(rows: Rows, stage: Stage) -> None:
    deployment_id, _ = await rows.deploy(ready=False)
    removed: list[Any] = []

    async def remove(*what: Any) -> None:
        removed.append(what)

    chores = Chores(rows.deployments, stage, stage, remove, remove, lambda: None, AtWork())

    async def claimed() -> LeasedDeployment:
        found = await chores.claim("w", 100, 60)
        return next(row for row in found if row.deployment_id == deployment_id)

    assert await chores.execute(await claimed())
    async with rows.deployments.locked(rows.workspace_id, deployment_id) as locked:
        await locked.set_deleted(deletes_project=True, actor="test")
    row = await claimed()
    assert await chores.execute(row)
    assert stage.removed == [row.name, "logs"]
    assert removed == [(deployment_id,), (rows.workspace_id, row.name)]
    assert await rows.revisions.read_order(deployment_id) is None
