"""The official Python SDK, unmodified, against a real server: what an application does with assistants, threads, runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import BadRequestError, ConflictError, NotFoundError, UnprocessableEntityError


@pytest.fixture
async def thread(client: LangGraphClient) -> str:
    """The id of a new thread."""
    return (await client.threads.create())["thread_id"]


@pytest.fixture
def mark() -> dict[str, str]:
    """Metadata that nothing else on the server carries."""
    return {"mark": uuid4().hex}


def system_id(graph: str) -> str:
    return str(uuid5(UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), graph))


async def collect(stream: AsyncIterator[Any]) -> list[tuple[str, Any]]:
    return [(part.event, part.data) async for part in stream]


async def until_asleep(client: LangGraphClient, thread: str) -> None:
    """Returns when the graph `slow` has taken its first step and is in its second."""
    deadline = time.monotonic() + 10
    while (await client.threads.get_state(thread))["next"] != ["sleep"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# --- assistants ---------------------------------------------------------------------------------------------------


async def test_every_graph_has_a_system_assistant_whose_id_anybody_can_compute(client):
    found = await client.assistants.search(metadata={"created_by": "system"}, limit=100)
    assert {"echo", "pair", "nested", "broken"} <= {assistant["graph_id"] for assistant in found}
    for assistant in found:
        assert assistant["assistant_id"] == system_id(assistant["graph_id"])
        assert (assistant["name"], assistant["config"], assistant["version"]) == (assistant["graph_id"], {}, 1)


async def test_the_configuration_of_an_assistant_is_also_its_context(client):
    made = await client.assistants.create("echo", config={"configurable": {"model_name": "m"}}, name="Mine")
    assert (made["graph_id"], made["name"], made["version"]) == ("echo", "Mine", 1)
    assert made["config"] == {"configurable": {"model_name": "m"}}
    assert made["context"] == {"model_name": "m"}
    assert await client.assistants.get(made["assistant_id"]) == made


async def test_the_context_of_an_assistant_is_also_its_configuration(client):
    made = await client.assistants.create("echo", context={"model_name": "m"}, description="What for")
    assert (made["name"], made["description"]) == ("Untitled", "What for")
    assert made["context"] == {"model_name": "m"}
    assert made["config"] == {"configurable": {"model_name": "m"}}


async def test_configuration_and_context_together_are_refused(client):
    with pytest.raises(BadRequestError, match="Cannot specify both"):
        await client.assistants.create("echo", config={"configurable": {"a": 1}}, context={"b": 2})


async def test_an_assistant_needs_a_graph_that_is_served(client):
    with pytest.raises(NotFoundError, match="nope"):
        await client.assistants.create("nope")


async def test_an_assistant_id_is_taken_once(client):
    chosen = str(uuid4())
    first = await client.assistants.create("echo", assistant_id=chosen, name="First")
    with pytest.raises(ConflictError, match=chosen):
        await client.assistants.create("echo", assistant_id=chosen, name="Second")
    again = await client.assistants.create("echo", assistant_id=chosen, name="Second", if_exists="do_nothing")
    assert first["assistant_id"] == chosen
    assert again == first


async def test_assistants_are_found_by_what_they_carry(client, mark):
    echo = await client.assistants.create("echo", metadata={**mark, "nested": {"a": 1, "b": 2}}, name="The Echo")
    pair = await client.assistants.create("pair", metadata=mark, name="The pair")

    async def ids(**search: Any) -> list[str]:
        return [found["assistant_id"] for found in await client.assistants.search(**search)]

    assert await ids(metadata=mark) == [pair["assistant_id"], echo["assistant_id"]]
    assert await ids(metadata=mark, graph_id="echo") == [echo["assistant_id"]]
    assert await ids(metadata=mark, name="the E") == [echo["assistant_id"]]
    assert await ids(metadata={**mark, "nested": {"a": 1}}) == [echo["assistant_id"]]
    assert await ids(metadata={**mark, "nested": {"a": 2}}) == []
    assert await client.assistants.count(metadata=mark) == 2
    assert await client.assistants.count(metadata=mark, graph_id="pair") == 1
    assert await client.assistants.count(metadata=mark, name="echo") == 1


async def test_assistants_are_sorted_paged_and_cut_to_the_fields_asked_for(client, mark):
    for name in ("b", "a", "c"):
        await client.assistants.create("echo", metadata=mark, name=name)
    by_name: dict[str, Any] = {"metadata": mark, "sort_by": "name", "sort_order": "asc"}
    page = await client.assistants.search(**by_name, limit=2, select=["name"], response_format="object")
    assert page["assistants"] == [{"name": "a"}, {"name": "b"}]
    last = await client.assistants.search(**by_name, offset=int(page["next"]), response_format="object")
    assert [assistant["name"] for assistant in last["assistants"]] == ["c"]
    assert last["next"] is None


async def test_an_update_makes_a_version_and_merges_metadata(client):
    made = await client.assistants.create("echo", config={"configurable": {"a": 1}}, metadata={"kept": 1, "new": 1})
    changed = await client.assistants.update(
        made["assistant_id"], config={"configurable": {"b": 2}}, metadata={"new": 2}, name="Renamed"
    )
    assert (changed["version"], changed["name"], changed["graph_id"]) == (2, "Renamed", "echo")
    assert changed["metadata"] == {"kept": 1, "new": 2}
    assert changed["config"] == {"configurable": {"b": 2}}
    assert changed["context"] == {"b": 2}
    assert await client.assistants.get(made["assistant_id"]) == changed


async def test_versions_are_listed_newest_first_and_each_can_be_the_latest_again(client):
    made = await client.assistants.create("echo", context={"n": 1}, name="one")
    await client.assistants.update(made["assistant_id"], graph_id="pair", context={"n": 2}, name="two")
    versions = await client.assistants.get_versions(made["assistant_id"])
    assert [(v["version"], v["graph_id"], v["name"]) for v in versions] == [(2, "pair", "two"), (1, "echo", "one")]
    assert [v["version"] for v in await client.assistants.get_versions(made["assistant_id"], limit=1, offset=1)] == [1]

    old = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (old["version"], old["graph_id"], old["name"], old["context"]) == (1, "echo", "one", {"n": 1})
    assert (await client.assistants.get(made["assistant_id"]))["version"] == 1
    third = await client.assistants.update(made["assistant_id"], name="three")
    assert (third["version"], third["graph_id"]) == (3, "echo")


async def test_a_run_uses_the_latest_version_of_its_assistant(client):
    made = await client.assistants.create("shows_config", config={"configurable": {"n": 1}})
    await client.assistants.update(made["assistant_id"], config={"configurable": {"n": 2}})
    values = await client.runs.wait(None, made["assistant_id"], input={})
    assert values["seen"]["configurable"]["n"] == 2


async def test_a_version_that_was_never_made_cannot_be_the_latest(client):
    made = await client.assistants.create("echo")
    with pytest.raises(NotFoundError):
        await client.assistants.set_latest(made["assistant_id"], 7)


async def test_the_graph_of_an_assistant_is_drawn_by_name_and_by_id(client):
    drawn = await client.assistants.get_graph("nested")
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "before", "inner", "after", "__end__"]
    assert {"source": "before", "target": "inner"} in drawn["edges"]
    assert await client.assistants.get_graph(system_id("nested")) == drawn


async def test_a_drawing_looks_into_subgraphs_when_asked(client):
    drawn = await client.assistants.get_graph("nested", xray=True)
    assert {"inner:a", "inner:b"} <= {node["id"] for node in drawn["nodes"]}


async def test_the_schemas_of_an_assistant_are_json_schemas(client):
    made = await client.assistants.create("echo")
    schemas = await client.assistants.get_schemas(made["assistant_id"])
    assert schemas["graph_id"] == "echo"
    for kind in ("input_schema", "output_schema", "state_schema"):
        assert schemas[kind]["type"] == "object"
        assert {"text", "items"} <= schemas[kind]["properties"].keys()
    assert schemas["config_schema"] == {}
    assert schemas["context_schema"] is None


async def test_subgraphs_are_listed_by_namespace(client):
    nested = system_id("nested")
    found = await client.assistants.get_subgraphs(nested)
    assert found.keys() == {"inner"}
    assert "text" in found["inner"]["input_schema"]["properties"]
    assert await client.assistants.get_subgraphs(nested, namespace="inner", recurse=True) == found
    assert await client.assistants.get_subgraphs(nested, namespace="nowhere") == {}


async def test_a_deleted_assistant_is_gone(client):
    made = await client.assistants.create("echo")
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.update(made["assistant_id"], name="Late")


async def test_an_assistant_can_be_deleted_with_its_threads(client, thread):
    made = await client.assistants.create("echo")
    await client.runs.wait(thread, made["assistant_id"], input={"text": "hi"})
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)


async def test_a_system_assistant_is_there_again_after_its_deletion(client):
    system = system_id("described")
    await client.assistants.update(system, name="Changed")
    await client.assistants.delete(system)
    found = await client.assistants.get(system)
    assert (found["name"], found["version"], found["metadata"]) == ("described", 1, {"created_by": "system"})
    assert found["description"] == "An echo with a description."


# --- threads ------------------------------------------------------------------------------------------------------


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


# --- runs: create, wait, join, list -------------------------------------------------------------------------------


async def test_wait_gives_the_last_values_and_tells_the_ids_first(client, thread):
    created: list[Any] = []
    values = await client.runs.wait(thread, "pair", input={"text": "x"}, on_run_created=created.append)
    assert values == {"text": "xab", "items": ["a", "b"]}
    assert created[0]["thread_id"] == thread
    run = await client.runs.get(thread, created[0]["run_id"])
    assert (run["status"], run["assistant_id"]) == ("success", system_id("pair"))
    found = await client.threads.get(thread)
    assert (found["status"], found["values"], found["metadata"]["graph_id"]) == ("idle", values, "pair")


async def test_a_background_run_is_joined_while_it_runs_and_after(client, thread, mark):
    created: list[Any] = []
    run = await client.runs.create(thread, "slow", input={"seconds": 0.3}, metadata=mark, on_run_created=created.append)
    assert run["status"] in {"pending", "running"}
    assert (run["thread_id"], run["metadata"] | mark) == (thread, run["metadata"])
    assert created == [{"run_id": run["run_id"], "thread_id": thread}]
    values = await client.runs.join(thread, run["run_id"])
    assert values["items"] == ["counted", "slept", "echo"]
    assert await client.runs.join(thread, run["run_id"]) == values
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "success"


async def test_runs_of_a_thread_are_listed_newest_first(client, thread):
    good = await client.runs.create(thread, "echo", input={})
    bad = await client.runs.create(thread, "raises", input={})
    await client.runs.join(thread, bad["run_id"])
    listed = await client.runs.list(thread)
    assert [(run["run_id"], run["status"]) for run in listed] == [
        (bad["run_id"], "error"),
        (good["run_id"], "success"),
    ]
    assert [run["run_id"] for run in await client.runs.list(thread, status="error")] == [bad["run_id"]]
    assert [run["run_id"] for run in await client.runs.list(thread, limit=1, offset=1)] == [good["run_id"]]
    assert await client.runs.list(thread, limit=1, select=["run_id", "status"]) == [
        {"run_id": bad["run_id"], "status": "error"}
    ]


async def test_a_deleted_run_is_gone_and_the_thread_keeps_its_state(client, thread):
    run = await client.runs.create(thread, "echo", input={"text": "hi"})
    await client.runs.join(thread, run["run_id"])
    await client.runs.delete(thread, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.delete(thread, run["run_id"])
    assert (await client.threads.get_state(thread))["values"]["text"] == "hi!"


async def test_a_run_can_make_its_thread(client):
    chosen = str(uuid4())
    with pytest.raises(NotFoundError):
        await client.runs.create(chosen, "echo", input={})
    values = await client.runs.wait(chosen, "echo", input={"text": "hi"}, if_not_exists="create")
    assert values["text"] == "hi!"
    assert (await client.threads.get(chosen))["status"] == "idle"


async def test_a_run_needs_an_assistant_that_exists(client, thread):
    with pytest.raises(UnprocessableEntityError, match="Invalid assistant: 'nope'"):
        await client.runs.create(thread, "nope", input={})
    with pytest.raises(NotFoundError):
        await client.runs.create(thread, str(uuid4()), input={})


async def test_a_run_can_start_later(client, thread):
    begun = time.monotonic()
    run = await client.runs.create(thread, "echo", input={"text": "hi"}, after_seconds=1)
    assert run["status"] == "pending"
    assert (await client.runs.join(thread, run["run_id"]))["text"] == "hi!"
    assert 1 <= time.monotonic() - begun < 5


async def test_configuration_metadata_and_tags_reach_the_graph(client, thread, mark):
    assistant = await client.assistants.create("shows_config", config={"configurable": {"mine": 1, "both": 1}})
    values = await client.runs.wait(
        thread,
        assistant["assistant_id"],
        input={},
        config={"configurable": {"both": 2}, "tags": ["a tag"]},
        metadata=mark,
    )
    configurable, metadata = values["seen"]["configurable"], values["seen"]["metadata"]
    assert (configurable["mine"], configurable["both"]) == (1, 2)
    assert configurable["thread_id"] == thread
    assert configurable["assistant_id"] == assistant["assistant_id"]
    assert configurable["graph_id"] == "shows_config"
    assert metadata["mark"] == mark["mark"]
    assert metadata["run_id"] == configurable["run_id"]
    assert "a tag" in values["seen"]["tags"]


async def test_context_reaches_the_graph(client):
    values = await client.runs.wait(None, "shows_config", input={}, context={"model_name": "m"})
    assert values["seen"]["configurable"]["model_name"] == "m"
    with pytest.raises(BadRequestError, match="Cannot specify both"):
        await client.runs.create(None, "echo", config={"configurable": {"a": 1}}, context={"b": 2})


@pytest.mark.parametrize("durability, checkpoints", [("sync", 4), ("async", 4), ("exit", 1)])
async def test_a_run_keeps_as_many_checkpoints_as_asked_for(client, thread, durability, checkpoints):
    await client.runs.wait(thread, "pair", input={"text": "x"}, durability=durability)
    assert len(await client.threads.get_history(thread)) == checkpoints


async def test_a_recursion_limit_ends_a_graph_that_does_not(client, thread):
    ended = await client.runs.wait(thread, "endless", input={}, config={"recursion_limit": 5}, raise_error=False)
    assert ended["__error__"]["error"] == "GraphRecursionError"


async def test_a_run_can_start_from_an_old_checkpoint(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"})
    past = next(state for state in await client.threads.get_history(thread) if state["next"] == ["b"])
    events = await collect(
        client.runs.stream(thread, "pair", input=None, checkpoint=past["checkpoint"], stream_mode="updates")
    )
    assert [data for event, data in events if event == "updates"] == [{"b": {"text": "xab", "items": ["b"]}}]


# --- runs: streams ------------------------------------------------------------------------------------------------


async def test_a_stream_begins_with_the_run_id_and_gives_values_after_each_step(client, thread):
    created: list[Any] = []
    events = await collect(client.runs.stream(thread, "pair", input={"text": "x"}, on_run_created=created.append))
    assert events[0] == ("metadata", {"run_id": created[0]["run_id"], "attempt": 1})
    assert created[0]["thread_id"] == thread
    assert events[1:] == [
        ("values", {"text": "x", "items": []}),
        ("values", {"text": "xa", "items": ["a"]}),
        ("values", {"text": "xab", "items": ["a", "b"]}),
    ]


async def test_a_stream_of_updates_names_the_nodes(client, thread):
    events = await collect(client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode="updates"))
    assert events[1:] == [
        ("updates", {"a": {"text": "xa", "items": ["a"]}}),
        ("updates", {"b": {"text": "xab", "items": ["b"]}}),
    ]


async def test_a_stream_of_message_tuples_gives_tokens_with_their_node(client, thread):
    human = {"role": "user", "content": "hi"}
    events = await collect(
        client.runs.stream(thread, "tokens", input={"messages": [human]}, stream_mode="messages-tuple")
    )
    chunks = [data for event, data in events if event == "messages"]
    assert "".join(message["content"] for message, _ in chunks) == "one two three"
    assert {(message["type"], metadata["langgraph_node"]) for message, metadata in chunks} == {
        ("AIMessageChunk", "talk")
    }


async def test_a_stream_of_messages_accumulates_each_message(client, thread):
    human = {"role": "user", "content": "hi"}
    events = await collect(client.runs.stream(thread, "tokens", input={"messages": [human]}, stream_mode="messages"))
    partial = [data[0]["content"] for event, data in events if event == "messages/partial"]
    assert partial[:3] == ["one ", "one two ", "one two three"]
    assert [event for event, _ in events].index("messages/metadata") < [event for event, _ in events].index(
        "messages/partial"
    )


async def test_a_stream_of_several_modes_keeps_the_order_of_the_graph(client, thread):
    modes = ["updates", "values", "custom"]
    events = await collect(client.runs.stream(thread, "writes_custom", input={}, stream_mode=modes))
    assert events[1:] == [
        ("custom", {"step": 1}),
        ("custom", "text"),
        ("updates", {"write": {"items": ["written"]}}),
        ("values", {"items": ["written"]}),
    ]


async def test_a_stream_of_subgraphs_names_their_namespace(client, thread):
    events = await collect(
        client.runs.stream(thread, "nested", input={"text": "x"}, stream_mode="updates", stream_subgraphs=True)
    )
    assert [(event.partition(":")[0], [*data]) for event, data in events[1:]] == [
        ("updates", ["before"]),
        ("updates|inner", ["a"]),
        ("updates|inner", ["b"]),
        ("updates", ["inner"]),
        ("updates", ["after"]),
    ]


async def test_the_second_form_of_the_stream_tells_type_and_namespace(client, thread):
    stream = client.runs.stream(thread, "echo", input={"text": "hi"}, stream_mode="updates", version="v2")
    parts = [part async for part in stream]
    assert [part["type"] for part in parts] == ["metadata", "updates"]
    assert (parts[1]["ns"], parts[1]["data"]) == ([], {"echo": {"text": "hi!", "items": ["echo"]}})


async def test_a_joined_stream_gives_what_is_still_to_come(client, thread):
    run = await client.runs.create(thread, "slow", input={"seconds": 1}, stream_mode="updates")
    await until_asleep(client, thread)
    events = await collect(client.runs.join_stream(thread, run["run_id"]))
    assert [[*data] for event, data in events if event == "updates"] == [["sleep"], ["last"]]


async def test_a_resumed_stream_loses_nothing_and_repeats_nothing(client, thread):
    run = await client.runs.create(
        thread, "slow", input={"seconds": 1}, stream_mode=["updates", "values"], stream_resumable=True
    )
    seen: list[Any] = []
    while not seen or seen[-1].data.get("items") != ["counted", "slept", "echo"]:
        last = seen[-1].id if seen else "-1"
        async with aclosing(client.runs.join_stream(thread, run["run_id"], last_event_id=last)) as stream:
            seen.append(await anext(stream))  # one frame, and the connection is cut
    whole = [part async for part in client.runs.join_stream(thread, run["run_id"], last_event_id="-1")]
    assert seen == whole
    assert len({part.id for part in whole}) == len(whole)
    assert [part.event for part in whole] == ["metadata", "values", *["updates", "values"] * 3]


async def test_a_joined_stream_can_be_cut_to_some_modes(client, thread):
    run = await client.runs.create(
        thread, "pair", input={"text": "x"}, stream_mode=["updates", "values", "debug"], stream_resumable=True
    )
    await client.runs.join(thread, run["run_id"])
    only_updates = client.runs.join_stream(thread, run["run_id"], stream_mode="updates", last_event_id="-1")
    assert [event for event, _ in await collect(only_updates)] == ["updates"] * 2
    two_modes = client.runs.join_stream(thread, run["run_id"], stream_mode=["updates", "values"], last_event_id="-1")
    assert {event for event, _ in await collect(two_modes)} == {"updates", "values"}


async def test_clients_that_join_one_run_at_different_moments_all_see_the_whole(client, thread):
    run = await client.runs.create(
        thread, "endless", input={}, config={"recursion_limit": 100}, stream_mode="updates", stream_resumable=True
    )

    async def follow(delay_s: float) -> list[tuple[str, Any]]:
        await asyncio.sleep(delay_s)
        return await collect(client.runs.join_stream(thread, run["run_id"], last_event_id="-1"))

    first, *others = await asyncio.gather(*(follow(n * 0.01) for n in range(16)))
    assert [event for event, _ in first] == ["metadata", *["updates"] * 100, "error"]
    for other in others:
        assert other == first


async def test_a_client_that_hangs_up_leaves_its_run_alone(client, thread):
    async with aclosing(client.runs.stream(thread, "slow", input={"seconds": 0.5})) as stream:
        run_id = (await anext(stream)).data["run_id"]
    assert (await client.runs.join(thread, run_id))["items"] == ["counted", "slept", "echo"]


async def test_a_client_that_hangs_up_can_end_its_run(client, thread):
    stream = client.runs.stream(thread, "slow", input={"seconds": 30}, on_disconnect="cancel")
    async with aclosing(stream):
        run_id = (await anext(stream)).data["run_id"]
    await client.runs.join(thread, run_id)
    assert (await client.runs.get(thread, run_id))["status"] == "interrupted"


# --- runs: failures -----------------------------------------------------------------------------------------------


async def test_wait_raises_what_the_graph_raised(client, thread):
    with pytest.raises(Exception, match=r"^ValueError: boom$"):
        await client.runs.wait(thread, "raises", input={})


async def test_wait_can_give_the_failure_instead(client, thread):
    failed = await client.runs.wait(thread, "raises", input={}, raise_error=False)
    assert failed == {"__error__": {"error": "ValueError", "message": "boom"}}
    found = await client.threads.get(thread)
    assert (found["status"], found["error"]) == ("error", failed["__error__"])
    (task,) = (await client.threads.get_state(thread))["tasks"]
    assert (task["name"], "boom" in task["error"]) == ("bad", True)


async def test_a_stream_ends_with_the_failure(client, thread):
    events = await collect(client.runs.stream(thread, "raises", input={}, stream_mode="updates"))
    assert [event for event, _ in events] == ["metadata", "updates", "error"]
    assert events[-1][1] == {"error": "ValueError", "message": "boom"}
    run = await client.runs.get(thread, events[0][1]["run_id"])
    assert run["status"] == "error"
    assert await client.runs.join(thread, run["run_id"]) == {"__error__": events[-1][1]}


async def test_the_text_of_an_unknown_error_is_kept_from_the_caller(client, thread):
    failed = await client.runs.wait(thread, "leaks", input={}, raise_error=False)
    assert failed == {"__error__": {"error": "PrivateError", "message": "An internal error occurred"}}


async def test_a_thread_goes_on_after_a_failure(client, thread):
    await client.runs.wait(thread, "raises", input={"text": "x"}, raise_error=False)
    values = await client.runs.wait(thread, "pair", input={"text": "y"})
    assert values["text"] == "yab"
    found = await client.threads.get(thread)
    assert (found["status"], found["error"]) == ("idle", None)


# --- runs: interrupts ---------------------------------------------------------------------------------------------


async def test_an_interrupt_waits_on_the_thread_and_is_resumed_with_an_answer(client, thread):
    asked = await client.runs.wait(thread, "ask", input={"text": "x"})
    (question,) = asked["__interrupt__"]
    assert question["value"] == {"question": "Which?"}

    found, state = await client.threads.get(thread), await client.threads.get_state(thread)
    (task,) = state["tasks"]
    assert (found["status"], state["next"], task["name"]) == ("interrupted", ["ask"], "ask")
    assert [known["id"] for known in found["interrupts"][task["id"]]] == [question["id"]]
    assert [known["id"] for known in task["interrupts"]] == [question["id"]]
    assert "__interrupt__" not in found["values"]
    assert (await client.runs.list(thread))[0]["status"] == "success"

    values = await client.runs.wait(thread, "ask", command={"resume": "this"})
    assert values == {"text": "x!", "items": ["this", "echo"]}
    found = await client.threads.get(thread)
    assert (found["status"], found["interrupts"]) == ("idle", {})


async def test_a_stream_of_updates_shows_the_interrupt(client, thread):
    events = await collect(client.runs.stream(thread, "ask", input={}, stream_mode="updates"))
    event, data = events[-1]
    assert (event, data["__interrupt__"][0]["value"]) == ("updates", {"question": "Which?"})
    resumed = await collect(client.runs.stream(thread, "ask", command={"resume": 7}, stream_mode="updates"))
    assert next(data for event, data in resumed if event == "updates") == {"ask": {"items": [7]}}


async def test_an_interrupt_is_answered_by_its_id(client, thread):
    asked = await client.runs.wait(thread, "ask_twice", input={"text": "x"})
    answer = {asked["__interrupt__"][0]["id"]: "first"}
    asked = await client.runs.wait(thread, "ask_twice", command={"resume": answer})
    assert asked["__interrupt__"][0]["value"] == "And then?"
    values = await client.runs.wait(thread, "ask_twice", command={"resume": "second"})
    assert values["items"] == ["first", "second", "echo"]


async def test_a_command_can_update_the_state_and_choose_the_node(client, thread):
    await client.runs.wait(thread, "pair", input={"text": "x"})
    values = await client.runs.wait(thread, "pair", command={"update": {"text": "set"}, "goto": "b"})
    assert values["text"] == "setb"


@pytest.mark.parametrize("where", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}, {"interrupt_after": "*"}])
async def test_a_run_stops_where_it_was_told_to_and_goes_on_without_input(client, thread, where):
    events = await collect(client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode="updates", **where))
    assert [data for _, data in events[1:]] == [{"a": {"text": "xa", "items": ["a"]}}, {"__interrupt__": []}]
    assert (await client.threads.get(thread))["status"] == "interrupted"
    assert (await client.runs.wait(thread, "pair", input=None))["text"] == "xab"
    assert (await client.threads.get(thread))["status"] == "idle"


# --- runs: cancel, and several on one thread ----------------------------------------------------------------------


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
    await asyncio.sleep(0.2)  # it has begun to wait
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
    await asyncio.sleep(0.2)  # it has begun to follow
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


async def test_runs_of_different_threads_run_at_once(client):
    begun = time.monotonic()
    waits = [client.runs.wait(None, "slow", input={"items": [n], "seconds": 1}) for n in range(6)]
    ended = await asyncio.gather(*waits)
    assert [values["items"] for values in ended] == [[n, "counted", "slept", "echo"] for n in range(6)]
    assert time.monotonic() - begun < 4


# --- runs without a thread ----------------------------------------------------------------------------------------


async def test_a_stateless_run_leaves_no_thread_behind(client):
    created: list[Any] = []
    values = await client.runs.wait(None, "pair", input={"text": "x"}, on_run_created=created.append)
    assert values["text"] == "xab"
    with pytest.raises(NotFoundError):
        await client.threads.get(created[0]["thread_id"])


async def test_a_stateless_run_can_keep_its_thread(client):
    created: list[Any] = []
    await client.runs.wait(None, "pair", input={"text": "x"}, on_completion="keep", on_run_created=created.append)
    assert (await client.threads.get_state(created[0]["thread_id"]))["values"]["text"] == "xab"


async def test_a_stateless_run_is_streamed(client):
    created: list[Any] = []
    events = await collect(
        client.runs.stream(None, "pair", input={"text": "x"}, stream_mode="updates", on_run_created=created.append)
    )
    assert events[0][1]["run_id"] == created[0]["run_id"]
    assert [[*data] for _, data in events[1:]] == [["a"], ["b"]]


async def test_a_stateless_run_in_the_background_is_followed_by_its_hidden_thread(client):
    run = await client.runs.create(None, "slow", input={"seconds": 0.5}, stream_mode="updates")
    events = await collect(client.runs.join_stream(run["thread_id"], run["run_id"]))
    assert [[*data] for event, data in events if event == "updates"][-2:] == [["sleep"], ["last"]]


async def test_a_stateless_run_fails_as_others_do(client):
    assert await client.runs.wait(None, "raises", input={}, raise_error=False) == {
        "__error__": {"error": "ValueError", "message": "boom"}
    }
    events = await collect(client.runs.stream(None, "raises", input={}, stream_mode="updates"))
    assert events[-1] == ("error", {"error": "ValueError", "message": "boom"})


async def test_stateless_runs_are_streamed_at_once(client):
    async def updates(n: int) -> list[Any]:
        stream = client.runs.stream(None, "slow", input={"items": [n], "seconds": 0.3})
        return [data for event, data in await collect(stream) if event == "values"][-1]["items"]

    assert await asyncio.gather(*map(updates, range(6))) == [[n, "counted", "slept", "echo"] for n in range(6)]


# --- the synchronous client ---------------------------------------------------------------------------------------


def test_the_synchronous_client_manages_assistants(sync_client, mark):
    made = sync_client.assistants.create("echo", context={"a": 1}, metadata=mark)
    assert sync_client.assistants.update(made["assistant_id"], name="Renamed")["version"] == 2
    (found,) = sync_client.assistants.search(metadata=mark)
    assert (found["name"], found["config"]) == ("Renamed", {"configurable": {"a": 1}})
    sync_client.assistants.delete(made["assistant_id"])
    assert sync_client.assistants.count(metadata=mark) == 0


def test_the_synchronous_client_streams_waits_and_reads_the_thread(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    parts = list(sync_client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode=["updates", "values"]))
    assert [part.event for part in parts] == ["metadata", "values", "updates", "values", "updates", "values"]
    assert sync_client.runs.wait(thread, "echo", input={"text": "y"})["text"] == "y!"
    assert sync_client.threads.get_state(thread)["values"]["items"] == ["a", "b", "echo"]
    assert len(sync_client.threads.get_history(thread, limit=3)) == 3
    with pytest.raises(Exception, match="ValueError: boom"):
        sync_client.runs.wait(thread, "raises", input={})


def test_the_synchronous_client_resumes_interrupts_and_streams(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    assert sync_client.runs.wait(thread, "ask", input={})["__interrupt__"]
    run = sync_client.runs.create(
        thread, "ask", command={"resume": "this"}, stream_mode="updates", stream_resumable=True
    )
    sync_client.runs.join(thread, run["run_id"])
    parts = list(sync_client.runs.join_stream(thread, run["run_id"], last_event_id="-1"))
    assert [part.event for part in parts] == ["metadata", "updates", "updates"]
    rest = list(sync_client.runs.join_stream(thread, run["run_id"], last_event_id=parts[0].id))
    assert rest == parts[1:]


def test_the_synchronous_client_cancels(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    run = sync_client.runs.create(thread, "slow", input={"seconds": 30})
    sync_client.runs.cancel(thread, run["run_id"], wait=True)
    assert sync_client.runs.get(thread, run["run_id"])["status"] == "interrupted"
