"""A subgraph: `research` is a graph of its own with two steps, used as one node."""

import operator
from typing import Annotated

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    topic: str
    notes: Annotated[list[str], operator.add]
    report: str


async def search(state: State) -> State:
    return {"notes": [f"found {state['topic']}"]}


async def read(state: State) -> State:
    return {"notes": [f"read about {state['topic']}"]}


def write(state: State) -> State:
    """A synchronous node: it runs in a thread and does not block the server."""
    return {"report": "; ".join(state["notes"])}


research = (
    StateGraph(State)
    .add_node("search", search)
    .add_node("read", read)
    .add_edge(START, "search")
    .add_edge("search", "read")
    .add_edge("read", END)
    .compile()
)

graph = (
    StateGraph(State)
    .add_node("research", research)
    .add_node("write", write)
    .add_edge(START, "research")
    .add_edge("research", "write")
    .add_edge("write", END)
    .compile()
)
