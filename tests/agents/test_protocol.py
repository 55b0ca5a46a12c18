"""The thread-centric protocol, as seen by a page that follows a thread: through the official client and on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.serving import Server

ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "tasks", "custom", "checkpoints"]


# The client leaves the connection of a stream that it no longer reads to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_client_starts_a_run_and_reads_its_values_messages_and_output(client: LangGraphClient):
    async with client.threads.stream(assistant_id="tokens") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "hi"}]})
        messages = [message async for message in thread.messages]
        texts = [await message.text for message in messages]
        output = await thread.output
    assert texts == ["one two three"]
    assert output["messages"][-1]["content"] == [{"type": "text", "text": "one two three", "index": 0}]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_client_answers_an_interrupt(client: LangGraphClient):
    async with client.threads.stream(assistant_id="ask") as thread:
        await thread.run.start(input={"text": "x"})
        async with asyncio.timeout(30):
            while not thread.interrupted:  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.05)
        assert thread.interrupts[0]["value"] == {"question": "Which?"}
        await thread.run.respond("that one")
        output = await asyncio.wait_for(_output(thread), 30)
    assert output["items"] == ["that one", "echo"]


async def _output(thread: Any) -> Any:
    return await thread.output


# --- on the wire ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


async def command(http: httpx.AsyncClient, thread: str, method: str, **params: Any) -> Any:
    answer = await http.post(f"/threads/{thread}/commands", json={"id": 7, "method": method, "params": params})
    assert answer.status_code == 200
    assert answer.json()["id"] == 7
    return answer.json()


async def start(http: httpx.AsyncClient, thread: str, graph: str, given: Any, **more: Any) -> str:
    answer = await command(http, thread, "run.start", assistant_id=graph, input=given, **more)
    assert answer["type"] == "success", answer
    return str(answer["result"]["run_id"])


@asynccontextmanager
async def events(http: httpx.AsyncClient, thread: str, **request: Any) -> AsyncIterator[AsyncIterator[Any]]:
    body = {"channels": ALL, **request}
    async with http.stream("POST", f"/threads/{thread}/stream/events", json=body) as answer:
        assert answer.status_code == 200
        yield (json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: "))


def is_end(event: Any) -> bool:
    outcome = event["params"]["data"].get("event") if event["method"] == "lifecycle" else None
    return event["params"]["namespace"] == [] and outcome in ("completed", "failed", "interrupted")


async def until_end(stream: AsyncIterator[Any]) -> list[Any]:
    found = []
    async with asyncio.timeout(60):
        async for event in stream:
            found.append(event)
            if is_end(event):
                break
    return found


def told(events: list[Any], method: str) -> list[Any]:
    return [event["params"]["data"] for event in events if event["method"] == method]


async def test_a_run_begins_and_ends_with_its_lifecycle_and_messages_come_in_blocks(http: httpx.AsyncClient):
    thread = str(uuid4())
    run_id = await start(http, thread, "tokens", {"messages": [{"role": "user", "content": "hi"}]})
    async with events(http, thread) as stream:
        seen = await until_end(stream)
    lifecycle = told(seen, "lifecycle")
    assert [data["event"] for data in lifecycle] == ["running", "completed"]
    assert {data["run_id"] for data in lifecycle} == {run_id}
    assert [data["event"] for data in told(seen, "messages")] == [
        "message-start",
        "content-block-start",
        *["content-block-delta"] * 3,
        "content-block-finish",
        "message-finish",
    ]
    text = "".join(data["delta"]["text"] for data in told(seen, "messages") if "delta" in data)
    assert text == "one two three"
    assert told(seen, "updates")[0]["node"] == "talk"
    with_checkpoint = [event["params"]["checkpoint"] for event in seen if event["method"] == "values"]
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert with_checkpoint[-1]["id"] == state["checkpoint_id"]
    numbers = [event["seq"] for event in seen]
    assert numbers == sorted(set(numbers))
    assert [event["event_id"] for event in seen] == [str(number) for number in numbers]


async def test_who_leaves_after_any_event_and_comes_back_misses_none_and_sees_none_twice(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "tokens", {"messages": [{"role": "user", "content": "hi"}]})
    async with events(http, thread) as stream:
        whole = await until_end(stream)
    for cut in range(len(whole) - 1):
        async with events(http, thread, since=whole[cut]["seq"]) as stream:
            rest = await until_end(stream)
        assert [event["seq"] for event in rest] == [event["seq"] for event in whole[cut + 1 :]]
        assert rest[:-1] == whole[cut + 1 : -1]  # the reader sets the time of the end


async def test_several_who_follow_a_thread_see_the_same_from_one_run_to_the_next(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "slow", {"seconds": 0.5})
    async with events(http, thread) as one, events(http, thread) as other:
        first = await until_end(one), await until_end(other)
        assert first[0][:-1] == first[1][:-1]
        await start(http, thread, "pair", {"text": "x"})
        second = await until_end(one), await until_end(other)
        assert second[0][:-1] == second[1][:-1]
    assert [list(data["values"]) for data in told(second[0], "updates")] == [["text", "items"], ["text", "items"]]


PLAIN_MODES = ["values", "updates", "custom", "tasks", "checkpoints", "messages-tuple"]


async def test_a_run_of_the_older_endpoints_is_shown_from_each_of_its_events_on(http: httpx.AsyncClient):
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    new = {"assistant_id": "ask", "input": {"text": "x"}, "stream_mode": PLAIN_MODES, "stream_resumable": True}
    run_id = (await http.post(f"/threads/{thread}/runs", json=new)).json()["run_id"]
    async with events(http, thread) as stream:
        whole = await until_end(stream)
    assert [data["event"] for data in told(whole, "lifecycle")] == ["running", "interrupted"]
    assert {data["run_id"] for data in told(whole, "lifecycle")} == {run_id}
    [asked] = told(whole, "input.requested")
    assert asked["payload"] == {"question": "Which?"}
    assert told(whole, "values")[0]["text"] == "x"
    assert told(whole, "tasks")
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert told(whole, "checkpoints")[-1]["id"] == state["checkpoint_id"]
    assert [event["seq"] for event in whole] == sorted({event["seq"] for event in whole})
    for cut in range(len(whole) - 1):
        async with events(http, thread, since=whole[cut]["seq"]) as stream:
            rest = await until_end(stream)
        assert [event["seq"] for event in rest] == [event["seq"] for event in whole[cut + 1 :]]
        assert rest[:-1] == whole[cut + 1 : -1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_client_follows_a_run_that_another_program_started_by_an_older_endpoint(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    async with client.threads.stream(thread_id, assistant_id="ask") as thread:
        await client.runs.create(thread_id, "ask", input={"text": "x"}, stream_resumable=True)
        async with asyncio.timeout(30):
            while not thread.interrupted:  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.05)
        assert thread.interrupts[0]["value"] == {"question": "Which?"}
        await thread.run.respond("that one")
        output = await asyncio.wait_for(_output(thread), 30)
    assert output["items"] == ["that one", "echo"]


async def test_an_interrupt_is_asked_and_answered_and_a_wrong_answer_is_refused(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "ask", {"text": "x"})
    async with events(http, thread, channels=["lifecycle", "input"]) as stream:
        seen = await until_end(stream)
        assert {event["method"] for event in seen} == {"lifecycle", "input.requested"}
        [asked] = told(seen, "input.requested")
        assert asked["payload"] == {"question": "Which?"}
        assert told(seen, "lifecycle")[-1]["event"] == "interrupted"
        wrong = await command(http, thread, "input.respond", interrupt_id="0" * 32, response=1, namespace=[])
        assert (wrong["type"], wrong["error"]) == ("error", "no_such_interrupt")
        answer = {"interrupt_id": asked["interrupt_id"], "namespace": [], "response": "this"}
        assert (await command(http, thread, "input.respond", responses=[answer]))["type"] == "success"
        assert told(await until_end(stream), "lifecycle")[-1]["event"] == "completed"
    assert (await command(http, thread, "state.get", namespace=[], keys=["items"]))["result"]["values"] == {
        "items": ["this", "echo"]
    }


async def test_a_run_that_fails_says_so(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "raises", {"text": "x"})
    async with events(http, thread) as stream:
        end = told(await until_end(stream), "lifecycle")[-1]
    assert end["event"] == "failed"
    assert end["error"]


CALL = {"name": "leak", "args": {}, "id": "a call"}


@pytest.mark.parametrize(
    ("graph", "given", "method", "field"),
    [
        ("uses_tools", {"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]}, "tools", "message"),
        ("leaks_inside", {"text": "x"}, "lifecycle", "error"),
    ],
    ids=["tool", "subgraph"],
)
async def test_a_private_message_is_shown_to_nobody(
    http: httpx.AsyncClient, graph: str, given: Any, method: str, field: str
):
    thread = str(uuid4())
    await start(http, thread, graph, given)
    async with events(http, thread) as stream:
        seen = await until_end(stream)
    assert "An internal error occurred" in [data.get(field) for data in told(seen, method)]
    assert "hunter2" not in json.dumps(seen)


async def test_channels_namespaces_and_depth_decide_what_comes(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "nested", {"text": "x"})
    async with events(http, thread) as stream:
        whole = await until_end(stream)
    inner = [event["params"]["namespace"] for event in whole if event["params"]["namespace"]]
    assert inner
    async with events(http, thread, namespaces=[[]], depth=0) as stream:
        assert all(event["params"]["namespace"] == [] for event in await until_end(stream))
    async with events(http, thread, channels=["values", "lifecycle"], namespaces=[inner[0], []]) as stream:
        assert {event["method"] for event in await until_end(stream)} == {"values", "lifecycle"}
    started = [event for event in whole if event["method"] == "lifecycle" and event["params"]["namespace"]]
    assert started[0]["params"]["data"]["event"] == "started"


async def test_custom_events_are_chosen_by_their_channel(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "writes_custom", {"text": "x"})
    async with events(http, thread, channels=["custom", "lifecycle"]) as stream:
        assert told(await until_end(stream), "custom")
    async with events(http, thread, channels=["custom:other", "lifecycle"]) as stream:
        assert told(await until_end(stream), "custom") == []


async def test_a_thread_is_forked_listed_injected_into_and_drawn(http: httpx.AsyncClient):
    thread = str(uuid4())
    await start(http, thread, "pair", {"text": "x"})
    async with events(http, thread) as stream:
        await until_end(stream)
        listed = (await command(http, thread, "state.listCheckpoints", limit=10))["result"]["checkpoints"]
        assert [each["step"] for each in listed] == sorted((each["step"] for each in listed), reverse=True)
        forked = await command(http, thread, "state.fork", checkpoint_id=listed[-2]["id"], input={"text": "y"})
        assert forked["result"]["thread_id"] == thread
        await until_end(stream)
    assert (await command(http, thread, "state.get"))["result"]["values"]["text"].startswith("y")
    tree = (await command(http, thread, "agent.getTree"))["result"]["tree"]
    assert tree == {"namespace": [], "status": "completed", "graph_name": "pair", "children": []}
    unknown = await command(http, thread, "state.fork", checkpoint_id=str(uuid4()))
    assert unknown["error"] == "no_such_checkpoint"


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("run.stop", {}, "unknown_command"),
        ("subscription.subscribe", {"channels": ["values"]}, "not_supported"),
        ("run.start", {}, "invalid_argument"),
        ("run.start", {"assistant_id": "nowhere"}, "invalid_argument"),
        ("run.start", {"assistant_id": "echo", "config": 5}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "x"}, "invalid_argument"),
        ("state.get", {"namespace": "x"}, "invalid_argument"),
    ],
)
async def test_a_command_that_cannot_be_carried_out_is_answered_with_the_protocols_error(
    http: httpx.AsyncClient, method: str, params: dict[str, Any], error: str
):
    thread = str(uuid4())
    answer = await command(http, thread, method, **params)
    assert (answer["type"], answer["error"]) == ("error", error)
    assert answer["message"]
    assert (await http.get(f"/threads/{thread}")).status_code == 404  # nothing was created


@pytest.mark.parametrize("body", ["{", "[]", "{}", '{"id": -1, "method": "run.start"}', '{"id": 1}'])
async def test_a_broken_envelope_is_400(http: httpx.AsyncClient, body: str):
    answer = await http.post(f"/threads/{uuid4()}/commands", content=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["id"] is None


@pytest.mark.parametrize(
    "body",
    [{}, {"channels": []}, {"channels": ["debug"]}, {"channels": ["values"], "since": -1}, {"channels": ["custom:"]}],
)
async def test_a_stream_that_asks_for_what_is_not_there_is_refused(http: httpx.AsyncClient, body: Any):
    assert (await http.post(f"/threads/{uuid4()}/stream/events", json=body)).status_code == 422
