"""Wait for a state that comes about by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any


async def until(found: Callable[[], Any | Awaitable[Any]], bound_s: float = 60) -> Any:
    """Return the first true value of `found`. Raises AssertionError when there is none in time."""
    give_up_at = time.monotonic() + bound_s
    while True:
        value = found()
        value = await value if isawaitable(value) else value
        if value:
            return value
        assert time.monotonic() < give_up_at, "it has not come about"
        await asyncio.sleep(0.02)


def wait_until(found: Callable[[], Any], bound_s: float = 60) -> Any:
    """Return the first true value of `found`, for tests without an event loop. Raises AssertionError when there is none in time."""
    give_up_at = time.monotonic() + bound_s
    while not (value := found()):
        assert time.monotonic() < give_up_at, "it has not come about"
        time.sleep(0.05)
    return value
