"""LangGraph's own RemoteGraph against a real server: a remote graph is used like a local one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from typing_extensions import TypedDict


@pytest.fixture
def remote(client: LangGraphClient, sync_client: SyncLangGraphClient) -> Any:
    """Return a remote graph by the name of a graph or the id of an assistant."""
    return lambda of, **options: RemoteGraph(of, client=client, sync_client=sync_client, **options)


@pytest.fixture
def on_thread() -> dict[str, Any]:
    """Return the config that names a new thread; the server makes the thread with the first run."""
    return {"configurable": {"thread_id": str(uuid4())}}


# --- invoke and stream --------------------------------------------------------------------------------------------


async def test_a_remote_graph_is_invoked_by_its_name(remote):
    assert remote("pair").invoke({"text": "x"}) == {"text": "xab", "items": ["a", "b"]}
    assert await remote("pair").ainvoke({"text": "x"}) == {"text": "xab", "items": ["a", "b"]}


async def test_a_remote_graph_is_invoked_by_the_id_of_an_assistant_with_its_configuration(client, remote):
    assistant = await client.assistants.create("shows_config", config={"configurable": {"mine": 1, "both": 1}})
    values = await remote(assistant["assistant_id"]).ainvoke({}, {"configurable": {"both": 2}, "tags": ["a tag"]})
    configurable = values["seen"]["configurable"]
    assert (configurable["mine"], configurable["both"]) == (1, 2)
    assert configurable["assistant_id"] == assistant["assistant_id"]
    assert "a tag" in values["seen"]["tags"]


async def test_context_and_bound_configuration_reach_the_remote_graph(remote):
    values = await remote("shows_config").ainvoke({}, context={"model_name": "m"})
    assert values["seen"]["configurable"]["model_name"] == "m"
    bound = remote("shows_config").with_config({"configurable": {"model_name": "bound"}})
    assert (await bound.ainvoke({}))["seen"]["configurable"]["model_name"] == "bound"


async def test_a_thread_remembers_between_invocations(remote, on_thread):
    await remote("echo").ainvoke({"items": ["first"]}, on_thread)
    values = remote("echo").invoke({"items": ["second"]}, on_thread)
    assert values["items"] == ["first", "echo", "second", "echo"]


async def test_one_mode_streams_bare_values(remote):
    expected = [{"a": {"text": "xa", "items": ["a"]}}, {"b": {"text": "xab", "items": ["b"]}}]
    assert list(remote("pair").stream({"text": "x"})) == expected
    assert [chunk async for chunk in remote("pair").astream({"text": "x"}, stream_mode="updates")] == expected
    values = [chunk["items"] async for chunk in remote("pair").astream({"text": "x"}, stream_mode="values")]
    assert values == [[], ["a"], ["a", "b"]]


async def test_several_modes_stream_named_parts(remote):
    stream = remote("writes_custom").astream({}, stream_mode=["custom", "updates"])
    parts = [(part.event, part.data) async for part in stream]
    assert parts == [("custom", {"step": 1}), ("custom", "text"), ("updates", {"write": {"items": ["written"]}})]


async def test_messages_stream_as_chunks_with_their_metadata(remote):
    said = {"messages": [{"role": "user", "content": "hi"}]}
    chunks = [chunk async for chunk in remote("tokens").astream(said, stream_mode="messages")]
    assert "".join(message["content"] for message, _ in chunks) == "one two three"
    assert {metadata["langgraph_node"] for _, metadata in chunks} == {"talk"}
    assert all(AIMessageChunk(**message) for message, _ in chunks)


async def test_messages_of_langchain_are_taken_as_input(remote):
    values = await remote("tokens").ainvoke({"messages": [HumanMessage("hi")]})
    assert [message["type"] for message in values["messages"]] == ["human", "ai"]


async def test_subgraphs_stream_with_their_namespace(remote):
    parts = list(remote("nested").stream({"text": "x"}, stream_mode="updates", subgraphs=True))
    assert [([place.partition(":")[0] for place in namespace], [*data]) for namespace, data in parts] == [
        ([], ["before"]),
        (["inner"], ["a"]),
        (["inner"], ["b"]),
        ([], ["inner"]),
        ([], ["after"]),
    ]


async def test_the_second_form_of_the_stream_carries_interrupts(remote, on_thread):
    stream = remote("ask").astream({"text": "x"}, on_thread, stream_mode="values", version="v2")
    parts = [part async for part in stream]
    assert parts[-1]["interrupts"][0].value == {"question": "Which?"}
    output = await remote("ask").ainvoke(Command(resume="this"), on_thread, version="v2")
    assert (output.value["items"], output.interrupts) == (["this", "echo"], ())


async def test_an_error_of_the_remote_graph_is_raised_here(remote):
    with pytest.raises(RemoteException, match="boom") as caught:
        await remote("raises").ainvoke({})
    assert caught.value.args == ({"error": "ValueError", "message": "boom"},)
    with pytest.raises(RemoteException, match="boom"):
        list(remote("raises").stream({}))


# --- state --------------------------------------------------------------------------------------------------------


async def test_the_state_is_a_snapshot(remote, on_thread):
    pair = remote("pair")
    await pair.ainvoke({"text": "x"}, on_thread, interrupt_before=["b"])
    snapshot = await pair.aget_state(on_thread)
    assert (snapshot.values, snapshot.next) == ({"text": "xa", "items": ["a"]}, ("b",))
    assert snapshot.config["configurable"]["thread_id"] == on_thread["configurable"]["thread_id"]
    assert snapshot.metadata["step"] == 1
    assert [task.name for task in snapshot.tasks] == ["b"]
    assert pair.get_state(on_thread) == snapshot
    assert pair.get_state(snapshot.config).values == snapshot.values
    assert (await pair.ainvoke(None, on_thread))["text"] == "xab"


async def test_the_state_is_updated_as_a_node(remote, on_thread):
    pair = remote("pair")
    await pair.ainvoke({"text": "x"}, on_thread)
    config = pair.update_state(on_thread, {"text": "mine"}, as_node="a")
    assert pair.get_state(config).next == ("b",)
    await pair.aupdate_state(on_thread, {"text": "later"}, as_node="a")
    assert (await pair.ainvoke(None, on_thread))["text"] == "laterb"


async def test_the_history_is_newest_first_and_can_be_cut(remote, on_thread):
    pair = remote("pair")
    await pair.ainvoke({"text": "x"}, on_thread)
    history = [snapshot async for snapshot in pair.aget_state_history(on_thread)]
    assert [snapshot.next for snapshot in history] == [(), ("b",), ("a",), ("__start__",)]
    assert list(pair.get_state_history(on_thread, limit=1)) == history[:1]
    assert list(pair.get_state_history(on_thread, before=history[1].config)) == history[2:]
    assert list(pair.get_state_history(on_thread, filter={"step": 1})) == history[1:2]
    assert history[0].parent_config == history[1].config


async def test_an_old_snapshot_is_gone_back_to(remote, on_thread):
    pair = remote("pair")
    await pair.ainvoke({"text": "x"}, on_thread)
    past = next(snapshot for snapshot in pair.get_state_history(on_thread) if snapshot.next == ("b",))
    assert pair.get_state(past.config).values == {"text": "xa", "items": ["a"]}
    branch = await pair.aupdate_state(past.config, {"text": "other"})
    assert (await pair.aget_state(branch)).values["text"] == "other"
    assert (await pair.ainvoke(None, on_thread))["text"] == "otherb"


async def test_the_state_of_a_subgraph_is_reached_through_its_task(remote, on_thread):
    nested = remote("nested")
    await nested.ainvoke({"text": "x"}, on_thread)
    entered = next(snapshot for snapshot in nested.get_state_history(on_thread) if snapshot.next == ("inner",))
    (task,) = nested.get_state(entered.config, subgraphs=True).tasks
    assert task.state.values["text"] == "xaab"
    (task,) = nested.get_state(entered.config).tasks
    assert nested.get_state(task.state).values["text"] == "xaab"


async def test_a_subgraph_that_has_not_begun_has_no_state_yet(remote, on_thread):
    nested = remote("nested")
    await nested.ainvoke({"text": "x"}, on_thread, interrupt_before=["inner"])
    (task,) = nested.get_state(on_thread, subgraphs=True).tasks
    assert (task.name, task.state["configurable"]["checkpoint_ns"]) == ("inner", f"inner:{task.id}")
    assert (await nested.ainvoke(None, on_thread))["text"] == "xaab!"


async def test_the_graph_is_drawn(client, remote):
    drawn = remote("nested").get_graph()
    assert [*drawn.nodes] == ["__start__", "before", "inner", "after", "__end__"]
    assert "inner:a" in (await remote("nested").aget_graph(xray=True)).nodes
    assistant = await client.assistants.create("nested")
    assert remote(assistant["assistant_id"]).get_graph() == drawn
    assert "before" in drawn.draw_mermaid()


# --- interrupts ---------------------------------------------------------------------------------------------------


async def test_an_interrupt_is_seen_and_answered(remote, on_thread):
    ask = remote("ask")
    asked = await ask.ainvoke({"text": "x"}, on_thread)
    assert asked["__interrupt__"][0]["value"] == {"question": "Which?"}
    snapshot = await ask.aget_state(on_thread)
    assert [interrupt.value for interrupt in snapshot.interrupts] == [{"question": "Which?"}]
    assert snapshot.interrupts[0].id == asked["__interrupt__"][0]["id"]
    values = await ask.ainvoke(Command(resume="this"), on_thread)
    assert values == {"text": "x!", "items": ["this", "echo"]}


def test_a_command_updates_the_state_and_chooses_the_node(remote, on_thread):
    pair = remote("pair")
    pair.invoke({"text": "x"}, on_thread)
    assert pair.invoke(Command(update={"text": "set"}, goto="b"), on_thread)["text"] == "setb"


# --- as a node of a local graph -----------------------------------------------------------------------------------


class State(TypedDict, total=False):
    text: str
    items: list[Any]


def local_graph(node: Any) -> Any:
    """Return a local graph with a node of its own before the remote one."""
    graph = StateGraph(State).add_node("local", lambda state: {"text": state["text"] + "-"}).add_node("remote", node)
    return graph.add_edge(START, "local").add_edge("local", "remote").add_edge("remote", END).compile(InMemorySaver())


async def test_a_remote_graph_is_a_node_of_a_local_one(remote, on_thread):
    graph = local_graph(remote("pair"))
    assert (await graph.ainvoke({"text": "x"}, on_thread))["text"] == "x-ab"
    assert graph.invoke({"text": "y"}, on_thread)["text"] == "y-ab"


async def test_a_local_graph_streams_what_happens_in_its_remote_node(remote, on_thread):
    graph = local_graph(remote("pair", name="remote"))
    stream = graph.astream({"text": "x"}, on_thread, stream_mode="updates", subgraphs=True)
    parts = [(len(namespace), [*data]) async for namespace, data in stream]
    assert parts == [(0, ["local"]), (1, ["a"]), (1, ["b"]), (0, ["remote"])]


async def test_a_local_graph_streams_the_tokens_of_its_remote_node(remote, on_thread):
    class Messages(TypedDict):
        messages: list[Any]

    graph = StateGraph(Messages).add_node("remote", remote("tokens")).add_edge(START, "remote").compile()
    said = {"messages": [{"role": "user", "content": "hi"}]}
    stream = graph.astream(said, on_thread, stream_mode="messages", subgraphs=True)
    chunks = [message async for _, (message, _) in stream]
    assert "".join(chunk["content"] for chunk in chunks if chunk["type"] == "AIMessageChunk") == "one two three"


async def test_an_interrupt_of_a_remote_node_interrupts_the_local_graph(remote, on_thread):
    graph = local_graph(remote("ask"))
    asked = await graph.ainvoke({"text": "x"}, on_thread)
    (interrupt,) = asked["__interrupt__"]
    assert interrupt.value == {"question": "Which?"}
    assert (await graph.aget_state(on_thread)).next == ("remote",)


async def test_an_error_of_a_remote_node_is_raised_by_the_local_graph(remote, on_thread):
    with pytest.raises(RemoteException, match="boom"):
        await local_graph(remote("raises")).ainvoke({"text": "x"}, on_thread)
