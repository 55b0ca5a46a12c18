"""A graph in a package, with a relative import."""

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from .nodes import node


class State(TypedDict, total=False):
    text: str


graph = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()
