"""Graphs for tests. Each shows one behaviour that the server has to handle."""

import asyncio
import math
import operator
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    text: str
    seconds: float
    file: str
    items: Annotated[list[Any], operator.add]
    seen: dict[str, Any]


def _graph(**nodes: Any) -> Any:
    """Return a graph of the nodes, one after the other."""
    graph, before = StateGraph(State), START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.add_edge(before, END)


async def _echo(state: State) -> State:
    return {"text": state.get("text", "") + "!", "items": ["echo"]}


async def _first(state: State) -> State:
    return {"text": state.get("text", "") + "a", "items": ["a"]}


async def _second(state: State) -> State:
    return {"text": state["text"] + "b", "items": ["b"]}


@tool
async def sound(depth_m: int, runtime: ToolRuntime) -> str:
    """Measure how deep the water is."""
    runtime.emit_output_delta("sounding")
    if depth_m < 0:
        raise ValueError("no water")
    return f"{depth_m} m"


@tool
async def leak() -> str:
    """Fail with a message that is for the operator alone."""
    raise PrivateError("the password is hunter2")


def _note(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


async def _count(state: State) -> State:
    """Append a line to the file for each real execution, so that a test can count across crashes."""
    if path := state.get("file"):
        await asyncio.to_thread(_note, path, "counted")
    return {"items": ["counted"]}


async def _sleep(state: State) -> State:
    await asyncio.sleep(state.get("seconds", 1))
    return {"items": ["slept"]}


def _block(state: State) -> State:
    time.sleep(state.get("seconds", 1))
    return {"items": ["blocked"]}


async def _ask(state: State) -> State:
    return {"items": [interrupt({"question": "Which?"})]}


async def _ask_again(state: State) -> State:
    return {"items": [interrupt("And then?")]}


async def _raise(state: State) -> State:
    raise ValueError("boom")


class PrivateError(Exception):
    """An error of a kind whose message is not for callers."""


async def _leak(state: State) -> State:
    raise PrivateError("the password is hunter2")


async def _again(state: State) -> State:
    return {"items": ["again"]}


class Opaque:
    """A value that has no JSON form, and that no checkpoint can store either."""

    __slots__ = ()


async def _unencodable(state: State) -> State:
    return {"seen": {"thing": Opaque}}


class Model(BaseModel):
    number: int


@dataclass
class Record:
    name: str


async def _odd(state: State) -> State:
    return {
        "seen": {
            "nan": math.nan,
            "set": {1},
            "bytes": b"raw",
            "uuid": UUID(int=1),
            "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "model": Model(number=1),
            "record": Record("r"),
            "nul": "a\0b",
            "tuple": (1, 2),
            "number_key": {1: "one"},
        }
    }


async def _show_config(state: State, config: RunnableConfig) -> State:
    configurable = {k: v for k, v in config["configurable"].items() if not k.startswith("__")}
    return {
        "seen": {
            "configurable": configurable,
            "metadata": dict(config["metadata"]),
            "tags": config.get("tags"),
            "max_concurrency": config.get("max_concurrency"),
            "environment": os.environ.get("TEST_PROJECT_VARIABLE"),
        }
    }


async def _write_custom(state: State) -> State:
    write = get_stream_writer()
    write({"step": 1})
    write("text")
    return {"items": ["written"]}


class Talker(BaseChatModel):
    """A model that streams three words."""

    pause_s: float = 0

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("one two three"))])

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in ("one ", "two ", "three"):
            await asyncio.sleep(self.pause_s)
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word, id="run-talker"))
            if run_manager:
                await run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk


async def _talk(state: MessagesState) -> MessagesState:
    return {"messages": [await Talker().ainvoke(state["messages"])]}


async def _type(state: MessagesState) -> MessagesState:
    return {"messages": [await Talker(pause_s=0.2).ainvoke(state["messages"])]}


echo = _graph(echo=_echo).compile()
pair = _graph(a=_first, b=_second).compile()
slow = _graph(count=_count, sleep=_sleep, last=_echo).compile()
blocking = _graph(block=_block).compile()
ask = _graph(ask=_ask, last=_echo).compile()
ask_twice = _graph(ask=_ask, again=_ask_again, last=_echo).compile()
raises = _graph(good=_first, bad=_raise).compile()
leaks = _graph(leak=_leak).compile()
leaks_inside = _graph(inner=leaks).compile()
unencodable = _graph(make=_unencodable).compile()
odd_values = _graph(odd=_odd).compile()
shows_config = _graph(show=_show_config).compile()
writes_custom = _graph(write=_write_custom).compile()
builder = _graph(echo=_echo)


class Taste(TypedDict, total=False):
    flavour: str


async def _taste(state: State, runtime: Runtime[Taste]) -> State:
    return {"text": runtime.context["flavour"]}


tastes = StateGraph(State, context_schema=Taste).add_node("taste", _taste).add_edge(START, "taste").compile()
configured = (
    StateGraph(State, context_schema=Taste)
    .add_node("show", _show_config)
    .add_edge(START, "show")
    .add_edge("show", END)
    .compile()
)
nested = _graph(before=_first, inner=pair, after=_echo).compile()
endless = (
    StateGraph(State)
    .add_node("again", _again)
    .add_edge(START, "again")
    .add_conditional_edges("again", lambda _: "again", ["again"])
    .compile()
)
typing = StateGraph(MessagesState).add_node("type", _type).add_edge(START, "type").add_edge("type", END).compile()
uses_tools = StateGraph(MessagesState).add_node("tools", ToolNode([sound, leak])).add_edge(START, "tools").compile()
tokens = StateGraph(MessagesState).add_node("talk", _talk).add_edge(START, "talk").add_edge("talk", END).compile()


@entrypoint()
async def functional(text: str) -> str:
    return text.upper()
