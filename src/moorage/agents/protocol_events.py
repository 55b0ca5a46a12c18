"""Encoding of LangGraph's output as events of the thread-centric protocol: method and parameters, encoded once for all
readers.

LangGraph makes events of its own (`astream_events(version="v3")`); this module converts them to the form of the wire.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from moorage.agents.frames import Emitted, PrivateErrors, encode_output, failure_of
from moorage.agents.graphs import Graph
from moorage.agents.records.runs import RunFailure
from moorage.agents.records.words import JsonObject

# LangGraph warns at each call, and there is no other way to get these events.
warnings.filterwarnings("ignore", message="The v3 streaming protocol on Pregel is experimental")

# All modes that a subscriber may ask for: frames are made before the subscribers are known.
_MODES = ("values", "updates", "messages", "custom", "tasks", "tools", "checkpoints")


async def protocol_parts(
    graph: Graph, given: Any, config: RunnableConfig, options: JsonObject
) -> AsyncGenerator[tuple[tuple[str, ...], str, Any], None]:
    """Yield namespace, method and parameters of each event. Raises ImportError if LangGraph is too old."""
    from langgraph.stream import StreamTransformer  # missing in the oldest supported langgraph

    class Tap(StreamTransformer):
        """A transformer that requests all modes, and passes events on unchanged."""

        required_stream_modes = _MODES

        def init(self) -> dict[str, Any]:
            return {}

        def keep(self, event: Any) -> bool:
            return True

        process = keep

    stream = await graph.astream_events(given, config, version="v3", transformers=[Tap], **options)
    async for event in stream:
        yield tuple(event["params"]["namespace"]), event["method"], event["params"]


class ProtocolMaker:
    """Converter of a run's output to (method, parameters as JSON)."""

    def __init__(self, graph_id: str, private_errors: PrivateErrors) -> None:
        self._graph_id = graph_id
        self._private_errors = private_errors
        self._asked: set[str] = set()  # ids of interrupts that were already sent
        # Values wait for the checkpoint that holds them, which LangGraph emits right after.
        self._held: dict[tuple[str, ...], tuple[int, Any]] = {}
        self._messages: dict[str, str] = {}  # the message that a node is writing now

    def started(self, run_id: UUID, attempt: int) -> Iterator[Emitted]:
        data = {"event": "running", "graph_name": self._graph_id, "run_id": str(run_id), "attempt": attempt}
        yield event_of("lifecycle", (), time.time_ns() // 1_000_000, data)

    def failed(self, failure: RunFailure) -> Iterator[Emitted]:
        """Yield nothing: readers of the stream take the end of the run from its row."""
        return iter(())

    def rest(self) -> Iterator[Emitted]:
        yield from self._release()

    def values_of(self, chunk: Any) -> Any:
        return chunk["data"]

    def frames(self, method: str, namespace: tuple[str, ...], params: Any) -> Iterator[Emitted]:
        """Yield the events for one event of LangGraph."""
        data, at = params["data"], params["timestamp"]
        if method == "checkpoints":
            yield from self._checkpoint(namespace, at, data)
            return
        yield from self._release(namespace)
        if method == "values":
            self._held[namespace] = at, data
            yield from self._input_requests(namespace, at, params.get("interrupts") or ())
        elif method == "updates":
            yield from self._updates(namespace, at, data)
        elif method == "messages":
            yield from self._message(namespace, at, *data)
        elif method == "lifecycle":
            yield self._of_child(at, data)
        elif method == "tasks":
            yield event_of("tasks", namespace, at, _told(data))
        elif method == "tools":
            yield event_of("tools", namespace, at, self._private_errors.told_of_tool(data))
        elif method == "custom":
            yield event_of("custom", namespace, at, {"payload": data})
        elif method.startswith("custom:"):
            yield event_of("custom", namespace, at, {"name": method.removeprefix("custom:"), "payload": data})
        else:
            yield event_of(method, namespace, at, data)

    def _release(self, namespace: tuple[str, ...] | None = None) -> Iterator[Emitted]:
        """Yield the held values that no checkpoint came for: of one namespace, or of all."""
        for each in [namespace] if namespace is not None else list(self._held):
            if held := self._held.pop(each, None):
                yield event_of("values", each, *held)

    def _of_child(self, at: int, data: JsonObject) -> Emitted:
        """Make the lifecycle event of a subgraph. LangGraph reports it at the parent, the wire at the child."""
        told = {name: data[name] for name in ("event", "graph_name", "error") if data.get(name) is not None}
        if "error" in told:
            told["error"] = self._private_errors.told(told["error"])
        return event_of("lifecycle", data["namespace"], at, told)

    def _checkpoint(self, namespace: tuple[str, ...], at: int, data: JsonObject) -> Iterator[Emitted]:
        told = _checkpoint_of(data)
        if held := self._held.pop(namespace, None):
            yield event_of("values", namespace, *held, checkpoint=told)
        yield event_of("checkpoints", namespace, at, told)

    def _input_requests(self, namespace: tuple[str, ...], at: int, interrupts: Iterable[Any]) -> Iterator[Emitted]:
        if interrupts:  # a person must see the values before the question about them
            yield from self._release(namespace)
        for interrupt in interrupts:
            if interrupt.id not in self._asked:
                self._asked.add(interrupt.id)
                # The Python client reads `value`; the protocol says `payload`.
                data = {"interrupt_id": interrupt.id, "payload": interrupt.value, "value": interrupt.value}
                yield event_of("input.requested", namespace, at, data)

    @staticmethod
    def _updates(namespace: tuple[str, ...], at: int, data: JsonObject) -> Iterator[Emitted]:
        for node, values in data.items():
            if node != "__interrupt__":
                yield event_of("updates", namespace, at, {"node": node, "values": values}, node=node)

    def _message(self, namespace: tuple[str, ...], at: int, data: Any, metadata: JsonObject) -> Iterator[Emitted]:
        """Yield a message's events. A node that did not stream sends the whole message, which is split here."""
        node = metadata.get("langgraph_node")
        place = metadata.get("langgraph_checkpoint_ns") or "|".join(namespace)
        for event in _events_of(data) if isinstance(data, BaseMessage) else (data,):
            told = dict(event)
            if told["event"] == "message-start":
                self._messages[place] = told.get("id") or ""
                told["metadata"] = {**(told.get("metadata") or {}), "langgraph_node": node}
            # Clients that read several messages at once tell their events apart by `message_id`.
            yield event_of("messages", namespace, at, {**told, "message_id": self._messages.get(place)}, node=node)


def event_of(method: str, namespace: Iterable[str], at: int, data: Any, **more: Any) -> Emitted:
    """Encode an event as method and parameters in JSON."""
    return method, encode_output({"namespace": list(namespace), "timestamp": at, "data": data, **more})


def _events_of(message: BaseMessage) -> Iterator[JsonObject]:
    # This function is not public yet, but nothing else splits a message into blocks.
    from langchain_core.language_models._compat_bridge import message_to_events  # missing in the oldest langchain-core

    if message.type == "ai":
        for event in message_to_events(message):
            yield dict(event)


def _checkpoint_of(data: JsonObject) -> JsonObject:
    parent = data.get("parent_config")
    found = {
        "id": data["config"]["configurable"]["checkpoint_id"],
        "step": data["metadata"].get("step"),
        "source": data["metadata"].get("source"),
    }
    return {**found, "parent_id": parent["configurable"].get("checkpoint_id")} if parent else found


def _told(task: JsonObject) -> JsonObject:
    error = task.get("error")
    return {**task, "error": failure_of(error)["message"]} if isinstance(error, BaseException) else task
