"""The graphs that are measured: no model, no network, nothing that blocks. What is left is the server's own cost.

echo    one node                                the floor of a run
chain   ten nodes in a row                      the cost of a step and its checkpoint
tokens  a streaming chat model (n, delay)       the cost of a token
ticks   n custom events, `delay` seconds apart  streams that stay open
loop    n steps of one node                     threads with many checkpoints
"""

import asyncio
import operator
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Annotated, Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

CHAIN_NODES = 10


class State(TypedDict, total=False):
    text: str
    n: int
    delay: float
    trail: Annotated[list[str], operator.add]


class Conversation(TypedDict, total=False):
    n: int
    delay: float
    messages: Annotated[list[AnyMessage], add_messages]


class WordByWord(BaseChatModel):
    """Says `n` words, `delay` seconds apart; at 0 it only lets others have the loop between them."""

    n: int = 200
    delay: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "word-by-word"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("word " * self.n))])

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.n):
            await asyncio.sleep(self.delay)
            chunk = ChatGenerationChunk(message=AIMessageChunk("word "))
            if run_manager:
                await run_manager.on_llm_new_token("word ", chunk=chunk)
            yield chunk


async def repeat(state: State) -> State:
    return {"text": state.get("text", ""), "trail": ["echo"]}


async def step(state: State) -> State:
    return {"n": state.get("n", 0) - 1, "trail": ["step"]}


async def tick(state: State) -> State:
    """Writes first and sleeps then, so that the first data shows what the server takes, not the graph."""
    write = get_stream_writer()
    for number in range(state.get("n", 5)):
        write({"tick": number})
        await asyncio.sleep(state.get("delay", 1.0))
    return {"trail": ["ticked"]}


async def answer(state: Conversation) -> Conversation:
    model = WordByWord(n=state.get("n", 200), delay=state.get("delay", 0.0))
    return {"messages": [await model.ainvoke(state.get("messages") or [HumanMessage("hello")])]}


def link(number: int) -> Any:
    async def node(state: State) -> State:
        return {"trail": [f"node_{number}"]}

    return node


def in_a_row(schema: Any, nodes: dict[str, Any]) -> Any:
    graph = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(name, node)
    names = [START, *nodes, END]
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    return graph.compile()


def until_zero() -> Any:
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state.get("n", 0) > 0 else END, ["step", END])
    return graph.compile()


echo = in_a_row(State, {"repeat": repeat})
chain = in_a_row(State, {f"node_{number}": link(number) for number in range(CHAIN_NODES)})
tokens = in_a_row(Conversation, {"answer": answer})
ticks = in_a_row(State, {"tick": tick})
loop = until_zero()

GRAPHS = {"echo": echo, "chain": chain, "tokens": tokens, "ticks": ticks, "loop": loop}
