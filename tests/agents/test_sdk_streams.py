"""The official Python SDK, unmodified, against a real server: streams of runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tests.agents.sdk import collect, until_asleep


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


async def test_a_stream_of_tools_tells_what_a_call_does(client, thread):
    async def sound(depth_m: int) -> list[tuple[str, Any]]:
        call = {"name": "sound", "args": {"depth_m": depth_m}, "id": "a call"}
        given = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
        return (await collect(client.runs.stream(thread, "uses_tools", input=given, stream_mode="tools")))[1:]

    whose = {"toolCallId": "a call", "name": "sound"}
    started, said, ended = await sound(3)
    assert started == ("tools", {"event": "on_tool_start", **whose, "input": {"depth_m": 3}})
    assert said == ("tools", {"event": "on_tool_event", **whose, "data": "sounding"})
    output = ended[1].pop("output")
    assert (ended, output["content"]) == (("tools", {"event": "on_tool_end", **whose}), "3 m")
    *_, failed, error = await sound(-1)
    assert failed == ("tools", {"event": "on_tool_error", **whose, "error": "no water"})
    assert error == ("error", {"error": "ValueError", "message": "no water"})


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
