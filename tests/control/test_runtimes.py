"""Rules that every runtime of agents keeps. A new runtime joins `RUNTIMES`, with a world in which it runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from moorage.control.runtimes import DeployError, Runtime
from tests.control.worlds import World, make_world
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"
RUNTIMES: dict[str, Callable[[World], Runtime]] = {"processes": World.platform}


@pytest.fixture
async def world(postgres: object, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    number = 20_000 + sum(request.node.name.encode()) % 10_000
    async with make_world(postgres, number) as made:
        yield made


@pytest.fixture(params=RUNTIMES)
def make_runtime(world: World, request: pytest.FixtureRequest) -> Callable[[], Runtime]:
    return lambda: RUNTIMES[request.param](world)


@pytest.fixture
async def runtime(world: World, make_runtime: Callable[[], Runtime]) -> Runtime:
    """Return a runtime with a prepared deployment."""
    made = make_runtime()
    await made.prepare(world.row)
    return made


async def serve(runtime: Runtime, world: World, *orders: object) -> None:
    for order in orders:
        await runtime.start(order, world.secrets)
        await runtime.switch(order)


async def test_all_of_it_may_be_repeated(world: World, runtime: Runtime) -> None:
    order = world.order()
    for _ in range(2):
        await runtime.prepare(world.row)
        await serve(runtime, world, order)
        await runtime.reconcile([order], set())
    assert await world.get() == str(order.revision_id)
    for _ in range(2):
        await runtime.stop(order)
        await runtime.remove(world.row)
    assert not world.place.root.exists()
    assert len(world.revoked) == 1


async def test_a_switch_loses_no_request_and_the_old_revision_ends_its_answers(world: World, runtime: Runtime) -> None:
    old, new = world.order(1), world.order(2)
    await serve(runtime, world, old)
    slow = asyncio.create_task(world.get("/slow"))
    answers, over = [], asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            answers.append(await world.get())

    asking = asyncio.create_task(ask())
    await until(lambda: len(answers) > 3)
    await serve(runtime, world, new)
    await runtime.stop(old)
    assert await world.get() == str(new.revision_id)
    assert await slow == str(old.revision_id)
    await until(lambda: world.process(old) is None)
    over.set()
    await asking
    assert set(answers) == {str(old.revision_id), str(new.revision_id)}


async def test_what_does_not_come_up_says_why_and_leaves_the_old_one_serving(world: World, runtime: Runtime) -> None:
    old, broken = world.order(1), world.order(2)
    await serve(runtime, world, old)
    with pytest.raises(DeployError, match=r"ended at its start(.|\n)*no module named nowhere"):
        await runtime.start(broken, {"FAILS": "1"})
    assert await world.get() == str(old.revision_id)
    assert world.process(broken) is None
    assert any("no module named nowhere" in text for text in world.texts())


async def test_agents_outlive_a_platform_and_the_next_one_keeps_to_what_should_be(
    world: World, runtime: Runtime, make_runtime: Callable[[], Runtime]
) -> None:
    order, left = world.order(1), world.order(2)
    await serve(runtime, world, left, order)
    process = world.process(order)
    await world.leave()
    assert await world.get() == str(order.revision_id)
    second = make_runtime()
    await second.reconcile([order], {world.number})
    assert world.process(left), "a deployment that is busy is left alone"
    async with asyncio.timeout(40):
        while world.process(left):
            await second.reconcile([order], set())
            await asyncio.sleep(0.1)
    assert world.process(order) == process
    assert await world.get() == str(order.revision_id)


async def test_what_has_crashed_is_started_again(world: World, runtime: Runtime) -> None:
    order = world.order()
    await serve(runtime, world, order)
    process = world.process(order)
    process.kill()
    await until(lambda: world.process(order) not in {None, process})
    assert await world.get() == str(order.revision_id)
    await until(lambda: "the agent has ended by itself and is started again" in world.texts())


async def test_several_workers_answer_and_one_that_dies_is_replaced(world: World, runtime: Runtime) -> None:
    order = world.order(min_scale=2, max_scale=4)
    await serve(runtime, world, order)
    first, process = await world.workers(2), world.process(order)
    parts = process.parts(has_workers=True)
    assert len(parts) == 3, "two workers, and who looks after them"
    doomed = next(head for head in parts if head != process.pid)
    os.kill(doomed, signal.SIGKILL)
    await until(lambda: doomed not in process.parts(has_workers=True))  # what it still took up in that moment is lost
    assert len(first & await world.workers(2)) == 1, "the other one goes on"
    assert world.process(order) == process
    await runtime.stop(order)
    await runtime.remove(world.row)
    with pytest.raises((httpx.HTTPError, OSError)):
        await world.get()


async def test_more_workers_take_the_place_of_fewer_without_a_lost_request(world: World, runtime: Runtime) -> None:
    few, more = world.order(1), world.order(2, min_scale=3)
    await serve(runtime, world, few)
    slow = asyncio.create_task(world.get("/slow"))
    await asyncio.sleep(0.2)
    await serve(runtime, world, more)
    await runtime.stop(few)
    assert await slow == str(few.revision_id)
    assert len(await world.workers(3)) == 3
    await until(lambda: world.process(few) is None)


async def test_a_switch_that_was_lost_is_made_good(world: World, runtime: Runtime) -> None:
    old, new = world.order(1), world.order(2)
    await serve(runtime, world, old, new)
    await runtime.switch(old)
    await runtime.reconcile([new], {world.number})
    assert await world.get() == str(old.revision_id), "a deployment that is busy is left alone"
    await runtime.reconcile([new], set())
    assert await world.get() == str(new.revision_id)


async def both(first: Awaitable[object], second: Awaitable[object]) -> None:
    await asyncio.gather(first, second)


async def test_deployments_do_not_meet(world: World, runtime: Runtime, postgres: object) -> None:
    async with make_world(postgres, world.number + 1) as other:
        theirs = other.platform()
        await theirs.prepare(other.row)
        mine, yours = world.order(), other.order()
        await both(serve(runtime, world, mine), serve(theirs, other, yours))
        await runtime.remove(world.row)
        assert await other.get() == str(yours.revision_id)
