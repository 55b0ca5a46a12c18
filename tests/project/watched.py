"""Factories that record why and with which arguments they were called, and factories that fail."""

from typing import Any

from graphs import State, _graph
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph_sdk.runtime import ServerRuntime

_calls: list[dict[str, Any]] = []


def remembers(config: RunnableConfig, runtime: ServerRuntime) -> Any:
    """Return a graph that shows all calls of this process up to its own."""
    _calls.append(
        {
            "access": runtime.access_context,
            "executes": runtime.execution_runtime is not None,
            "for_execution": config.get("configurable", {}).get("__is_for_execution__", False),
            "keys": sorted(config),
        }
    )

    async def show(state: State) -> State:
        return {"seen": {"calls": list(_calls)}}

    return _graph(show=show).compile()


def fails(config: RunnableConfig) -> Any:
    raise OSError("the password is hunter2")


def makes_no_graph() -> Any:
    return "not a graph"


async def _say(state: MessagesState) -> MessagesState:
    return {"messages": [AIMessage("not streamed", id="whole")]}


says = StateGraph(MessagesState).add_node("say", _say).add_edge(START, "say").add_edge("say", END).compile()
