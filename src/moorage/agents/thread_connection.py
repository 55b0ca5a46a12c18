"""One client of a thread that sends commands and subscribes over one bidirectional connection, such as a WebSocket.

Answers and events are JSON texts. Overlapping subscriptions each send a matching event; clients recognise duplicates by
`event_id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog
from pydantic import ValidationError

from moorage.agents.commands import Commands
from moorage.agents.principals import Principal, Sent
from moorage.agents.records.protocol import (
    ErrorCode,
    EventStreamRequest,
    ProtocolCommand,
    ProtocolFailure,
    Success,
    Unsubscribe,
)
from moorage.agents.records.words import JsonObject
from moorage.agents.thread_stream import ThreadStreams
from moorage.http import sse
from moorage.kernel.encoding import encode
from moorage.kernel.errors import MoorageError, UnavailableError
from moorage.kernel.ids import uuid7

log = structlog.get_logger(__name__)

_SUBSCRIPTIONS_MAX = 100


class ThreadConnection:
    """The connection. `send` waits until the client takes a text; `cut_off` ends the connection."""

    def __init__(
        self,
        commands: Commands,
        streams: ThreadStreams,
        *,
        who: Principal,
        thread_id: UUID,
        sent: Sent,
        send: Callable[[bytes], Awaitable[None]],
        cut_off: Callable[[], None],
    ) -> None:
        self._commands = commands
        self._streams = streams
        self._who = who
        self._thread_id = thread_id
        self._sent = sent
        self._send = send
        self._cut_off = cut_off
        self._subscriptions: dict[str, asyncio.Task[None]] = {}

    async def take(self, text: bytes) -> None:
        """Carry out a message of the client, and answer it."""
        try:
            command = ProtocolCommand.model_validate_json(text)
        except ValidationError as error:
            await self.refuse(str(error.errors()[0]["msg"]))
            return
        carry_out = {
            "subscription.subscribe": self._subscribe,
            "subscription.unsubscribe": self._unsubscribe,
            "subscription.reconnect": self._reconnect,
        }.get(command.method)
        if carry_out is None:
            await self._send(encode(await self._commands.carry_out(self._who, self._thread_id, command, self._sent)))
            return
        try:
            await carry_out(command)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            await self._send(encode(_refusal(command.id, "invalid_argument", wrong)))
        except MoorageError as error:
            await self._send(encode(_refusal(command.id, "invalid_argument", str(error))))

    async def refuse(self, why: str) -> None:
        """Answer a message that is no command."""
        await self._send(encode(_refusal(None, "invalid_argument", why)))

    async def close(self) -> None:
        """End all subscriptions."""
        tasks = list(self._subscriptions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _subscribe(self, command: ProtocolCommand) -> None:
        request = EventStreamRequest.model_validate_json(encode(command.params))
        if len(self._subscriptions) >= _SUBSCRIPTIONS_MAX:
            wrong = f"A connection has {_SUBSCRIPTIONS_MAX} subscriptions at most: end one first"
            await self._send(encode(_refusal(command.id, "invalid_argument", wrong)))
            return
        events = await self._streams.events(self._who, self._thread_id, request)
        subscription_id = str(uuid7())
        await self._succeed(command, {"subscription_id": subscription_id})
        self._subscriptions[subscription_id] = asyncio.create_task(self._pump(events))

    async def _pump(self, events: sse.Frames) -> None:
        try:
            async for frames in events:
                for frame in frames:
                    await self._send(sse.data_of(frame))
        except UnavailableError as error:  # the client must reconnect, and continues at its last event
            log.warning("a subscription was cut off", thread_id=str(self._thread_id), error=str(error))
            self._cut_off()
        finally:
            await events.aclose()

    async def _unsubscribe(self, command: ProtocolCommand) -> None:
        asked = Unsubscribe.model_validate_json(encode(command.params))
        task = self._subscriptions.pop(asked.subscription_id, None)
        if task is None:
            wrong = f"This connection has no subscription {asked.subscription_id}"
            await self._send(encode(_refusal(command.id, "no_such_subscription", wrong)))
            return
        task.cancel()
        await asyncio.wait([task])
        await self._succeed(command, {})

    async def _reconnect(self, command: ProtocolCommand) -> None:
        """Answer that nothing was restored: subscriptions end with their connection, and the client makes new ones with
        `since`.
        """
        await self._succeed(command, {"restored": False})

    async def _succeed(self, command: ProtocolCommand, result: JsonObject) -> None:
        answer: Success = {"type": "success", "id": command.id, "result": result, "meta": {"applied_through_seq": 0}}
        await self._send(encode(answer))


def _refusal(command_id: int | None, code: ErrorCode, message: str) -> ProtocolFailure:
    return {"type": "error", "id": command_id, "error": code, "message": message}
