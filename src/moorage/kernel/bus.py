"""Messages between tasks: topics of bytes that are fanned out to whoever follows them.

A message is not kept: who follows later sees later messages only. Followers that do not read are cut off at
`BACKLOG_BYTES_MAX`, so that one slow reader cannot take the memory of the process; and when all of them together leave
more than `BACKLOGS_BYTES_MAX` unread, the slowest is, so that many cannot either.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

BACKLOG_BYTES_MAX = 64 * 2**20
BACKLOGS_BYTES_MAX = 256 * 2**20
# What a follower is given at once: it lies in the buffer of its connection, where nothing counts it.
READ_BYTES_MAX = 64 * 2**10


class Follower:
    """One reader of one topic."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self.size_bytes = 0  # of what has not been read
        self._arrived: asyncio.Future[None] | None = None
        self.closed = False
        self.overrun = False  # cut off: nothing more will come, though the topic has not closed
        self.gap = False  # messages from other processes may have been lost

    def push(self, message: bytes) -> int:
        """By how much the backlog has grown."""
        if self.overrun:
            return 0
        before = self.size_bytes
        self._messages.append(message)
        self.size_bytes += len(message)
        if self.size_bytes > BACKLOG_BYTES_MAX and before:  # a single message may be of any size
            self.cut_off()
        self._notice()
        return self.size_bytes - before

    def cut_off(self) -> None:
        self._messages, self.size_bytes = [], 0
        self.overrun = self.closed = True
        self._notice()

    def note_gap(self) -> None:
        self.gap = True
        self._notice()

    def close(self) -> None:
        self.closed = True
        self._notice()

    def _notice(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def read(self, timeout_s: float | None = None) -> list[bytes]:
        """Messages that are there, waiting for the first. Empty when the topic has closed or the time is up."""
        if not self._messages and not self.closed:
            self._arrived = asyncio.get_running_loop().create_future()
            timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._notice)
            try:
                await self._arrived
            finally:
                self._arrived = None
                if timer:
                    timer.cancel()
        return self._take()

    def _take(self) -> list[bytes]:
        if self.size_bytes <= READ_BYTES_MAX:
            messages, self._messages, self.size_bytes = self._messages, [], 0
            return messages
        count = taken_bytes = 0
        while taken_bytes < READ_BYTES_MAX:
            taken_bytes += len(self._messages[count])
            count += 1
        messages, self._messages = self._messages[:count], self._messages[count:]
        self.size_bytes -= taken_bytes
        return messages


class Bus(Protocol):
    """Fan-out of messages by topic."""

    def publish(self, topic: str, message: bytes) -> None:
        """Hand the message to everyone who follows the topic now. Never waits, never fails."""

    def close_topic(self, topic: str) -> None:
        """Tell the followers that nothing more will come."""

    def has_followers(self, topic: str) -> bool:
        """Return True if a message that is published now would reach anybody."""

    def expect_followers(self, topic: str) -> None:
        """Whoever follows this topic does so in another process, and may not have said so yet."""

    def ask_others(self, topic: str) -> None:
        """The topic is published in another process: have it forwarded until the last follower here leaves."""

    def follow(self, topic: str) -> AbstractContextManager[Follower]:
        """Messages from now on, until the context ends."""

    def cut_off_all(self) -> None:
        """This process stops: its followers have to come back, here or elsewhere."""

    def signal(self, name: str, value: str) -> None:
        """Tell all other processes. A hint: it may get lost, and what it is about is in the database anyway."""

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """Call the handler whenever another process sends this signal."""


class LocalBus:
    """The bus of a single process."""

    def __init__(self) -> None:
        self._followers: defaultdict[str, list[Follower]] = defaultdict(list)
        self._pushed_bytes = 0  # since the backlogs were last added up

    def publish(self, topic: str, message: bytes) -> None:
        for follower in self._followers.get(topic, ()):
            self._pushed_bytes += follower.push(message)
        if self._pushed_bytes > BACKLOGS_BYTES_MAX // 8:
            self._bound_backlogs()

    def _bound_backlogs(self) -> None:
        """Now and then, since it looks at every follower."""
        self._pushed_bytes = 0
        unread = sorted(self._all_followers(), key=lambda follower: follower.size_bytes)
        total = sum(follower.size_bytes for follower in unread)
        while total > BACKLOGS_BYTES_MAX:
            slowest = unread.pop()
            total -= slowest.size_bytes
            slowest.cut_off()

    def _all_followers(self) -> list[Follower]:
        return [follower for followers in self._followers.values() for follower in followers]

    def cut_off_all(self) -> None:
        for follower in self._all_followers():
            follower.cut_off()

    def note_gap(self) -> None:
        """Messages from other processes may have been lost: their followers cannot rely on having seen all."""
        for follower in self._all_followers():
            follower.note_gap()

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
