"""The thread-centric protocol (version 2): commands from clients, and subscriptions to events.

The types equal those of the public package `langchain-protocol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from moorage.agents.records.states import CheckpointRef
from moorage.agents.records.words import JsonObject, Request

# The stream mode of runs that were started by a command. Callers cannot request it by name.
PROTOCOL = "protocol"

_FIXED_CHANNELS = ("values", "updates", "messages", "tools", "lifecycle", "input", "tasks", "custom", "checkpoints")
Channel = Annotated[str, Field(pattern=rf"^({'|'.join(_FIXED_CHANNELS)}|custom:.+)$", max_length=500)]
Namespace = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=50)]

ErrorCode = Literal[
    "invalid_argument",
    "unknown_command",
    "unknown_error",
    "no_such_interrupt",
    "no_such_subscription",
    "no_such_checkpoint",
    "permission_denied",
    "not_supported",
]


class Success(TypedDict):
    type: Literal["success"]
    id: int
    result: JsonObject
    meta: NotRequired[JsonObject]


class ProtocolFailure(TypedDict):
    """Answer to a command that failed; `message` gives the reason. `stacktrace` is always left out, since it would show
    paths of the host.
    """

    type: Literal["error"]
    id: int | None
    error: ErrorCode
    message: str
    stacktrace: NotRequired[str]


class ProtocolCommand(Request):
    id: int = Field(ge=0, le=2**53)
    method: str = Field(max_length=200)
    params: JsonObject = Field(default_factory=dict)


class EventStreamRequest(Request):
    """Selection of events for a connection. `since` is the `seq` of the last event that its client has seen."""

    channels: list[Channel] = Field(min_length=1, max_length=100)
    namespaces: list[Namespace] | None = Field(None, max_length=100)
    depth: int | None = Field(None, ge=0)
    since: int | None = Field(None, ge=0, le=2**53)


class Unsubscribe(Request):
    subscription_id: str


class InputResponse(Request):
    namespace: Namespace = Field(default_factory=list)
    interrupt_id: str
    response: Any = None


class InputRespond(Request):
    """Answer to one interrupt, or to several in `responses`."""

    namespace: Namespace = Field(default_factory=list)
    interrupt_id: str | None = None
    response: Any = None
    responses: list[InputResponse] | None = Field(None, min_length=1, max_length=1000)
    update: JsonObject | None = None
    goto: Any = None
    config: JsonObject | None = None
    metadata: JsonObject | None = None

    def answers(self) -> dict[str, Any]:
        """Return the answers by the id of their interrupt. The result is empty if no interrupt is named."""
        if self.responses is not None:
            return {each.interrupt_id: each.response for each in self.responses}
        return {} if self.interrupt_id is None else {self.interrupt_id: self.response}


class StateGet(Request):
    namespace: Namespace = Field(default_factory=list)
    keys: list[str] | None = None


class ListCheckpoints(Request):
    namespace: Namespace = Field(default_factory=list)
    limit: int = Field(10, ge=1, le=1000)
    before: str | None = None


class StateFork(Request):
    checkpoint_id: str
    input: Any = None
    config: JsonObject | None = None


class InputMessage(Request):
    role: Literal["user", "system"]
    content: str
    name: str | None = None


class InputInject(Request):
    namespace: Namespace = Field(default_factory=list, max_length=0)
    message: InputMessage


def checkpoint_in(namespace: Sequence[str]) -> CheckpointRef | None:
    """Return a reference to the latest checkpoint of a namespace; None for the root."""
    return CheckpointRef(checkpoint_ns="|".join(namespace)) if namespace else None


class Subscription:
    """Filter of the events that a connection gets."""

    def __init__(self, request: EventStreamRequest) -> None:
        self._channels = frozenset(request.channels)
        self._namespaces = request.namespaces
        self._depth = request.depth
        self._named = any(channel.startswith("custom:") for channel in request.channels)

    def wants_channel(self, method: str) -> bool:
        """Return False if no event of this method is wanted. This cheap check comes before `wants`."""
        channel = "input" if method == "input.requested" else method
        return channel in self._channels or (channel == "custom" and self._named)

    @property
    def looks_inside(self) -> bool:
        """True if the method alone does not decide, and `wants` must look at the event."""
        return self._namespaces is not None or self._depth is not None or self._named

    def wants(self, event: JsonObject) -> bool:
        params = event["params"]
        if event["method"] == "custom" and "custom" not in self._channels:
            data = params["data"]
            if not (isinstance(data, dict) and f"custom:{data.get('name')}" in self._channels):
                return False
        return self._reaches(params["namespace"])

    def _reaches(self, namespace: list[str]) -> bool:
        prefixes = [[]] if self._namespaces is None else self._namespaces
        return any(
            namespace[: len(prefix)] == prefix and (self._depth is None or len(namespace) - len(prefix) <= self._depth)
            for prefix in prefixes
        )
