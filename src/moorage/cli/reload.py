"""Restart the server of `moorage dev` when a source file changes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import typer
import watchfiles

from moorage.cli.children import start_child, stop_children
from moorage.cli.errors import FAILED

_SUFFIXES = (".py", ".json", ".env", ".toml", ".yaml", ".yml")


class _Sources(watchfiles.DefaultFilter):
    """Source files of the project, without environments, caches and our own state."""

    ignore_dirs = (*watchfiles.DefaultFilter.ignore_dirs, ".moorage", ".langgraph_api")

    def __call__(self, change: watchfiles.Change, path: str) -> bool:
        name = Path(path).name
        return super().__call__(change, path) and (name.endswith(_SUFFIXES) or name.startswith(".env"))


def serve_and_restart(arguments: list[str], folder: Path, listening: socket.socket) -> signal.Signals:
    """Run `moorage <arguments>` and start it anew at each change below the folder; return the signal that ends it."""
    command = [*arguments, "--fd", str(listening.fileno())]
    stop, received = threading.Event(), list[signal.Signals]()

    def end(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    child = start_child(command, [listening.fileno()])
    try:
        for changes in watchfiles.watch(folder, watch_filter=_Sources(), stop_event=stop, yield_on_timeout=True):
            if changes:
                names = sorted({os.path.relpath(path, folder) for _, path in changes})
                typer.echo(f"reloading: {', '.join(names)} changed", err=True)
                stop_children([child])
                child = start_child(command, [listening.fileno()])
            elif child.poll() == FAILED:
                typer.echo("the server did not start; it will be tried again when a file changes", err=True)
                _wait_for_change(folder, stop)
                if not stop.is_set():
                    child = start_child(command, [listening.fileno()])
    finally:
        stop_children([child])
    return received[0]


def _wait_for_change(folder: Path, stop: threading.Event) -> None:
    for _ in watchfiles.watch(folder, watch_filter=_Sources(), stop_event=stop):
        return
