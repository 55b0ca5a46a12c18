"""Reader of the file that a revision prints to; its lines are stored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from moorage.control.log_lines import read_line, times_of
from moorage.control.records.logs import LogKind, LogLine
from moorage.control.records.orders import Order
from moorage.kernel.encoding import decode, encode

_READ_BYTES = 2**20
_LINE_BYTES_MAX = 256 * 1024
_FILE_BYTES_MAX = 32 * 2**20
_FILE_BITS = 40


@dataclass(frozen=True)
class _Reached:
    """The positions in a file up to which lines were stored and read, and the times of these positions.

    The read position is recorded before the lines are stored: after a crash the same lines are read again with the same
    times, so they become the same rows. `file` counts how often the file was emptied because it had grown.
    """

    file: int
    offset: int
    at: str  # when the last line before `offset` was printed
    end: int = 0  # the bytes from `offset` to here were read; all were printed until `end_at`
    end_at: str = ""


class LogTail:
    def __init__(self, order: Order, file: Path) -> None:
        self._order = order
        self._file = file
        self._mark = file.with_suffix(".tail")
        self._reached = self._read_mark()

    def read(self) -> tuple[list[LogLine], _Reached]:
        """Return the complete lines since the last stored position, and the argument for `keep`
        once they are stored.
        """
        reached, known_bytes = self._reached, self._reached.end - self._reached.offset
        try:
            with self._file.open("rb") as log:
                log.seek(reached.offset)
                data = log.read(known_bytes if known_bytes > 0 else _READ_BYTES)
                written_at = datetime.fromtimestamp(os.fstat(log.fileno()).st_mtime, UTC)
        except FileNotFoundError:
            return [], reached
        if known_bytes <= 0:
            whole_bytes = data.rfind(b"\n") + 1 or (len(data) if len(data) >= _LINE_BYTES_MAX else 0)
            if not whole_bytes:
                return [], reached
            data = data[:whole_bytes]
            end_at = max(written_at, datetime.fromisoformat(reached.at))
            reached = replace(reached, end=reached.offset + whole_bytes, end_at=end_at.isoformat())
            self._note(reached)
        return list(self._lines(data, reached)), replace(reached, offset=reached.end, at=reached.end_at)

    def _lines(self, data: bytes, reached: _Reached) -> Iterator[LogLine]:
        order = self._order
        raws = data.splitlines(keepends=True)
        printed = [read_line(raw.decode(errors="replace").rstrip()) for raw in raws]
        times = times_of(printed, *map(datetime.fromisoformat, (reached.at, reached.end_at)))
        offset = reached.offset
        for raw, line, at in zip(raws, printed, times, strict=True):
            position, offset = reached.file << _FILE_BITS | offset, offset + len(raw)
            if line.message:
                ids = (order.workspace_id, order.deployment_id, order.revision_id)
                yield LogLine(*ids, LogKind.DEPLOY, at, position, line.level, line.message, line.run_id)

    def keep(self, reached: _Reached) -> None:
        """Record that the lines are stored. Empties a file that has grown large; the agent appends, so it continues at
        the beginning.
        """
        if reached == self._reached:
            return
        is_large = reached.offset > _FILE_BYTES_MAX
        self._note(replace(reached, file=reached.file + 1, offset=0, end=0) if is_large else reached)
        if is_large:
            os.truncate(self._file, 0)

    def _note(self, reached: _Reached) -> None:
        new = self._mark.with_suffix(".tail-new")
        new.write_bytes(encode(asdict(reached)))
        new.rename(self._mark)
        self._reached = reached

    def _read_mark(self) -> _Reached:
        try:
            return _Reached(**decode(self._mark.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return _Reached(0, 0, datetime.fromtimestamp(0, UTC).isoformat())


def write_line(log: int, event: str, level: str = "info") -> None:
    """Append a line from the platform to a revision's log."""
    now = datetime.now(UTC).isoformat()
    os.write(log, encode({"event": event, "level": level, "timestamp": now}) + b"\n")


def last_words(file: Path, since_bytes: int, count: int = 30) -> list[str]:
    """Return the text of the last printed lines."""
    with file.open("rb") as log:
        log.seek(since_bytes)
        raw = log.read(_READ_BYTES).decode(errors="replace").splitlines()
    texts = (read_line(line).message for line in raw[-count:] if line.strip())
    return [line for text in texts for line in text.splitlines()]
