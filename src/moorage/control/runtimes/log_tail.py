"""Follows the file that a revision prints to, and stores its lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from moorage.control.log_lines import Reading
from moorage.control.records.logs import LogKind, LogLine
from moorage.control.records.orders import Order
from moorage.kernel.encoding import decode, encode

_READ_BYTES = 2**20
_LINE_BYTES_MAX = 256 * 1024
_FILE_BYTES_MAX = 32 * 2**20
_FILE_BITS = 40


@dataclass(frozen=True)
class _Reached:
    """How far a file was stored. When it was emptied because it had grown, `file` counts on."""

    file: int
    offset: int
    at: str


class LogTail:
    def __init__(self, order: Order, file: Path) -> None:
        self._order = order
        self._file = file
        self._mark = file.with_suffix(".tail")
        self._reached = self._read_mark()

    def read(self) -> tuple[list[LogLine], _Reached]:
        """The whole lines that have come since, and what `keep` is to be told when they are stored."""
        reached = self._reached
        try:
            with self._file.open("rb") as log:
                log.seek(reached.offset)
                data = log.read(_READ_BYTES)
        except FileNotFoundError:
            return [], reached
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) >= _LINE_BYTES_MAX else 0)
        reading = Reading(datetime.fromisoformat(reached.at))
        lines = list(self._lines(data[:end], reached, reading))
        return lines, replace(reached, offset=reached.offset + end, at=reading.now.isoformat())

    def _lines(self, data: bytes, reached: _Reached, reading: Reading) -> Iterator[LogLine]:
        order, offset = self._order, reached.offset
        for raw in data.splitlines(keepends=True):
            position, offset = reached.file << _FILE_BITS | offset, offset + len(raw)
            if text := raw.decode(errors="replace").rstrip():
                moment, level, message, run_id = reading.read(text)
                yield LogLine(
                    order.workspace_id,
                    order.deployment_id,
                    order.revision_id,
                    LogKind.DEPLOY,
                    moment,
                    position,
                    level,
                    message,
                    run_id,
                )

    def keep(self, reached: _Reached) -> None:
        """It is stored so far. A file that has grown large is emptied: the agent appends, so it goes on at its begin."""
        if reached == self._reached:
            return
        self._reached = reached
        if reached.offset > _FILE_BYTES_MAX:
            self._reached = replace(reached, file=reached.file + 1, offset=0)
        new = self._mark.with_suffix(".tail-new")
        new.write_bytes(encode(asdict(self._reached)))
        new.rename(self._mark)
        if self._reached.offset == 0:
            os.truncate(self._file, 0)

    def _read_mark(self) -> _Reached:
        try:
            return _Reached(**decode(self._mark.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return _Reached(0, 0, datetime.fromtimestamp(0, UTC).isoformat())


def write_line(log: int, event: str, level: str = "info") -> None:
    """Our own word in a revision's log; its time is that of the lines after it which have none."""
    now = datetime.now(UTC).isoformat()
    os.write(log, encode({"event": event, "level": level, "timestamp": now}) + b"\n")


def last_words(file: Path, since_bytes: int, count: int = 30) -> list[str]:
    """The lines that were printed last, in words."""
    with file.open("rb") as log:
        log.seek(since_bytes)
        raw = log.read(_READ_BYTES).decode(errors="replace").splitlines()
    reading = Reading(datetime.now(UTC))
    texts = (reading.read(line)[2] for line in raw[-count:] if line.strip())
    return [line for text in texts for line in text.splitlines()]
