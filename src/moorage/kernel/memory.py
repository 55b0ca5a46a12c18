"""A cache that is bounded in number and in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Memory(Generic[K, T]):
    """A bounded cache of recent answers. When it is full, the oldest entry is dropped."""

    def __init__(self, entries_max: int) -> None:
        self._entries: dict[K, tuple[T, float]] = {}
        self._entries_max = entries_max

    def recall(self, key: K) -> T | None:
        entry = self._entries.get(key)
        if entry is None or entry[1] <= time.monotonic():
            return None
        return entry[0]

    def keep(self, key: K, value: T, seconds: float) -> None:
        self._entries.pop(key, None)  # otherwise the entry would keep its old position
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (value, time.monotonic() + seconds)

    def forget(self, is_gone: Callable[[K, T], bool]) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if not is_gone(key, entry[0])}
