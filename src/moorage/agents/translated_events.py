"""Protocol events made from the frames of a run that was started with stream modes.

They are made when a subscriber reads them, so the run itself pays nothing. The run's modes limit which events there
are. Tokens are omitted: single-token frames do not say where blocks of a message begin and end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from moorage.agents.frames import Emitted
from moorage.agents.protocol_events import event_of
from moorage.agents.records.words import JsonObject
from moorage.agents.stream import Position
from moorage.http import sse
from moorage.kernel.encoding import decode

_SAME = frozenset({"custom", "tasks"})


class EventTranslator:
    def __init__(self, graph_id: str, modes: Collection[str]) -> None:
        self._graph_id = graph_id
        # Both modes report each interrupt. It must be sent once, even if a client reconnects between the two frames.
        self._asks_in = "values" if "values" in modes else "updates"

    def events(self, frame: bytes, position: Position) -> Iterator[Emitted]:
        """Yield method and parameters of the frame's events: usually one, none for modes without a counterpart."""
        mode, *namespace = sse.event_of(frame).split("|")
        at, data = position[0], decode(sse.data_of(frame))
        if mode == "metadata":
            told = {
                "event": "running",
                "graph_name": self._graph_id,
                "run_id": data["run_id"],
                "attempt": data["attempt"],
            }
            yield event_of("lifecycle", (), at, told)
        elif mode in ("values", "updates") and isinstance(data, dict) and "__interrupt__" in data:
            if mode == self._asks_in:
                yield from _input_requests(namespace, at, data["__interrupt__"])
        elif mode == "values":
            yield event_of("values", namespace, at, data)
        elif mode == "updates":
            for node, values in data.items():
                yield event_of("updates", namespace, at, {"node": node, "values": values}, node=node)
        elif mode == "checkpoints":
            yield event_of("checkpoints", namespace, at, _checkpoint_of(data))
        elif mode in _SAME:
            yield event_of(mode, namespace, at, {"payload": data} if mode == "custom" else data)


def _input_requests(namespace: list[str], at: int, interrupts: list[JsonObject]) -> Iterator[Emitted]:
    for interrupt in interrupts:
        value = interrupt["value"]
        data = {"interrupt_id": interrupt["id"], "payload": value, "value": value}
        yield event_of("input.requested", namespace, at, data)


def _checkpoint_of(told: JsonObject) -> JsonObject:
    """Convert a checkpoint of the stream mode to the protocol's short form."""
    metadata, parent = told.get("metadata") or {}, told.get("parent_config")
    found = {
        "id": told["config"]["configurable"]["checkpoint_id"],
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }
    return {**found, "parent_id": parent["configurable"].get("checkpoint_id")} if parent else found
