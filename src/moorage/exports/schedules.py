"""Windows of a scheduled export, which follow one another without gaps. Pure functions."""

from __future__ import annotations

from datetime import datetime, timedelta

from moorage.exports.records.exports import SPAWN_DELAY
from moorage.exports.records.runs import Window


def windows_due(next_start_at: datetime, interval: timedelta, now: datetime, most: int) -> list[Window]:
    """List up to `most` windows from `next_start_at` on that ended at least ten minutes ago, oldest first.

    After a downtime these are all windows that were missed.
    """
    windows: list[Window] = []
    start = next_start_at
    while len(windows) < most and start + interval + SPAWN_DELAY <= now:
        windows.append(Window(start, start + interval))
        start += interval
    return windows
