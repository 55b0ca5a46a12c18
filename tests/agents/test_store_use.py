"""Graphs that ask for the long-term store are found before they run; those that do not are left alone."""

# No `from __future__ import annotations`: LangGraph reads the annotations of these nodes and tools.

import functools
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from moorage.agents.graphs import Graphs
from moorage.agents.langgraph_json import GraphSpec
from moorage.agents.store_use import store_use
from moorage.kernel.errors import GraphLoadError
from tests.serving import ROOT


def graph_of(node: Any, **compiled: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(**compiled)


def plain(state: MessagesState) -> Any:
    return {"messages": [AIMessage("hello")]}


def looks_alike(state: MessagesState, runtime: Runtime[Any]) -> Any:
    shop = SimpleNamespace(store="a shop")
    return {"messages": [AIMessage(f"{shop.store} {runtime.context}")]}


def by_parameter(state: MessagesState, *, store: BaseStore) -> Any:
    return plain(state)


async def by_runtime(state: MessagesState, runtime: Runtime[Any]) -> Any:
    await runtime.store.aput(("a",), "b", {})  # type: ignore[union-attr]
    return plain(state)


def _read(runtime: Runtime[Any]) -> Any:
    def inner() -> Any:
        return runtime.store

    return inner()


def by_function(state: MessagesState, runtime: Runtime[Any]) -> Any:
    _read(runtime)
    return plain(state)


def by_config(state: MessagesState) -> Any:
    get_store().put(("a",), "b", {})
    return plain(state)


class Remembering:
    def __call__(self, state: MessagesState, runtime: Runtime[Any]) -> Any:
        return {"messages": [AIMessage(str(runtime.store))]}


@tool
def harmless(text: str, runtime: ToolRuntime) -> str:
    """Say it."""
    return f"{text} {runtime.tool_call_id}"


@tool
def injected(text: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Keep it."""
    return text


@tool
def through_runtime(text: str, runtime: ToolRuntime) -> str:
    """Keep it."""
    return str(runtime.store)


@task
def remember(text: str) -> str:
    get_store()
    return text


@entrypoint()
def functional(text: str) -> str:
    return remember(text).result()


@entrypoint()
def functional_by_parameter(text: str, *, store: BaseStore) -> str:
    return text


@entrypoint()
def functional_plain(text: str) -> str:
    return text


USES: dict[str, tuple[Any, str]] = {
    "compiled": (graph_of(plain, store=InMemoryStore()), "a store that it was compiled with"),
    "parameter": (graph_of(by_parameter), "node 'node'"),
    "runtime": (graph_of(by_runtime), "node 'node'"),
    "partial": (graph_of(functools.partial(by_runtime)), "node 'node'"),
    "called function": (graph_of(by_function), "node 'node'"),
    "get_store": (graph_of(by_config), "node 'node'"),
    "callable object": (graph_of(Remembering()), "node 'node'"),
    "injected into a tool": (graph_of(ToolNode([harmless, injected])), "tool 'injected'"),
    "runtime of a tool": (graph_of(ToolNode([through_runtime])), "tool 'through_runtime'"),
    "subgraph": (graph_of(graph_of(by_runtime)), "node 'node' of the subgraph 'node'"),
    "task": (functional, "node 'functional'"),
    "entrypoint": (functional_by_parameter, "node 'functional_by_parameter'"),
}


@pytest.mark.parametrize("name", USES)
def test_a_graph_that_asks_for_the_store_is_found(name):
    graph, where = USES[name]
    assert store_use(graph) == where


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(plain),
        graph_of(looks_alike),
        graph_of(ToolNode([harmless])),
        functional_plain,
        graph_of(graph_of(plain)),
    ],
)
def test_a_graph_that_does_not_ask_is_left_alone(graph):
    assert store_use(graph) is None


HERE = "./tests/agents/test_store_use.py"
asking = USES["runtime"][0]
asking_builder = StateGraph(MessagesState).add_node("node", by_config).add_edge(START, "node")


def makes_asking() -> Any:
    return asking


async def test_such_a_graph_fails_when_it_is_loaded_and_a_factorys_when_it_is_made():
    names = ("asking", "asking_builder", "makes_asking", "functional_plain")
    graphs = Graphs({name: GraphSpec(path=f"{HERE}:{name}") for name in names}, ROOT)
    graphs.load()
    assert graphs.failures.keys() == {"asking", "asking_builder"}
    assert graphs.failures["asking"].for_callers() == (
        f"Graph 'asking' ({HERE}:asking) cannot be loaded: it asks for the long-term store (node 'node'), which this version "
        "of moorage does not serve"
    )
    with pytest.raises(GraphLoadError, match=r"asks for the long-term store"):
        async with graphs.open("makes_asking", "threads.create_run"):
            pass
