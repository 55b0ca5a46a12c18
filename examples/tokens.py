"""Token streaming with a fake chat model: what a real model would do, without a key."""

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


async def call_model(state: MessagesState) -> MessagesState:
    model = GenericFakeChatModel(messages=iter([AIMessage("The quick brown fox jumps over the lazy dog")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("call_model", call_model)
    .add_edge(START, "call_model")
    .add_edge("call_model", END)
    .compile()
)
