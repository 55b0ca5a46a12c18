"""Messages between tasks: topics of bytes that are fanned out to their followers.

Messages are not kept: a follower sees only later ones. A follower that does not read is cut off at
`BACKLOG_BYTES_MAX`, so that one slow reader cannot exhaust the memory of the process. When all backlogs together exceed
`BACKLOGS_BYTES_MAX`, the slowest follower is cut off.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

BACKLOG_BYTES_MAX = 64 * 2**20
BACKLOGS_BYTES_MAX = 256 * 2**20
# Limit of what one read returns, since nothing counts messages in the buffer of the follower's connection.
READ_BYTES_MAX = 64 * 2**10


class Follower:
    """One reader of one topic."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self.size_bytes = 0  # unread messages only
        self._arrived: asyncio.Future[None] | None = None
        self.closed = False
        self.overrun = False  # cut off: nothing more will come, although the topic is not closed
        self.gap = False  # messages from other processes may have been lost

    def push(self, message: bytes) -> int:
        """Add a message. Returns by how much the backlog has grown."""
        if self.overrun:
            return 0
        before = self.size_bytes
        self._messages.append(message)
        self.size_bytes += len(message)
        if self.size_bytes > BACKLOG_BYTES_MAX and before:  # a single message may have any size
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
        """Return the waiting messages, or wait for the first. Returns an empty list if the topic has closed or time is
        up.
        """
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
        """Send the message to all current followers. Never waits, never fails."""

    def close_topic(self, topic: str) -> None:
        """Tell the followers that no more messages will come."""

    def has_followers(self, topic: str) -> bool:
        """Return True if a message published now would reach anybody."""

    def expect_followers(self, topic: str) -> None:
        """Treat the topic as followed: its follower is in another process, and may not have announced itself yet."""

    def ask_others(self, topic: str) -> None:
        """Have the topic, which another process publishes, forwarded until the last follower here leaves."""

    def follow(self, topic: str) -> AbstractContextManager[Follower]:
        """Follow the topic from now until the context ends."""

    def cut_off_all(self) -> None:
        """Cut off all followers, because this process stops. They have to reconnect, here or elsewhere."""

    def signal(self, name: str, value: str) -> None:
        """Send a hint to all other processes. It may get lost, so its subject must also be in the database."""

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """Call the handler whenever another process sends this signal."""


class LocalBus:
    """The bus of a single process."""

    def __init__(self) -> None:
        self._followers: defaultdict[str, list[Follower]] = defaultdict(list)
        self._pushed_bytes = 0  # since the last check of all backlogs

    def publish(self, topic: str, message: bytes) -> None:
        for follower in self._followers.get(topic, ()):
            self._pushed_bytes += follower.push(message)
        if self._pushed_bytes > BACKLOGS_BYTES_MAX // 8:
            self._bound_backlogs()

    def _bound_backlogs(self) -> None:
        """Check the backlogs now and then, since that visits every follower."""
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
        """Record that messages from other processes may have been lost."""
        for follower in self._all_followers():
            follower.note_gap()

    def close_topic(self, topic: str) -> None:
        for follower in self._followers.get(topic, ()):
            follower.close()

    def has_followers(self, topic: str) -> bool:
        return topic in self._followers

    def expect_followers(self, topic: str) -> None:
        """Do nothing: there is no other process."""

    def ask_others(self, topic: str) -> None:
        """Do nothing: there is no other process."""

    def signal(self, name: str, value: str) -> None:
        """Do nothing: there is no other process."""

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """Do nothing: there is no other process."""

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
