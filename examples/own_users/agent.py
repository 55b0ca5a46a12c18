"""Keeps notes, and knows whose they are."""

from __future__ import annotations

from operator import add
from typing import Annotated

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict):
    note: str
    notes: Annotated[list[str], add]


def keep(state: State, config: RunnableConfig) -> dict[str, list[str]]:
    user = config["configurable"]["langgraph_auth_user"]
    return {"notes": [f"{user['display_name']}: {state['note']}"]}


graph = StateGraph(State).add_node("keep", keep).add_edge(START, "keep").add_edge("keep", END).compile()
