"""Waiting for a state that other code brings about.

The pauses between two looks grow, since a look at a server or at all processes takes CPU that other tests need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import Any

_PAUSE_S, _PAUSE_S_MAX, _GROWTH = 0.01, 0.2, 1.3


async def until(found: Callable[[], Any | Awaitable[Any]], bound_s: float = 60) -> Any:
    """Return the first true value of `found`. Raises AssertionError when there is none in time."""
    for pause_s in _pauses(bound_s):
        value = found()
        value = await value if isawaitable(value) else value
        if value:
            return value
        await asyncio.sleep(pause_s)
    raise AssertionError("it has not come about")


def wait_until(found: Callable[[], Any], bound_s: float = 60) -> Any:
    """Return the first true value of `found`, for tests without an event loop. Raises AssertionError when there is none
    in time.
    """
    for pause_s in _pauses(bound_s):
        if value := found():
            return value
        time.sleep(pause_s)
    raise AssertionError("it has not come about")


def _pauses(bound_s: float) -> Iterator[float]:
    give_up_at, pause_s = time.monotonic() + bound_s, _PAUSE_S
    while time.monotonic() < give_up_at:
        yield pause_s
        pause_s = min(pause_s * _GROWTH, _PAUSE_S_MAX)
