"""Graphs for fault runs. Each node that counts writes marks to a file, so that a judge can see what really ran."""

import asyncio
import math
import operator
import os
import time
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    file: str
    seconds: float
    size: int
    count: int
    value: Any
    done: Annotated[list[str], operator.add]


def _mark(state: State, config: RunnableConfig, what: str) -> None:
    """Write one line in one piece: run, process, what."""
    if not state.get("file"):
        return
    line = f"{config['configurable']['run_id']} {os.getpid()} {what}\n"
    out = os.open(state["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(out, line.encode())
    finally:
        os.close(out)


def _step(name: str) -> Any:
    async def step(state: State, config: RunnableConfig) -> State:
        _mark(state, config, f"{name} start")
        await asyncio.sleep(state.get("seconds", 0))
        _mark(state, config, f"{name} end")
        return {"done": [name]}

    return step


def _row(**nodes: Any) -> Any:
    """Return a graph of the nodes, one after the other."""
    graph, before = StateGraph(State), START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.add_edge(before, END).compile()


async def _raise(state: State) -> State:
    raise ValueError("this graph fails")


async def _ask(state: State) -> State:
    return {"done": [interrupt("Which?")]}


async def _chatter(state: State) -> State:
    write = get_stream_writer()
    for number in range(state["count"]):
        write({"number": number, "text": "x" * state["size"]})
        await asyncio.sleep(0)
    return {"done": ["chattered"]}


async def _make_big(state: State) -> State:
    return {"value": "x" * state["size"], "done": ["big"]}


async def _make_odd(state: State) -> State:
    return {
        "value": {
            "nul": "a\0b",
            "surrogate": "\ud800",
            "nan": math.nan,
            "infinity": -math.inf,
            "big": 2**100,
            "\0key": "\0",
            "bytes": b"\xff\0",
        },
        "done": ["odd"],
    }


async def _ignore(state: State, config: RunnableConfig) -> State:
    """Continue until the time is up, however often the run is cancelled."""
    _mark(state, config, "ignore start")
    until = time.monotonic() + state["seconds"]
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            _mark(state, config, "ignore cancelled")
    _mark(state, config, "ignore end")
    return {"done": ["ignored"]}


async def _block(state: State, config: RunnableConfig) -> State:
    """Block the event loop of the whole process."""
    _mark(state, config, "block start")
    time.sleep(state["seconds"])  # noqa: ASYNC251 - on purpose
    _mark(state, config, "block end")
    return {"done": ["blocked"]}


async def _fork(state: State, config: RunnableConfig) -> State:
    """Fork a child, which has a copy of everything that the server has open, and lives on for a while."""
    if (pid := os.fork()) == 0:
        time.sleep(state.get("seconds", 1))  # noqa: ASYNC251 - no loop runs in the child
        os._exit(0)
    _mark(state, config, f"fork {pid}")
    return {"done": ["forked"]}


async def _exit(state: State, config: RunnableConfig) -> State:
    """End the server process without notice."""
    _mark(state, config, "exit start")
    await asyncio.sleep(state.get("seconds", 0))
    os._exit(1)


steps = _row(a=_step("a"), b=_step("b"), c=_step("c"))
fails = _row(a=_step("a"), bad=_raise)
asks = _row(a=_step("a"), ask=_ask, c=_step("c"))
chatters = _row(chatter=_chatter)
big = _row(make=_make_big)
odd = _row(make=_make_odd)
ignores = _row(ignore=_ignore, after=_step("after"))
blocks = _row(block=_block)
forks = _row(fork=_fork)
exits = _row(exit=_exit)
