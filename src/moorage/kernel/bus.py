"""Messages between tasks: topics of bytes that are fanned out to whoever follows them.

A message is not kept: who follows later sees later messages only. Followers that do not read are cut off at
`BACKLOG_BYTES_MAX`, so that one slow reader cannot take the memory of the process.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

BACKLOG_BYTES_MAX = 64 * 2**20


class Follower:
    """One reader of one topic."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._size_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self.closed = False
        self.overrun = False

    def push(self, message: bytes) -> None:
        if self.overrun:
            return
        self._messages.append(message)
        self._size_bytes += len(message)
        if self._size_bytes > BACKLOG_BYTES_MAX:
            self._messages.clear()
            self.overrun = self.closed = True
        self._notice()

    def close(self) -> None:
        self.closed = True
        self._notice()

    def _notice(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def read(self, timeout_s: float | None = None) -> list[bytes]:
        """All messages that are there, waiting for the first. Empty when the topic has closed or the time is up."""
        if not self._messages and not self.closed:
            self._arrived = asyncio.get_running_loop().create_future()
            timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._notice)
            try:
                await self._arrived
            finally:
                self._arrived = None
                if timer:
                    timer.cancel()
        messages, self._messages, self._size_bytes = self._messages, [], 0
        return messages


class Bus(Protocol):
    """Fan-out of messages by topic."""

    def publish(self, topic: str, message: bytes) -> None:
        """Hand the message to everyone who follows the topic now. Never waits, never fails."""

    def close_topic(self, topic: str) -> None:
        """Tell the followers that nothing more will come."""

    def has_followers(self, topic: str) -> bool:
        """Whether anybody would get a message that is published now."""

    def expect_followers(self, topic: str) -> None:
        """Whoever follows this topic does so in another process, and may not have said so yet."""

    def ask_others(self, topic: str) -> None:
        """The topic is published in another process: have it forwarded until the last follower here leaves."""

    def follow(self, topic: str) -> AbstractContextManager[Follower]:
        """Messages from now on, until the context ends."""

    def signal(self, name: str, value: str) -> None:
        """Tell all other processes. A hint: it may get lost, and what it is about is in the database anyway."""

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """What to do when another process gives this signal."""


class LocalBus:
    """The bus of a single process."""

    def __init__(self) -> None:
        self._followers: defaultdict[str, list[Follower]] = defaultdict(list)

    def publish(self, topic: str, message: bytes) -> None:
        for follower in self._followers.get(topic, ()):
            follower.push(message)

    def close_topic(self, topic: str) -> None:
        for follower in self._followers.get(topic, ()):
            follower.close()

    def has_followers(self, topic: str) -> bool:
        return topic in self._followers

    def expect_followers(self, topic: str) -> None:
        """There is no other process."""

    def ask_others(self, topic: str) -> None:
        """There is no other process."""

    def signal(self, name: str, value: str) -> None:
        """There is no other process."""

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """There is no other process."""

    @contextmanager
    def follow(self, topic: str) -> Iterator[Follower]:
        follower = Follower()
        self._followers[topic].append(follower)
        try:
            yield follower
        finally:
            self._followers[topic].remove(follower)
            if not self._followers[topic]:
                del self._followers[topic]
