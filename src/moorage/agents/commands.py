"""Commands of the thread-centric protocol: start a run, answer an interrupt, read the state, fork from a checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, ValidationError

from moorage.agents.principals import Principal, Sent
from moorage.agents.records.protocol import (
    PROTOCOL,
    ErrorCode,
    InputInject,
    InputRespond,
    ListCheckpoints,
    ProtocolCommand,
    ProtocolFailure,
    StateFork,
    StateGet,
    Success,
    checkpoint_in,
)
from moorage.agents.records.runs import RunCreate
from moorage.agents.records.states import ThreadHistory, ThreadState, ThreadTask
from moorage.agents.records.threads import Thread
from moorage.agents.records.words import JsonObject
from moorage.agents.runs import Runs
from moorage.agents.state import States
from moorage.agents.threads import Threads
from moorage.kernel.encoding import encode
from moorage.kernel.errors import ForbiddenError, MoorageError

Params = TypeVar("Params", bound=BaseModel)

# How long to wait for a run to end after it has raised an interrupt.
_ENDS_S = 5.0
_LOOK_S = 0.02
_ON_CONNECTION = "This connection sends what it asked for when it was opened: open another one for other channels"


class CommandRefused(Exception):
    """Refusal of a command; `code` is the protocol's error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class _Call:
    who: Principal
    thread_id: UUID
    sent: Sent


