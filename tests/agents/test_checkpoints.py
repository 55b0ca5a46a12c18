"""Checkpoints on a real database: the public conformance suite, and cases that it leaves out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from moorage.agents.checkpoints import INLINE_CHARS_MAX, PostgresSaver, RunSaver
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.kernel.group_commit import GroupCommit
from moorage.kernel.postgres import Postgres
from tests.project.graphs import Opaque, State

pytest_plugins = "tests.kernel.fixtures"

DURABILITIES = ["async", "sync", "exit"]


class Savers:
    """The savers of a server: shared objects, and a saver for each run."""

    def __init__(self, postgres: Postgres) -> None:
        self.store = CheckpointStore(postgres)
        self.commits = GroupCommit(postgres)

    def fresh(self) -> PostgresSaver:
        """Return a saver that knows only the content of the database."""
        return PostgresSaver(self.store, self.commits)

    def of_a_run(self) -> RunSaver:
        return RunSaver(self.store, self.commits)

    async def everything(self, thread_id: str) -> list[CheckpointTuple]:
        return [found async for found in self.fresh().alist(on(thread_id))]

    async def latest(self, thread_id: str) -> CheckpointTuple | None:
        return await self.fresh().aget_tuple(on(thread_id, checkpoint_ns=""))


@pytest.fixture
async def savers(agents_postgres: Postgres) -> AsyncIterator[Savers]:
    made = Savers(agents_postgres)
    yield made
    await made.commits.close()


def on(thread_id: str, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, **more}}


def new_thread() -> str:
    return str(uuid4())


def row_of(nodes: dict[str, Any], saver: PostgresSaver, schema: type = State) -> CompiledStateGraph:
    graph, before = StateGraph(schema), START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile(checkpointer=saver)


# --- the public suite -------------------------------------------------------------------------------------------------

# Their public suite asks for more than agents need. These are missing on purpose.
NOT_OFFERED = {"delete_for_runs", "prune"}


async def test_the_saver_passes_the_public_conformance_suite(savers: Savers):
    @checkpointer_test(name="moorage")
    async def ours() -> AsyncIterator[PostgresSaver]:
        yield savers.fresh()

    report = await validate(ours)
    assert not [failure for result in report.results.values() for failure in result.failures]
    assert {name for name, result in report.results.items() if not result.detected} <= NOT_OFFERED
    assert report.passed_all_base()


# --- values -----------------------------------------------------------------------------------------------------------


class Mood(Enum):
    GOOD = "good"


class Anything(TypedDict, total=False):
    value: Any


async def round_trip(savers: Savers, value: Any) -> Any:
    """Write the value through a run's state into the database, and read it with another saver."""
    thread_id = new_thread()
    graph = row_of({"set": lambda state: {"value": value}}, savers.of_a_run(), Anything)
    await graph.ainvoke({"value": None}, on(thread_id))
    found = await savers.latest(thread_id)
    assert found is not None
    return found.checkpoint["channel_values"]["value"]


@pytest.mark.parametrize(
    "value",
    [
        "a\0b",
        {"a\0": ["\0"]},
        math.inf,
        {"x": -math.inf},
        -(2**63),
        2**63 - 1,
        "x" * INLINE_CHARS_MAX,
        "é" * (INLINE_CHARS_MAX + 1),
        "\\u0000",
        "\U0001f600",
        "",
        None,
        True,
        0,
        b"\0raw",
        {1, 2},
        Mood.GOOD,
    ],
    ids=repr,
)
async def test_a_value_comes_back_as_it_went_in(savers: Savers, value: Any):
    found = await round_trip(savers, value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [2**100, [2**100]], ids=repr)
async def test_what_langgraph_cannot_serialise_fails_where_it_is_written_and_nothing_else(savers: Savers, value: Any):
    """LangGraph's msgpack has no integers over 64 bits, and pickle, its other format, is unsafe for a server."""
    with pytest.raises((TypeError, ValueError)):
        await round_trip(savers, value)
    assert await round_trip(savers, "still working") == "still working"


async def test_a_lone_surrogate_is_replaced_by_langgraph_and_fails_nothing(savers: Savers):
    assert await round_trip(savers, "\ud800 alone") == "? alone"


async def test_nan_comes_back_as_nan(savers: Savers):
    assert math.isnan(await round_trip(savers, math.nan))
    assert math.isnan((await round_trip(savers, [math.nan]))[0])


@pytest.mark.parametrize("value", [0.1, 1e-300, 5e-324, 2.0, -0.0, 1e15, 1e16, 1e22, 1.5e300], ids=repr)
async def test_a_float_stays_a_float_to_the_last_bit(savers: Savers, value: float):
    found = await round_trip(savers, value)
    assert (type(found), repr(found)) == (float, repr(value))


