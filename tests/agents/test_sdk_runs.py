"""The official Python SDK, unmodified, against a real server: runs on threads, their failures and interrupts."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import BadRequestError, NotFoundError, UnprocessableEntityError

from tests.agents.sdk import collect, system_id


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


async def test_limits_and_the_name_of_a_configuration_reach_the_graph(client):
    config = {"max_concurrency": 2, "run_name": "Mine"}
    assistant = (await client.assistants.create("shows_config", config={"max_concurrency": 3}))["assistant_id"]
    assert (await client.runs.wait(None, assistant, input={}))["seen"]["max_concurrency"] == 3
    assert (await client.runs.wait(None, assistant, input={}, config=config))["seen"]["max_concurrency"] == 2
    events = await collect(client.runs.stream(None, "echo", input={}, config=config, stream_mode="events"))
    assert events[1][1]["name"] == "Mine"


async def test_context_reaches_the_graph(client):
    values = await client.runs.wait(None, "shows_config", input={}, context={"model_name": "m"})
    assert values["seen"]["configurable"]["model_name"] == "m"
    with pytest.raises(BadRequestError, match="Cannot specify both"):
        await client.runs.create(None, "echo", config={"configurable": {"a": 1}}, context={"b": 2})


@pytest.mark.parametrize(
    "of_assistant", [{"context": {"flavour": "sweet"}}, {"config": {"configurable": {"flavour": "sweet"}}}]
)
async def test_the_configuration_of_a_run_wins_over_the_context_of_its_assistant(client, of_assistant):
    assistant = (await client.assistants.create("tastes", **of_assistant))["assistant_id"]
    sour = {"flavour": "sour"}
    for of_run, flavour in (({}, "sweet"), ({"context": sour}, "sour"), ({"config": {"configurable": sour}}, "sour")):
        assert (await client.runs.wait(None, assistant, input={}, **of_run))["text"] == flavour
    assistant = (await client.assistants.create("shows_config", **of_assistant))["assistant_id"]
    values = await client.runs.wait(None, assistant, input={}, context=sour)
    assert values["seen"]["configurable"]["flavour"] == "sour"


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
    pairs = [("text", "pair"), ("items", ["one"]), ("items", ["two"])]
    values = await client.runs.wait(thread, "pair", command={"update": pairs, "goto": "b"})
    assert (values["text"], values["items"][-3:]) == ("pairb", ["one", "two", "b"])


@pytest.mark.parametrize("where", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}, {"interrupt_after": "*"}])
async def test_a_run_stops_where_it_was_told_to_and_goes_on_without_input(client, thread, where):
    events = await collect(client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode="updates", **where))
    assert [data for _, data in events[1:]] == [{"a": {"text": "xa", "items": ["a"]}}, {"__interrupt__": []}]
    assert (await client.threads.get(thread))["status"] == "interrupted"
    assert (await client.runs.wait(thread, "pair", input=None))["text"] == "xab"
    assert (await client.threads.get(thread))["status"] == "idle"


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
