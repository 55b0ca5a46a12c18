"""Parser of log lines: JSON of our own server, or any text that an agent prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage.control.records.logs import LogLevel
from moorage.kernel.encoding import decode

_MESSAGE_CHARS_MAX = 16_000
_WORDS = {"warn": LogLevel.WARNING, "exception": LogLevel.ERROR, "fatal": LogLevel.CRITICAL}
_WORDS |= {level.value.lower(): level for level in LogLevel}
_TOLD_ELSEWHERE = ("event", "message", "level", "timestamp", "exception", "run_id")


# The beginning of a line of text, as logging, structlog and others write it.
_TEXT_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)")
_CLOCKS_DIFFER = timedelta(seconds=2)


@dataclass(frozen=True)
class PrintedLine:
    """`at` is the time in the line itself, or None. `run_id` may be empty."""

    at: datetime | None
    level: LogLevel
    message: str
    run_id: str = ""


def read_line(line: str) -> PrintedLine:
    found = _object(line)
    if found is None:
        return PrintedLine(_time_of_text(line), _level_of_text(line), line[:_MESSAGE_CHARS_MAX])
    level = _WORDS.get(str(found.get("level", "")).lower(), LogLevel.INFO)
    run_id = str(found.get("run_id") or "")[:64]
    return PrintedLine(_time(found.get("timestamp")), level, _text(found)[:_MESSAGE_CHARS_MAX], run_id)


def times_of(lines: Sequence[PrintedLine], since: datetime, until: datetime) -> list[datetime]:
    """Return the time of each line; all lines were printed between `since` and `until`.

    A line without a time gets the time of the next line that has one: it was printed before that line, and stays before
    it in the order. Times outside the bounds are not used for other lines.
    """
    times, bound = [], until
    for line in reversed(lines):
        if line.at is not None and since - _CLOCKS_DIFFER <= line.at <= until + _CLOCKS_DIFFER:
            bound = min(bound, max(line.at, since))
        times.append(line.at or bound)
    return times[::-1]


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


def _time_of_text(line: str) -> datetime | None:
    """Read the time. A time without a zone is this machine's local time, as `logging` writes it."""
    found = _TEXT_TIME.match(line)
    try:
        return datetime.fromisoformat(found[1]).astimezone(UTC) if found else None
    except (ValueError, OverflowError):
        return None


def _text(found: dict[str, Any]) -> str:
    head = str(found.get("event") or found.get("message") or "")
    rest = " ".join(f"{name}={value}" for name, value in found.items() if name not in _TOLD_ELSEWHERE)
    trace = f"\n{found['exception']}" if found.get("exception") else ""
    return f"{head} {rest}".rstrip() + trace


def _level_of_text(line: str) -> LogLevel:
    """Read the level from a line in the standard format of `logging`, which begins with the level."""
    return _WORDS.get(line.partition(" ")[0].strip(":[]").lower(), LogLevel.INFO)
