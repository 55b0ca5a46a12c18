"""Identifiers. New rows get UUIDv7, so that primary keys grow with time and sort in the order of creation."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Return a time-ordered UUID (RFC 9562). Strictly increasing within this process, even inside one millisecond."""
    global _last  # noqa: PLW0603 - the counter that keeps ids of one process in order
    with _lock:
        # 48 bits of milliseconds and 12 bits of fraction form one number that only grows.
        _last = max(_last + 1, time.time_ns() * 4096 // 1_000_000)
        tick = _last
    random = int.from_bytes(os.urandom(8)) >> 2
    return UUID(int=(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | random)
