"""The official Python SDK, unmodified, against a real server: threads, their state and history."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import BadRequestError, ConflictError, NotFoundError


async def test_a_thread_starts_empty_and_idle(client, mark):
    made = await client.threads.create(metadata=mark)
    assert (made["status"], made["values"], made["metadata"]) == ("idle", None, mark)
    assert await client.threads.get(made["thread_id"]) == made
    state = await client.threads.get_state(made["thread_id"])
    assert (state["values"], state["next"], state["tasks"], state["checkpoint"]) == ({}, [], [], None)
    assert await client.threads.get_history(made["thread_id"]) == []


async def test_a_thread_id_is_taken_once(client):
    chosen = str(uuid4())
    first = await client.threads.create(thread_id=chosen, metadata={"n": 1})
    with pytest.raises(ConflictError, match=chosen):
        await client.threads.create(thread_id=chosen)
    again = await client.threads.create(thread_id=chosen, metadata={"n": 2}, if_exists="do_nothing")
    assert again == first


async def test_a_thread_can_be_made_with_a_past(client):
    made = await client.threads.create(
        graph_id="pair",
        supersteps=[
            {"updates": [{"values": {"text": "old ", "items": ["given"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"text": "old a"}, "as_node": "a"}]},
        ],
    )
    state = await client.threads.get_state(made["thread_id"])
    assert (state["values"], state["next"]) == ({"text": "old a", "items": ["given"]}, ["b"])
    assert (await client.runs.wait(made["thread_id"], "pair", input=None))["text"] == "old ab"


async def test_threads_are_found_by_metadata_values_status_and_id(client, mark):
    ready = await client.threads.create(metadata={**mark, "kind": "ready"})
    asked = await client.threads.create(metadata={**mark, "kind": "asked"})
    empty = await client.threads.create(metadata={**mark, "kind": "empty"})
    await client.runs.wait(ready["thread_id"], "echo", input={"text": "hi"})
    await client.runs.wait(asked["thread_id"], "ask", input={"text": "hi"})

    async def kinds(**search: Any) -> set[str]:
        return {found["metadata"]["kind"] for found in await client.threads.search(metadata=mark, **search)}

    assert await kinds() == {"ready", "asked", "empty"}
    assert await kinds(status="interrupted") == {"asked"}
    assert await kinds(status="idle") == {"ready", "empty"}
    assert await kinds(values={"text": "hi!"}) == {"ready"}
    assert await kinds(ids=[empty["thread_id"], asked["thread_id"]]) == {"empty", "asked"}
    assert await client.threads.count(metadata=mark) == 3
    assert await client.threads.count(metadata=mark, status="interrupted") == 1
    assert await client.threads.count(metadata=mark, values={"text": "hi!"}) == 1


async def test_threads_are_sorted_paged_and_cut_to_the_fields_asked_for(client, mark):
    made = [await client.threads.create(metadata={**mark, "n": n}) for n in range(3)]
    oldest = await client.threads.search(
        metadata=mark, sort_by="created_at", sort_order="asc", limit=2, select=["thread_id", "metadata"]
    )
    assert oldest == [{"thread_id": t["thread_id"], "metadata": t["metadata"]} for t in made[:2]]
    rest = await client.threads.search(metadata=mark, sort_by="created_at", sort_order="asc", offset=2)
    assert [found["thread_id"] for found in rest] == [made[2]["thread_id"]]


async def test_busy_threads_are_sorted_as_busy_whatever_is_selected(client, mark):
    waiting, asked = [(await client.threads.create(metadata=mark))["thread_id"] for _ in range(2)]
    await client.runs.wait(asked, "ask", input={"text": "x"})
    await client.runs.wait(waiting, "pair", input={"text": "x"})
    run = await client.runs.create(asked, "slow", input={"seconds": 30})
    for select in (None, ["thread_id", "status"]):
        found = await client.threads.search(metadata=mark, sort_by="status", sort_order="asc", select=select)
        assert [(row["thread_id"], row["status"]) for row in found] == [(asked, "busy"), (waiting, "idle")]
    await client.runs.cancel(asked, run["run_id"], wait=True)


async def test_a_search_extracts_values_out_of_threads(client, mark):
    thread = await client.threads.create(metadata=mark)
    await client.runs.wait(thread["thread_id"], "echo", input={"items": ["first"]})
    found = await client.threads.search(
        metadata=mark, select=["thread_id"], extract={"last": "values.items[-1]", "none": "values.nothing.here"}
    )
    assert found == [{"thread_id": thread["thread_id"], "extracted": {"last": "echo", "none": None}}]


async def test_an_update_merges_the_metadata_of_a_thread(client):
    made = await client.threads.create(metadata={"kept": 1, "new": 1})
    changed = await client.threads.update(made["thread_id"], metadata={"new": 2})
    assert changed["metadata"] == {"kept": 1, "new": 2}
    assert await client.threads.update(made["thread_id"], metadata={"new": 3}, return_minimal=True) is None
    assert (await client.threads.get(made["thread_id"]))["metadata"] == {"kept": 1, "new": 3}


async def test_a_deleted_thread_is_gone_with_its_runs(client, thread):
    run = await client.runs.create(thread, "echo", input={})
    await client.runs.join(thread, run["run_id"])
    await client.threads.delete(thread)
    for missing in (
        client.threads.get(thread),
        client.threads.get_state(thread),
        client.threads.get_history(thread),
        client.threads.update(thread, metadata={}),
        client.threads.delete(thread),
        client.runs.get(thread, run["run_id"]),
        client.runs.create(thread, "echo", input={}),
    ):
        with pytest.raises(NotFoundError):
            await missing


async def test_a_copy_has_the_history_and_goes_its_own_way(client):
    original = await client.threads.create(metadata={"from": "original"})
    await client.runs.wait(original["thread_id"], "echo", input={"items": ["shared"]})
    copy = await client.threads.copy(original["thread_id"])
    assert copy["thread_id"] != original["thread_id"]
    assert copy["metadata"]["from"] == "original"

    await client.runs.wait(copy["thread_id"], "echo", input={"items": ["of the copy"]})
    assert (await client.threads.get_state(original["thread_id"]))["values"]["items"] == ["shared", "echo"]
    copied = await client.threads.get_state(copy["thread_id"])
    assert copied["values"]["items"] == ["shared", "echo", "of the copy", "echo"]
    assert len(await client.threads.get_history(copy["thread_id"])) == 6


async def test_the_state_tells_values_what_is_next_and_where_it_is_kept(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"}, interrupt_after=["a"])
    state = await client.threads.get_state(thread)
    assert (state["values"], state["next"]) == ({"text": "xa", "items": ["a"]}, ["b"])
    assert [(task["name"], task["interrupts"], task["error"]) for task in state["tasks"]] == [("b", [], None)]
    assert state["checkpoint"]["thread_id"] == thread
    assert state["checkpoint"]["checkpoint_ns"] == ""
    assert state["checkpoint"]["checkpoint_id"] == state["checkpoint_id"]
    assert state["metadata"]["step"] == 1
    assert state["created_at"]


async def test_an_old_state_is_found_by_its_checkpoint(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"})
    first = next(state for state in await client.threads.get_history(thread) if state["next"] == ["b"])
    assert first["values"]["text"] == "xa"
    by_object = await client.threads.get_state(thread, checkpoint=first["checkpoint"])
    assert (by_object["values"], by_object["next"]) == (first["values"], ["b"])
    assert await client.threads.get_state(thread, checkpoint_id=first["checkpoint_id"]) == by_object


async def test_the_state_of_a_subgraph_is_part_of_its_task_when_asked_for(client, thread):
    await client.runs.wait(thread, "nested", input={"text": "x"})
    entered = next(state for state in await client.threads.get_history(thread) if state["next"] == ["inner"])
    state = await client.threads.get_state(thread, checkpoint=entered["checkpoint"], subgraphs=True)
    (task,) = state["tasks"]
    assert task["name"] == "inner"
    assert task["state"]["values"]["text"] == "xaab"


async def test_a_task_says_where_the_state_of_its_subgraph_is(client, thread):
    await client.runs.wait(thread, "nested", input={"text": "x"})
    entered = next(state for state in await client.threads.get_history(thread) if state["next"] == ["inner"])
    place = entered["tasks"][0]["checkpoint"]
    assert place["checkpoint_ns"].startswith("inner:")
    inner = await client.threads.get_state(thread, checkpoint=place)
    assert inner["values"]["text"] == "xaab"
    history = await client.threads.get_history(thread, checkpoint=place)
    assert [state["next"] for state in history] == [[], ["b"], ["a"], ["__start__"]]


async def test_history_is_newest_first_and_can_be_cut_and_filtered(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"}, metadata={"which": "first"})
    await client.runs.wait(thread, "pair", input={"text": "y"}, metadata={"which": "second"})
    history = await client.threads.get_history(thread, limit=100)
    assert [state["values"].get("text") for state in history] == ["yab", "ya", "y", "xab", "xab", "xa", "x", None]
    assert [state["parent_checkpoint_id"] for state in history[:-1]] == [s["checkpoint_id"] for s in history[1:]]

    assert await client.threads.get_history(thread, limit=2) == history[:2]
    assert await client.threads.get_history(thread, before=history[1]["checkpoint_id"]) == history[2:]
    assert await client.threads.get_history(thread, before=history[1]["checkpoint"], limit=1) == history[2:3]
    assert await client.threads.get_history(thread, metadata={"which": "first"}) == history[4:]
    assert await client.threads.get_history(thread, metadata={"which": "first", "step": 2}) == history[4:5]


async def test_the_state_can_be_written_as_if_by_a_node(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"})
    written = await client.threads.update_state(thread, {"text": "mine", "items": ["mine"]}, as_node="a")
    state = await client.threads.get_state(thread)
    assert written["checkpoint"]["checkpoint_id"] == state["checkpoint_id"]
    assert (state["values"], state["next"]) == ({"text": "mine", "items": ["a", "b", "mine"]}, ["b"])
    assert (await client.threads.get(thread))["values"]["text"] == "mine"
    assert (await client.runs.wait(thread, "pair", input=None))["text"] == "mineb"


async def test_a_write_into_the_past_makes_a_branch(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"})
    past = next(state for state in await client.threads.get_history(thread) if state["next"] == ["b"])
    await client.threads.update_state(thread, {"text": "other"}, checkpoint=past["checkpoint"])
    state = await client.threads.get_state(thread)
    assert (state["values"], state["next"]) == ({"text": "other", "items": ["a"]}, ["b"])
    assert state["parent_checkpoint_id"] == past["checkpoint_id"]


async def test_the_state_of_a_subgraph_can_be_written_as_if_by_its_node(client, thread):
    await client.runs.wait(thread, "nested", input={"text": "x"})
    entered = next(state for state in await client.threads.get_history(thread) if state["next"] == ["inner"])
    inside = await client.threads.get_state(thread, entered["tasks"][0]["checkpoint"])
    written = await client.threads.update_state(thread, {"text": "mine"}, as_node="a", checkpoint=inside["checkpoint"])
    state = await client.threads.get_state(thread, written["checkpoint"])
    assert (state["values"]["text"], state["next"]) == ("mine", ["b"])
    with pytest.raises(BadRequestError, match="before"):
        await client.threads.update_state(thread, {"text": "x"}, as_node="before", checkpoint=inside["checkpoint"])


async def test_a_write_needs_a_known_node_and_a_thread_that_has_a_graph(client, thread):
    with pytest.raises(BadRequestError, match="graph"):
        await client.threads.update_state(thread, {"text": "x"})
    await client.runs.wait(thread, "pair", input={"text": "x"})
    with pytest.raises(BadRequestError, match="nope"):
        await client.threads.update_state(thread, {"text": "x"}, as_node="nope")


async def test_the_state_cannot_be_written_while_a_run_is_under_way(client, thread):
    run = await client.runs.create(thread, "slow", input={"seconds": 30})
    assert (await client.threads.get(thread))["status"] == "busy"
    with pytest.raises(ConflictError):
        await client.threads.update_state(thread, {"text": "x"})
    await client.runs.cancel(thread, run["run_id"], wait=True)
