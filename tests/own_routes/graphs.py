"""A graph that returns the headers that it was given, and what the application has started."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    told: dict[str, Any]


def tell(state: State, config: RunnableConfig) -> State:
    return {"told": {name: value for name, value in config["configurable"].items() if "-" in name}}


headers = StateGraph(State).add_node("tell", tell).add_edge(START, "tell").add_edge("tell", END).compile()