class Commands:
    def __init__(self, runs: Runs, states: States, threads: Threads) -> None:
        self._runs = runs
        self._states = states
        self._threads = threads
        self._commands: dict[str, Callable[[_Call, JsonObject], Awaitable[JsonObject]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
            "input.inject": self._inject,
            "agent.getTree": self._tree,
            "state.get": self._state,
            "state.listCheckpoints": self._checkpoints,
            "state.fork": self._fork,
        }

    async def carry_out(
        self, who: Principal, thread_id: UUID, command: ProtocolCommand, sent: Sent
    ) -> Success | ProtocolFailure:
        """Return the answer to a command. A failed command is an answer too: HTTP errors are only for a malformed
        envelope.
        """
        try:
            result = await self._carry_out(_Call(who, thread_id, sent), command)
        except CommandRefused as error:
            return _failure(command, error.code, str(error))
        except ForbiddenError as error:
            return _failure(command, "permission_denied", str(error))
        except MoorageError as error:
            known = error.status < 500
            return _failure(command, "invalid_argument" if known else "unknown_error", str(error))
        return {"type": "success", "id": command.id, "result": result, "meta": {"applied_through_seq": 0}}

    async def _carry_out(self, call: _Call, command: ProtocolCommand) -> JsonObject:
        if command.method.startswith("subscription."):
            raise CommandRefused("not_supported", _ON_CONNECTION)
        carry_out = self._commands.get(command.method)
        if carry_out is None:
            raise CommandRefused("unknown_command", f"Unknown command '{command.method}'")
        return await carry_out(call, command.params)

    async def _start(self, call: _Call, params: JsonObject) -> JsonObject:
        """Start a run. Creates the thread if it does not exist."""
        return await self._run(call, {**params, "if_not_exists": "create"})

    async def _respond(self, call: _Call, params: JsonObject) -> JsonObject:
        given = _read(InputRespond, params)
        answers = given.answers()
        thread = await self._waiting_thread(call, answers.keys())
        command = {"resume": answers, "update": given.update, "goto": given.goto}
        asked = {"command": command, "config": given.config, "metadata": given.metadata}
        return await self._run(call, {**asked, "assistant_id": _assistant_of(thread)})

    async def _waiting_thread(self, call: _Call, answered: Collection[str]) -> Thread:
        """Return the thread when all `answered` interrupts wait on it. Waits a moment, since a fast client may answer
        before the run that asked has ended.
        """
        give_up_at = time.monotonic() + _ENDS_S
        while True:
            thread = await self._threads.get(call.who, call.thread_id)
            waiting = {each.get("id") for interrupts in thread["interrupts"].values() for each in interrupts}
            if answered and waiting.issuperset(answered):
                return thread
            if thread["status"] != "busy" or time.monotonic() > give_up_at:
                named = ", ".join(sorted(set(answered) - waiting)) or "none was named"
                raise CommandRefused("no_such_interrupt", f"No such interrupt waits on this thread: {named}")
            await asyncio.sleep(_LOOK_S)

    async def _inject(self, call: _Call, params: JsonObject) -> JsonObject:
        """Add a message. If a run is executing, the message waits until that run has ended."""
        message = _read(InputInject, params).message.model_dump(exclude_none=True)
        thread = await self._threads.get(call.who, call.thread_id)
        await self._run(call, {"assistant_id": _assistant_of(thread), "input": {"messages": [message]}})
        return {}

    async def _fork(self, call: _Call, params: JsonObject) -> JsonObject:
        given = _read(StateFork, params)
        thread = await self._threads.get(call.who, call.thread_id)
        found = await self._states.history(call.who, call.thread_id, ThreadHistory(limit=1000))
        if given.checkpoint_id not in {state["checkpoint_id"] for state in found}:
            raise CommandRefused("no_such_checkpoint", f"This thread has no checkpoint {given.checkpoint_id}")
        asked = {"checkpoint_id": given.checkpoint_id, "input": given.input, "config": given.config}
        started = await self._run(call, {**asked, "assistant_id": _assistant_of(thread)})
        return {**started, "thread_id": str(call.thread_id)}

    async def _run(self, call: _Call, asked: JsonObject) -> JsonObject:
        """Start a run whose stream speaks the protocol. Fields that choose another stream are ignored."""
        new = _read(RunCreate, asked).model_copy(update={"stream_mode": [PROTOCOL], "stream_resumable": True})
        run = await self._runs.create(call.who, call.thread_id, new, call.sent)
        return {"run_id": str(run["run_id"])}

    async def _state(self, call: _Call, params: JsonObject) -> JsonObject:
        given = _read(StateGet, params)
        state = await self._states.get(call.who, call.thread_id, checkpoint_in(given.namespace), subgraphs=False)
        values = state["values"] if isinstance(state["values"], dict) else {}
        shown = {key: value for key, value in values.items() if given.keys is None or key in given.keys}
        return {"values": shown, **({"checkpoint": {"id": state["checkpoint_id"]}} if state["checkpoint_id"] else {})}

    async def _checkpoints(self, call: _Call, params: JsonObject) -> JsonObject:
        given = _read(ListCheckpoints, params)
        search = ThreadHistory(limit=given.limit, before=given.before, checkpoint=checkpoint_in(given.namespace))
        return {
            "checkpoints": [_summary(state) for state in await self._states.history(call.who, call.thread_id, search)]
        }

    async def _tree(self, call: _Call, params: JsonObject) -> JsonObject:
        """Return the thread's graph with the subgraphs that are executing or waiting."""
        thread = await self._threads.get(call.who, call.thread_id)
        state = await self._states.get(call.who, call.thread_id, None, subgraphs=True)
        status = {"busy": "running", "idle": "completed", "error": "failed"}.get(thread["status"], thread["status"])
        graph = str(thread["metadata"].get("graph_id", ""))
        return {"tree": {"namespace": [], "status": status, "graph_name": graph, "children": _children(state, [])}}


def _read(model: type[Params], params: JsonObject) -> Params:
    try:
        return model.model_validate_json(encode(params))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise CommandRefused("invalid_argument", wrong) from error


def _failure(command: ProtocolCommand, code: ErrorCode, message: str) -> ProtocolFailure:
    return {"type": "error", "id": command.id, "error": code, "message": message}


def _assistant_of(thread: Thread) -> str:
    assistant_id = thread["metadata"].get("assistant_id")
    if not isinstance(assistant_id, str):
        raise CommandRefused("invalid_argument", "No run was made on this thread: begin with run.start")
    return assistant_id


def _summary(state: ThreadState) -> JsonObject:
    metadata = state["metadata"] or {}
    return {
        "id": state["checkpoint_id"],
        "timestamp": state["created_at"],
        "step": metadata.get("step"),
        "metadata": metadata,
    }


def _children(state: ThreadState, namespace: list[str]) -> list[JsonObject]:
    return [_child(task, [*namespace, f"{task['name']}:{task['id']}"]) for task in state["tasks"] if task["state"]]


def _child(task: ThreadTask, namespace: list[str]) -> JsonObject:
    status = "failed" if task["error"] else "interrupted" if task["interrupts"] else "running"
    children = _children(cast(ThreadState, task["state"]), namespace)
    return {"namespace": namespace, "status": status, "graph_name": task["name"], "children": children}
