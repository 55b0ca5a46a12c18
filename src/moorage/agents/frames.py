"""Encoding of a graph's output for the wire: event names and JSON, one frame at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message

from moorage.agents.records.runs import RunFailure, StreamMode
from moorage.kernel.encoding import encode, plain
from moorage.kernel.errors import MoorageError

# Wire modes that come from a LangGraph mode of another name.
_SOURCE: dict[StreamMode, str] = {"messages": "messages", "messages-tuple": "messages"}
# LangGraph's names for what happens to a tool and for its data, and those of the wire.
_TOOL_EVENTS = {
    "tool-started": ("on_tool_start", "input", "input"),
    "tool-output-delta": ("on_tool_event", "delta", "data"),
    "tool-finished": ("on_tool_end", "output", "output"),
    "tool-error": ("on_tool_error", "message", "error"),
}
_PRIVATE = "An internal error occurred"
# Exceptions whose message callers may read; the message of any other may hold what only the operator should see.
_TELLING = (ValueError, RuntimeError, TypeError, KeyError, TimeoutError, NotImplementedError, AttributeError)

Emitted = tuple[str, bytes]


def encode_output(value: Any) -> bytes:
    """Encode any graph output as JSON: messages flat, models as objects. Raises TypeError for values without a JSON
    form.
    """
    return encode(value, _plain_output)


def _plain_output(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        # The fields themselves: equal to model_dump(), but a dozen times faster, and this runs for each token.
        extra = value.__pydantic_extra__
        return {**value.__dict__, **extra} if extra else value.__dict__
    return plain(value)


def _plain_or_repr(value: Any) -> Any:
    try:
        return _plain_output(value)
    except TypeError:
        return repr(value)


def failure_of(error: BaseException) -> RunFailure:
    """Return the failure that a caller may see for a graph's exception."""
    known = isinstance(error, (*_TELLING, MoorageError)) or type(error).__module__.startswith("langgraph.")
    return {"error": type(error).__name__, "message": str(error) if known else _PRIVATE}


class PrivateErrors(BaseCallbackHandler):
    """Collector of messages that callers may not see, of exceptions that LangGraph's events show as plain text."""

    run_inline = True  # before LangGraph's own handlers send their events
    ignore_llm = ignore_chat_model = ignore_retriever = ignore_custom_event = True

    def __init__(self) -> None:
        self._private: set[str] = set()

    def on_chain_error(self, error: BaseException, **_: Any) -> None:
        if failure_of(error)["message"] != str(error):
            self._private.add(str(error))

    on_tool_error = on_chain_error

    def told(self, message: str) -> str:
        """Return the message as callers may see it."""
        return _PRIVATE if message in self._private else message

    def told_of_tool(self, event: Any) -> Any:
        """Return an event of a tool with its message as callers may see it."""
        is_error = isinstance(event, dict) and event.get("event") == "tool-error"
        return {**event, "message": self.told(event["message"])} if is_error else event


def graph_modes(wanted: Sequence[StreamMode]) -> list[Any]:
    """Return LangGraph's modes for the wanted wire modes."""
    modes = list(dict.fromkeys(_SOURCE.get(mode, mode) for mode in wanted if mode != "events"))
    return modes or ["values"]


