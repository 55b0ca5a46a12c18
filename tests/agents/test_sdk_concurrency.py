"""The official Python SDK, unmodified, against a real server: several runs on one thread, and their cancellation."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.agents.sdk import collect, until_asleep


async def test_a_cancelled_run_leaves_what_it_had_done(client, thread):
    run = await client.runs.create(thread, "slow", input={"seconds": 30})
    await until_asleep(client, thread)
    await client.runs.cancel(thread, run["run_id"], wait=True)
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"
    found, state = await client.threads.get(thread), await client.threads.get_state(thread)
    assert (found["status"], state["next"], state["values"]["items"]) == ("interrupted", ["sleep"], ["counted"])
    with pytest.raises(NotFoundError):
        await client.runs.cancel(thread, run["run_id"])


async def test_a_cancellation_need_not_be_awaited(client, thread):
    run = await client.runs.create(thread, "slow", input={"seconds": 30})
    await until_asleep(client, thread)
    assert await client.runs.cancel(thread, run["run_id"]) is None
    await client.runs.join(thread, run["run_id"])
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"


async def test_a_run_rolled_back_never_was(client, thread):
    before = await client.runs.wait(thread, "slow", input={"text": "kept", "seconds": 0})
    history = await client.threads.get_history(thread)
    run = await client.runs.create(thread, "slow", input={"text": "lost", "seconds": 30})
    await until_asleep(client, thread)
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run["run_id"])
    found = await client.threads.get(thread)
    assert (found["status"], found["values"]) == ("idle", before)
    assert await client.threads.get_history(thread) == history


async def test_a_rolled_back_run_leaves_no_trace_in_the_metadata(client):
    thread = await client.threads.create(metadata={"mine": 1, "graph_id": "echo"})
    thread_id = thread["thread_id"]

    async def metadata() -> dict[str, Any]:
        found = dict((await client.threads.get(thread_id))["metadata"])
        found.pop("assistant_id", None)
        return found

    first = await client.runs.create(thread_id, "slow", input={"seconds": 30})
    waiting = await client.runs.create(thread_id, "pair", input={"text": "x"})
    assert await metadata() == {"mine": 1, "graph_id": "pair"}
    await client.runs.cancel(thread_id, waiting["run_id"], action="rollback")
    assert await metadata() == {"mine": 1, "graph_id": "slow"}
    await until_asleep(client, thread_id)
    await client.runs.cancel(thread_id, first["run_id"], wait=True, action="rollback")
    assert (await client.threads.get(thread_id))["metadata"] == thread["metadata"]

    run = await client.runs.create(None, "slow", input={"seconds": 0}, on_completion="keep")
    await client.runs.join(run["thread_id"], run["run_id"])
    kept = (await client.threads.get(run["thread_id"]))["metadata"]
    later = await client.runs.create(run["thread_id"], "slow", input={"seconds": 30})
    await client.runs.cancel(run["thread_id"], later["run_id"], wait=True, action="rollback")
    assert (await client.threads.get(run["thread_id"]))["metadata"] == kept


async def test_runs_of_one_thread_wait_for_each_other_in_order(client, thread):
    first = await client.runs.create(thread, "slow", input={"items": ["1"], "seconds": 0.5})
    second = await client.runs.create(thread, "echo", input={"items": ["2"]})
    third = await client.runs.create(thread, "echo", input={"items": ["3"]}, multitask_strategy="enqueue")
    assert (second["status"], third["status"]) == ("pending", "pending")
    values = await client.runs.join(thread, third["run_id"])
    assert values["items"] == ["1", "counted", "slept", "echo", "2", "echo", "3", "echo"]
    assert (await client.runs.get(thread, first["run_id"]))["status"] == "success"


async def test_the_stream_of_a_run_that_waits_has_its_first_frame(client, thread):
    await client.runs.create(thread, "slow", input={"seconds": 0.5})
    events = await collect(client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode="updates"))
    assert [event for event, _ in events] == ["metadata", "updates", "updates"]


async def test_a_run_cancelled_before_it_began_leaves_the_thread_as_it_was(client, thread):
    before = await client.runs.wait(thread, "slow", input={"seconds": 0})
    first = await client.runs.create(thread, "slow", input={"seconds": 30})
    second = await client.runs.create(thread, "echo", input={"text": "never"})
    joined = asyncio.create_task(client.runs.join(thread, second["run_id"]))
    await asyncio.sleep(0.2)  # the run has begun to wait
    await client.runs.cancel(thread, second["run_id"], wait=True)
    assert "never" not in str(await joined)
    assert await joined == await client.runs.join(thread, second["run_id"])
    assert (await client.runs.get(thread, second["run_id"]))["status"] == "interrupted"
    await client.runs.cancel(thread, first["run_id"], wait=True, action="rollback")
    assert (await client.threads.get(thread))["values"] == before


async def test_the_stream_of_a_run_cancelled_before_it_began_ends_at_once(client, thread):
    first = await client.runs.create(thread, "slow", input={"seconds": 30})
    second = await client.runs.create(thread, "echo", input={})
    followed = asyncio.create_task(collect(client.runs.join_stream(thread, second["run_id"])))
    await asyncio.sleep(0.2)  # the stream has begun to follow
    await client.runs.cancel(thread, second["run_id"], wait=True)
    async with asyncio.timeout(2):
        assert await followed == []
    await client.runs.cancel(thread, first["run_id"], wait=True)


async def test_a_run_can_refuse_to_wait(client, thread):
    run = await client.runs.create(thread, "slow", input={"seconds": 30})
    for refused in (client.runs.create, client.runs.wait):
        with pytest.raises(Exception, match=r"409|already running") as caught:
            await refused(thread, "echo", input={}, multitask_strategy="reject")
        assert caught.value.response.status_code == 409
    with pytest.raises(ConflictError):
        await collect(client.runs.stream(thread, "echo", input={}, multitask_strategy="reject"))
    await client.runs.cancel(thread, run["run_id"], wait=True)
    assert len(await client.runs.list(thread)) == 1


async def test_a_run_can_interrupt_the_one_before(client, thread):
    old = await client.runs.create(thread, "slow", input={"seconds": 30})
    await until_asleep(client, thread)
    values = await client.runs.wait(thread, "echo", input={"text": "new"}, multitask_strategy="interrupt")
    assert values["items"] == ["counted", "echo"]
    assert (await client.runs.get(thread, old["run_id"]))["status"] == "interrupted"


async def test_a_run_can_roll_back_the_one_before(client, thread):
    old = await client.runs.create(thread, "slow", input={"seconds": 30})
    await until_asleep(client, thread)
    values = await client.runs.wait(thread, "echo", input={"text": "new"}, multitask_strategy="rollback")
    assert values["items"] == ["echo"]
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, old["run_id"])


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_of_runs_created_at_once_the_newest_alone_goes_on(client, strategy):
    for _ in range(10):
        thread = (await client.threads.create())["thread_id"]
        news = [
            client.runs.create(thread, "slow", input={"seconds": 0.3}, multitask_strategy=strategy) for _ in range(3)
        ]
        made = sorted(run["run_id"] for run in await asyncio.gather(*news))
        await asyncio.gather(*(client.runs.join(thread, run_id) for run_id in made))
        ended = await client.runs.list(thread)
        assert [run["run_id"] for run in ended if run["status"] == "success"] == [made[-1]]


async def test_runs_of_different_threads_run_at_once(client):
    begun = time.monotonic()
    waits = [client.runs.wait(None, "slow", input={"items": [n], "seconds": 1}) for n in range(6)]
    ended = await asyncio.gather(*waits)
    assert [values["items"] for values in ended] == [[n, "counted", "slept", "echo"] for n in range(6)]
    assert time.monotonic() - begun < 4
