"""A chat without a model key: it answers with the persona that its assistant is configured with.

Two assistants of this graph on one thread see each other's messages, since the thread keeps them.
"""

from dataclasses import dataclass

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime


@dataclass
class Settings:
    """What an assistant of this graph can be configured with."""

    model_name: str = "plain"


async def answer(state: MessagesState, runtime: Runtime[Settings]) -> MessagesState:
    asked = state["messages"][-1].content
    earlier = len(state["messages"]) - 1
    persona = runtime.context.model_name if runtime.context else "plain"
    return {"messages": [AIMessage(f"{persona}: you said {asked!r}, after {earlier} earlier messages")]}


graph = (
    StateGraph(MessagesState, context_schema=Settings)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile()
)