async def test_metadata_may_hold_nul(savers: Savers):
    thread_id = new_thread()
    graph = row_of({"set": lambda state: {"value": 1}}, savers.of_a_run(), Anything)
    await graph.ainvoke({"value": None}, {**on(thread_id), "metadata": {"note": "a\0b"}})
    found = await savers.latest(thread_id)
    assert found is not None
    assert found.metadata["note"] in {"ab", "a\ufffdb"}  # LangGraph itself leaves it out


# --- runs side by side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_state_that_cannot_be_serialised_fails_its_own_run_only(savers: Savers, durability: Any):
    async def run(value: Any) -> Any:
        graph = row_of({"set": lambda state: {"value": value}}, savers.of_a_run(), Anything)
        return await graph.ainvoke({"value": None}, on(new_thread()), durability=durability)

    results = await asyncio.gather(*(run(Opaque if n == 3 else n) for n in range(8)), return_exceptions=True)
    assert isinstance(results.pop(3), TypeError)
    assert results == [{"value": n} for n in (0, 1, 2, 4, 5, 6, 7)]


async def test_what_the_database_refuses_fails_its_own_run_only(savers: Savers):
    async def put(thread_id: str) -> Any:
        graph = row_of({"set": lambda state: {"value": 1}}, savers.of_a_run(), Anything)
        return await graph.ainvoke({"value": None}, on(thread_id), durability="sync")

    results = await asyncio.gather(*(put(name) for name in ("good", "with\0nul", "fine")), return_exceptions=True)
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    assert await savers.latest("good")
    assert await savers.latest("fine")


async def test_many_runs_share_transactions(savers: Savers):
    threads = [new_thread() for _ in range(20)]

    async def run(thread_id: str) -> None:
        graph = row_of({"a": lambda state: {"items": ["a"]}, "b": lambda state: {"items": ["b"]}}, savers.of_a_run())
        await graph.ainvoke({"text": ""}, on(thread_id), durability="sync")

    await asyncio.gather(*map(run, threads))
    [row] = await savers.store.postgres.fetch(
        "SELECT count(*) AS checkpoints, count(DISTINCT xmin::text) AS transactions FROM checkpoints "
        "WHERE thread_id = ANY(%s)",
        (threads,),
    )
    assert row["checkpoints"] == 80
    assert row["transactions"] < 40


async def test_synchronous_code_in_a_thread_uses_the_same_saver(savers: Savers):
    thread_id = new_thread()
    saver = savers.fresh()
    graph = row_of({"set": lambda state: {"value": 1}}, saver, Anything)
    assert await asyncio.to_thread(graph.invoke, {"value": None}, on(thread_id)) == {"value": 1}
    listed = await asyncio.to_thread(lambda: [found.config for found in saver.list(on(thread_id))])
    assert listed == [found.config for found in await savers.everything(thread_id)]
    await asyncio.to_thread(saver.delete_thread, thread_id)
    assert await savers.everything(thread_id) == []


# --- what a run's saver remembers -------------------------------------------------------------------------------------

NODES: dict[str, Any] = {
    "add": lambda state: {"items": ["added"]},
    "large": lambda state: {"text": "x" * 2000},
    "idle": lambda state: {},
    "ask": lambda state: {"items": [interrupt("Which?")]},
    "ask_twice": lambda state: {"items": [interrupt("One?"), interrupt("Two?")]},
    "fail": lambda state: 1 / 0,
    "odd": lambda state: {"seen": {"nul": "\0", "mood": Mood.GOOD}},
}
SHAPES = st.lists(st.sampled_from([*NODES, "both", "fan_out", "inner", "jump"]), min_size=1, max_size=4)


def drawn(shape: list[str], saver: PostgresSaver) -> CompiledStateGraph:
    """Return a graph whose steps follow the shape, in a row."""
    graph, before = StateGraph(State), START
    for number, kind in enumerate(shape):
        name, after = f"{kind}_{number}", f"after_{number}"
        graph.add_node(after, NODES["idle"])
        if kind == "both":
            for half in ("add", "ask"):
                graph.add_node(f"{name}_{half}", NODES[half])
                graph.add_edge(before, f"{name}_{half}")
            graph.add_edge([f"{name}_add", f"{name}_ask"], after)
        elif kind == "fan_out":
            graph.add_node(name, NODES["add"])
            graph.add_conditional_edges(before, lambda state, to=name: [Send(to, {}), Send(to, {})], [name])
            graph.add_edge(name, after)
        else:
            graph.add_node(name, *_node(kind, after))
            graph.add_edge(before, name)
            if kind != "jump":
                graph.add_edge(name, after)
        before = after
    return graph.compile(checkpointer=saver)


