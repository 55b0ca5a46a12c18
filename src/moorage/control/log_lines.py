"""From what an agent prints to lines of its log: JSON as our own server prints it, or any text.

A line's time and place come from the file, so that one that is read again is the same line.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from moorage.control.records.logs import LogLevel
from moorage.kernel.encoding import decode

_MESSAGE_CHARS_MAX = 16_000
_WORDS = {"warn": LogLevel.WARNING, "exception": LogLevel.ERROR, "fatal": LogLevel.CRITICAL}
_WORDS |= {level.value.lower(): level for level in LogLevel}
_TOLD_ELSEWHERE = ("event", "message", "level", "timestamp", "exception", "run_id")


class Reading:
    """Of one file, line after line. `since` is the time of lines that come before any with a time of its own."""

    def __init__(self, since: datetime) -> None:
        self.now = since

    def read(self, line: str) -> tuple[datetime, LogLevel, str, str]:
        """Time, level, text and the id of the run that it is about, or ""."""
        found = _object(line)
        if found is None:
            return self.now, _level_of_text(line), line[:_MESSAGE_CHARS_MAX], ""
        self.now = _time(found.get("timestamp")) or self.now
        level = _WORDS.get(str(found.get("level", "")).lower(), LogLevel.INFO)
        run_id = str(found.get("run_id") or "")[:64]
        return self.now, level, _text(found)[:_MESSAGE_CHARS_MAX], run_id


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = decode(line.encode())
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("event" in found or "message" in found) else None


def _time(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _text(found: dict[str, Any]) -> str:
    head = str(found.get("event") or found.get("message") or "")
    rest = " ".join(f"{name}={value}" for name, value in found.items() if name not in _TOLD_ELSEWHERE)
    trace = f"\n{found['exception']}" if found.get("exception") else ""
    return f"{head} {rest}".rstrip() + trace


def _level_of_text(line: str) -> LogLevel:
    """As the standard module writes it, the level first."""
    return _WORDS.get(line.partition(" ")[0].strip(":[]").lower(), LogLevel.INFO)