class FrameMaker:
    """Converter of a run's chunks to frames. It keeps the messages so far, which the mode `messages` accumulates."""

    def __init__(self, wanted: Sequence[StreamMode], private_errors: PrivateErrors) -> None:
        self._wanted = frozenset(wanted)
        self._private_errors = private_errors
        self._whole: dict[str, BaseMessageChunk] = {}
        self._announced: set[str] = set()
        self._tool_names: dict[str, str] = {}  # of calls that have begun
        self._makers: dict[str, Callable[[str, Any], Iterator[Emitted]]] = {
            "messages": self._messages,
            "debug": self._debug,
            "tasks": self._tasks,
            "checkpoints": self._checkpoints,
            "events": self._events,
            "tools": self._tools,
        }

    def started(self, run_id: UUID, attempt: int) -> Iterator[Emitted]:
        yield "metadata", encode({"run_id": run_id, "attempt": attempt})

    def failed(self, failure: RunFailure) -> Iterator[Emitted]:
        yield "error", encode(failure)

    def rest(self) -> Iterator[Emitted]:
        """Yield the frames that were held back until the end: none here."""
        return iter(())

    def values_of(self, chunk: Any) -> Any:
        return chunk

    def frames(self, mode: str, namespace: tuple[str, ...], chunk: Any) -> Iterator[Emitted]:
        """Yield (event name, JSON) for one chunk; nothing for modes that were not requested."""
        if mode == "messages":
            yield from self._messages("|".join(namespace), chunk)
        elif mode in self._wanted:
            name = "|".join((mode, *namespace))
            maker = self._makers.get(mode)
            if maker is None:
                yield name, encode_output(chunk)
            else:
                yield from maker(name, chunk)

    def _messages(self, namespace: str, chunk: Any) -> Iterator[Emitted]:
        message, metadata = chunk
        if "messages-tuple" in self._wanted:
            yield (f"messages|{namespace}" if namespace else "messages"), encode_output([message, metadata])
        if "messages" in self._wanted:
            yield from self._accumulated(message, metadata)

    def _accumulated(self, message: BaseMessage, metadata: Any) -> Iterator[Emitted]:
        key = message.id or ""
        if key not in self._announced:
            self._announced.add(key)
            yield "messages/metadata", encode_output({key: {"metadata": metadata}})
        if not isinstance(message, BaseMessageChunk):
            yield "messages/complete", encode_output([message])
            return
        self._whole[key] = self._whole[key] + message if key in self._whole else message
        yield "messages/partial", encode_output([message_chunk_to_message(self._whole[key])])

    def _tasks(self, name: str, chunk: Any) -> Iterator[Emitted]:
        yield name, encode_output(_told(chunk))

    def _debug(self, name: str, chunk: Any) -> Iterator[Emitted]:
        payload = chunk["payload"]
        if chunk["type"] == "checkpoint":
            payload = _with_checkpoint_keys(payload)
        elif chunk["type"] == "task_result":
            payload = _told(payload)
        yield name, encode_output({**chunk, "payload": payload})

    def _events(self, name: str, chunk: Any) -> Iterator[Emitted]:
        # Events hold arbitrary objects of user code. Use the repr of objects without a JSON form, so that none fails
        # the run.
        yield name, encode(self._public(chunk), _plain_or_repr)

    def _public(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with what callers may see of configs and of tools' exceptions."""
        data = event.get("data", {})
        if isinstance(error := data.get("error"), BaseException):
            return {**event, "data": {**data, "error": failure_of(error)["message"]}}
        chunk = data.get("chunk")
        if not isinstance(chunk, tuple) or not chunk:
            return event
        part = self._private_errors.told_of_tool(_with_public_config(chunk[-1]))
        return event if part is chunk[-1] else {**event, "data": {**data, "chunk": (*chunk[:-1], part)}}

    def _tools(self, name: str, chunk: Any) -> Iterator[Emitted]:
        chunk, call_id = self._private_errors.told_of_tool(chunk), chunk["tool_call_id"]
        if chunk["event"] == "tool-started":
            self._tool_names[call_id] = chunk["tool_name"]
        event, source, target = _TOOL_EVENTS[chunk["event"]]
        told = {"event": event, "toolCallId": call_id, "name": self._tool_names.get(call_id), target: chunk.get(source)}
        yield name, encode(told, _plain_or_repr)

    def _checkpoints(self, name: str, chunk: Any) -> Iterator[Emitted]:
        yield (
            name,
            encode_output(_with_public(chunk)),
        )


def _told(task: dict[str, Any]) -> dict[str, Any]:
    """Return the task with its error reduced to what a caller may see."""
    error = task.get("error")
    return {**task, "error": failure_of(error)} if isinstance(error, BaseException) else task


def _with_public(checkpoint: dict[str, Any]) -> dict[str, Any]:
    configs = {name: _public(checkpoint.get(name)) for name in ("config", "parent_config")}
    return {**checkpoint, **configs}


def _with_public_config(part: Any) -> Any:
    """Return a chunk of a mode with its config as callers may see it, if it has one: as in `checkpoints` and `debug`."""
    if not isinstance(part, dict):
        return part
    payload = part.get("payload")
    if isinstance(payload, dict) and "config" in payload:
        return {**part, "payload": _with_public(payload)}
    return _with_public(part) if "config" in part else part


def _with_checkpoint_keys(payload: dict[str, Any]) -> dict[str, Any]:
    config, parent = _public(payload.get("config")), _public(payload.get("parent_config"))
    return {
        **payload,
        "config": config,
        "parent_config": parent,
        "checkpoint": checkpoint_of(config),
        "parent_checkpoint": checkpoint_of(parent),
    }


_PUBLIC_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def _public(config: Any) -> Any:
    """Return the config without LangGraph's own entries, many of which are not JSON, and without the user's data from
    the project's authentication, which the user may not be meant to see.
    """
    if not config:
        return config
    configurable = {k: v for k, v in config.get("configurable", {}).items() if not k.startswith("__")}
    if configurable.get("langgraph_auth_user") is not None:
        configurable["langgraph_auth_user"] = None
    return {"configurable": configurable}


def checkpoint_of(config: Any) -> dict[str, Any] | None:
    """Return the wire's checkpoint object for a config."""
    if not config or not (configurable := config.get("configurable")) or "checkpoint_id" not in configurable:
        return None
    return {key: configurable[key] for key in _PUBLIC_KEYS if key in configurable}