def _node(kind: str, after: str) -> tuple[Any, ...]:
    if kind == "inner":
        inner = StateGraph(State).add_node("ask", NODES["ask"]).add_edge(START, "ask")
        return (inner.add_node("add", NODES["add"]).add_edge("ask", "add").compile(),)
    if kind == "jump":
        return (lambda state: Command(goto=after, update={"text": "jumped"}),)
    return (NODES[kind],)


def comparable(found: CheckpointTuple | None) -> Any:
    if found is None:
        return None
    pending = sorted((task, channel, repr(value)) for task, channel, value in found.pending_writes or [])
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    return found.config["configurable"], found.checkpoint, found.metadata, parent, pending


async def invoked(graph: CompiledStateGraph, given: Any, config: RunnableConfig, durability: Any) -> None:
    try:
        await graph.ainvoke(given, config, durability=durability)
    except ZeroDivisionError:
        pass


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=SHAPES,
    durability=st.sampled_from(DURABILITIES),
    runs=st.lists(st.sampled_from(["input", "resume", "nothing", "before"]), min_size=1, max_size=4),
)
async def test_a_runs_saver_remembers_what_the_database_holds(
    savers: Savers, shape: list[str], durability: str, runs: list[str]
):
    thread_id = new_thread()
    for run in runs:
        saver = savers.of_a_run()
        graph = drawn(shape, saver)
        config = on(thread_id, run_id=str(uuid4()))
        if run == "before":
            graph.interrupt_before_nodes = [f"after_{len(shape) - 1}"]
        given = {"resume": Command(resume="yes"), "nothing": None}.get(run, {"text": "", "items": ["input"]})
        if given is None and await savers.latest(thread_id) is None:
            continue  # there is nothing to continue with
        await invoked(graph, given, config, durability)
        remembered = await saver.aget_tuple(on(thread_id, checkpoint_ns=""))
        assert comparable(remembered) == comparable(await savers.latest(thread_id))


# --- as it was before the run -----------------------------------------------------------------------------------------


async def left_by(savers: Savers, thread_id: str) -> Any:
    return [comparable(found) for found in await savers.everything(thread_id)]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    "shape", [["add"], ["add", "ask"], ["ask", "add"], ["ask_twice"], ["inner"], ["both"]], ids=str
)
async def test_a_removed_run_leaves_the_thread_as_it_was_before(savers: Savers, shape: list[str], durability: Any):
    thread_id = new_thread()
    await invoked(drawn(shape, savers.of_a_run()), {"text": "", "items": []}, on(thread_id, run_id="first"), durability)
    before = await left_by(savers, thread_id)
    answer = Command(resume="yes") if set(shape) & {"ask", "ask_twice", "inner", "both"} else {"text": "more"}
    await invoked(drawn(shape, savers.of_a_run()), answer, on(thread_id, run_id="second"), durability)
    assert await left_by(savers, thread_id) != before
    await savers.store.remove_run(thread_id, "second")
    assert await left_by(savers, thread_id) == before


async def test_a_removed_run_is_removed_from_its_own_thread_only(savers: Savers):
    one, other = new_thread(), new_thread()
    for thread_id in (one, other):
        await drawn(["add"], savers.of_a_run()).ainvoke({"text": ""}, on(thread_id, run_id="same"))
    await savers.store.remove_run(one, "same")
    assert await savers.everything(one) == []
    assert len(await savers.everything(other)) == 4


# --- copies -----------------------------------------------------------------------------------------------------------


async def test_a_copied_thread_has_the_whole_history_and_goes_its_own_way(savers: Savers):
    source, copy = new_thread(), new_thread()
    shape = ["large", "ask"]
    await drawn(shape, savers.of_a_run()).ainvoke({"text": "", "items": []}, on(source))
    before = await left_by(savers, source)
    await savers.store.copy_thread(source, copy)

    def without_thread(history: Any) -> Any:
        return [({**config, "thread_id": ""}, *rest) for config, *rest in history]

    assert without_thread(await left_by(savers, copy)) == without_thread(before)
    done = await drawn(shape, savers.of_a_run()).ainvoke(Command(resume="yes"), on(copy))
    assert done["items"] == ["yes"]
    assert await left_by(savers, source) == before
    await savers.fresh().adelete_thread(copy)
    assert await left_by(savers, source) == before
    assert await savers.everything(copy) == []


async def test_copying_twice_changes_nothing(savers: Savers):
    source, copy = new_thread(), new_thread()
    await drawn(["add"], savers.of_a_run()).ainvoke({"text": ""}, on(source))
    await savers.store.copy_thread(source, copy)
    once = await left_by(savers, copy)
    await savers.store.copy_thread(source, copy)
    assert await left_by(savers, copy) == once
