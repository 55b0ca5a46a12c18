"""Progress of a revision on stderr: each state with its seconds, and the last lines of the build."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from moorage.cli.output import note, printable, state_style

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINES = 6
_ENDED = {"DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED", "UNKNOWN"}


class Phases:
    """Progress of a revision. A terminal shows one picture that is redrawn; other outputs get a line for each state."""

    def __init__(self) -> None:
        # Slow to import, and not needed to start a server.
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        self.is_live = console.is_terminal
        self._live = Live(console=console, auto_refresh=False) if self.is_live else None
        self._number = 0
        self._entered: list[tuple[str, float]] = []
        self._lines: deque[str] = deque(maxlen=_LINES)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lines.clear()
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()

    def show(self, number: int, status: str, lines: Iterable[str]) -> None:
        """Show the current state, and the lines that were printed since the last call."""
        self._number = number
        if not self._entered or self._entered[-1][0] != status:
            self._enter(status)
        for line in lines:
            self._lines.append(line)
            if not self._live:
                note(f"  | {line}")
        if self._live:
            self._live.update(self._picture(), refresh=True)

    def _enter(self, status: str) -> None:
        now = time.monotonic()
        if not self._live:
            before = f" ({self._entered[-1][0]} took {now - self._entered[-1][1]:.1f} s)" if self._entered else ""
            note(f"revision {self._number}: {status}{before}")
        self._entered.append((status, now))
        self._lines.clear()

    def _picture(self) -> RenderableType:
        from rich.console import Group  # as above
        from rich.text import Text

        until = [at for _, at in self._entered[1:]] + [time.monotonic()]
        rows = [Text(f"revision {self._number}")] if self._entered else []
        for (status, at), end in zip(self._entered, until, strict=True):
            row = Text("  ", no_wrap=True).append(f"{status:<16}", style=_style(status, is_last=end == until[-1]))
            rows.append(row if status in _ENDED else row.append(f"{end - at:6.1f} s"))
        rows += [Text(f"    {printable(line)}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._lines]
        return Group(*rows)


def _style(status: str, *, is_last: bool) -> str:
    return f"bold {state_style(status)}" if is_last else ""
