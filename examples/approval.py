"""Human approval: the graph stops before it acts, and goes on with what a person answers."""

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    action: str
    approved: bool
    done: str


async def ask(state: State) -> State:
    answer = interrupt({"question": f"May I {state['action']}?"})
    return {"approved": answer == "yes"}


async def act(state: State) -> State:
    return {"done": state["action"] if state["approved"] else "nothing"}


graph = (
    StateGraph(State)
    .add_node("ask", ask)
    .add_node("act", act)
    .add_edge(START, "ask")
    .add_edge("ask", "act")
    .add_edge("act", END)
    .compile()
)
