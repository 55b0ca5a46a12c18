"""The examples, served as a newcomer serves them: each does what its first lines promise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving import Server


@pytest.fixture
async def client(examples_server: Server) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=examples_server.url) as client:
        yield client


@pytest.fixture
async def thread(client: LangGraphClient) -> str:
    return (await client.threads.create())["thread_id"]


async def test_each_example_has_its_assistant(client):
    found = await client.assistants.search(metadata={"created_by": "system"})
    assert {assistant["graph_id"] for assistant in found} == {"chat", "approval", "tokens", "team"}
    assert all(assistant["description"] for assistant in found)
    assert "eb6db400-e3c8-5d06-a834-015cb89efe69" in {assistant["assistant_id"] for assistant in found}


async def test_two_assistants_take_turns_on_one_thread_and_the_second_sees_the_first(client, thread):
    (system,) = await client.assistants.search(graph_id="chat", metadata={"created_by": "system"})
    own = await client.assistants.create("chat", config={"configurable": {"model_name": "pirate"}})
    assert system["config"] == {}

    async def turn(assistant: Any, text: str) -> list[tuple[str, Any]]:
        said = {"messages": [{"role": "user", "content": text}]}
        stream = client.runs.stream(thread, assistant["assistant_id"], input=said, stream_mode=["updates"])
        return [(part.event, part.data) async for part in stream]

    first = await turn(system, "hello")
    assert [event for event, _ in first] == ["metadata", "updates"]
    assert first[0][1].keys() >= {"run_id"}
    (answer,) = first[1][1]["answer"]["messages"]
    assert (answer["type"], answer["content"]) == ("ai", "plain: you said 'hello', after 0 earlier messages")

    second = await turn(own, "and me?")
    (answer,) = second[1][1]["answer"]["messages"]
    assert answer["content"] == "pirate: you said 'and me?', after 2 earlier messages"

    messages = (await client.threads.get_state(thread))["values"]["messages"]
    assert [message["type"] for message in messages] == ["human", "ai", "human", "ai"]
    assert messages[1] == first[1][1]["answer"]["messages"][0]


async def test_the_chat_says_what_can_be_configured(client):
    (system,) = await client.assistants.search(graph_id="chat", metadata={"created_by": "system"})
    schemas = await client.assistants.get_schemas(system["assistant_id"])
    assert schemas["context_schema"]["properties"]["model_name"]["default"] == "plain"
    assert "messages" in schemas["input_schema"]["properties"]


async def test_the_chat_takes_its_persona_from_the_context_of_a_run(client, thread):
    said = {"messages": [{"role": "user", "content": "hi"}]}
    values = await client.runs.wait(thread, "chat", input=said, context={"model_name": "pirate"})
    assert values["messages"][-1]["content"].startswith("pirate: ")


@pytest.mark.parametrize("answer, done", [("yes", "launch"), ("no", "nothing")])
async def test_the_approval_waits_for_a_person_and_does_as_told(client, thread, answer, done):
    asked = await client.runs.wait(thread, "approval", input={"action": "launch"})
    assert asked["__interrupt__"][0]["value"] == {"question": "May I launch?"}
    assert (await client.threads.get(thread))["status"] == "interrupted"
    assert (await client.runs.wait(thread, "approval", command={"resume": answer}))["done"] == done


async def test_the_tokens_arrive_one_by_one(client, thread):
    said = {"messages": [{"role": "user", "content": "say it"}]}
    stream = client.runs.stream(thread, "tokens", input=said, stream_mode="messages-tuple")
    tokens = [part.data[0]["content"] async for part in stream if part.event == "messages"]
    assert "".join(tokens) == "The quick brown fox jumps over the lazy dog"
    assert len(tokens) >= 9


async def test_the_team_has_a_graph_for_a_node(client, thread):
    stream = client.runs.stream(thread, "team", input={"topic": "bees"}, stream_mode="updates", stream_subgraphs=True)
    steps = [(part.event.partition(":")[0], *part.data) async for part in stream if part.event != "metadata"]
    assert steps == [
        ("updates|research", "search"),
        ("updates|research", "read"),
        ("updates", "research"),
        ("updates", "write"),
    ]
    assert (await client.threads.get(thread))["values"]["report"] == "found bees; read about bees"
