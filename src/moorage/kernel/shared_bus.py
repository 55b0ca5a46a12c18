"""The bus of several processes: each fans out to its own followers, and forwards topics that other processes requested.

A process that follows a topic published elsewhere requests it; a process that publishes on that topic then broadcasts
its messages. Topics that nobody requested are not broadcast, so following a run where it executes costs nothing extra.

Each request has a number, and each forwarded message carries it. Between the end of one request and the next nothing is
forwarded. A message of an earlier request that is still in transit is therefore dropped, even before the next request:
if it counted as the first forwarded message, the gap behind it would go unnoticed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Protocol

import structlog

from moorage.kernel.bus import Follower, LocalBus
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

# The largest number of remembered topics that another process follows and this one has not published on.
_FOREIGN_TOPICS_MAX = 100_000
_RETRY_S = 1.0
_PATIENCE_S = 10.0
_GAP = {"kind": "gap", "topic": "", "value": ""}


class Broadcast(Protocol):
    """Messages to all processes of the installation. Those of one process arrive in the order in which it sent them."""

    async def send(self, message: bytes) -> None:
        """Send a message. Raises UnavailableError when nobody can be reached."""

    def receive(self) -> AsyncIterator[bytes]:
        """Yield the messages of all processes, this one included. Reconnects by itself.

        Yields an empty message whenever it begins to listen, at first and after a lost connection: earlier messages are
        missed.
        """


class SharedBus(LocalBus):
    """A LocalBus that also reaches the followers in other processes."""

    def __init__(self, broadcast: Broadcast, name: str) -> None:
        super().__init__()
        self._broadcast = broadcast
        self._name = name
        # Topics that others follow: for each process the number of its request.
        self._foreign: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._asked: dict[str, int] = {}  # topics that we have requested from others, with the number of the request
        self._numbers = count(1)
        self._handlers: dict[str, Callable[[str], None]] = {}
        self._outbox: list[dict[str, Any]] = []
        self._sender: asyncio.Task[None] | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._listens = asyncio.Event()

    async def start(self) -> None:
        """Start to listen. When this returns it listens, unless the others cannot be reached for long."""
        self._receiver = asyncio.create_task(self._receive())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._listens.wait(), _PATIENCE_S)

    async def stop(self) -> None:
        """Send the queued messages, and stop."""
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=2)
        for task in (self._sender, self._receiver):
            if task is not None:
                task.cancel()

    def publish(self, topic: str, message: bytes) -> None:
        super().publish(topic, message)
        if topic in self._foreign:
            self._send("message", topic, message.decode(), askings=self._foreign[topic].copy())

    def close_topic(self, topic: str) -> None:
        super().close_topic(topic)
        if topic in self._foreign:
            self._send("close", topic)
            del self._foreign[topic]

    def has_followers(self, topic: str) -> bool:
        return topic in self._foreign or super().has_followers(topic)

    def expect_followers(self, topic: str) -> None:
        self._foreign[topic][""] = 0

    def ask_others(self, topic: str) -> None:
        if topic not in self._asked:
            self._asked[topic] = next(self._numbers)
            self._send("follow", topic, asking=self._asked[topic])

    @contextmanager
    def follow(self, topic: str) -> Iterator[Follower]:
        try:
            with super().follow(topic) as follower:
                yield follower
        finally:
            if topic in self._asked and not super().has_followers(topic):
                del self._asked[topic]
                self._send("unfollow", topic)

    def signal(self, name: str, value: str) -> None:
        self._send("signal", name, value)

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        self._handlers[name] = handler

    # --- between processes ----------------------------------------------------------------------------------------

    def _send(self, kind: str, topic: str, value: str = "", **more: Any) -> None:
        self._outbox.append({"kind": kind, "topic": topic, "value": value, **more})
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send the queue, each time as one message, until it is empty: a burst costs few round trips."""
        try:
            while self._outbox:
                items, self._outbox = self._outbox, []
                try:
                    await self._broadcast.send(encode({"from": self._name, "items": items}))
                except UnavailableError as error:
                    log.warning("other processes cannot be told", error=str(error))
                    await asyncio.sleep(_RETRY_S)
                    self._lose_outbox()
        finally:
            self._sender = None

    def _lose_outbox(self) -> None:
        """Drop the outbox. Unsent messages are not kept; both sides are told that some are missing."""
        self._outbox = [_GAP]
        self._asked.clear()
        self.note_gap()

    async def _receive(self) -> None:
        async for data in self._broadcast.receive():
            if not data:
                self._begin_to_listen()
                continue
            message = decode(data)
            if message["from"] != self._name:
                for item in message["items"]:
                    self._take_in(message["from"], item)

    def _begin_to_listen(self) -> None:
        """Request again the topics that we follow, and ask the others to repeat their requests: either side may have
        missed messages.
        """
        if self._listens.is_set():
            self.note_gap()
        self._listens.set()
        self._send("who follows", "")
        self._repeat_asked()

    def _repeat_asked(self) -> None:
        for topic, number in self._asked.items():
            self._send("follow", topic, asking=number)

    def _is_of_a_former_asking(self, item: dict[str, Any]) -> bool:
        asking = item["askings"].get(self._name)  # None: this process has not requested the topic
        return asking is not None and asking != self._asked.get(item["topic"])

    def _take_in(self, sender: str, item: dict[str, Any]) -> None:
        kind, topic, value = item["kind"], item["topic"], item["value"]
        if kind == "message":
            if not self._is_of_a_former_asking(item):
                super().publish(topic, value.encode())
        elif kind == "close":
            super().close_topic(topic)
        elif kind == "gap":
            self.note_gap()
        elif kind == "signal":
            if handler := self._handlers.get(topic):
                handler(value)
        elif kind == "who follows":
            self._repeat_asked()
        elif kind == "follow":
            if len(self._foreign) < _FOREIGN_TOPICS_MAX:
                self._foreign[topic][sender] = item["asking"]
        elif kind == "unfollow" and topic in self._foreign:
            self._foreign[topic].pop(sender, None)
            if not self._foreign[topic]:
                del self._foreign[topic]
