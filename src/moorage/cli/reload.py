"""Restart the server of `moorage dev` when a source file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import typer
import watchfiles

from moorage.cli.errors import CHILD_VARIABLE, FAILED

_SUFFIXES = (".py", ".json", ".env", ".toml", ".yaml", ".yml")
_STOP_S = 15


class _Sources(watchfiles.DefaultFilter):
    """Source files of the project, without environments, caches and our own state."""

    ignore_dirs = (*watchfiles.DefaultFilter.ignore_dirs, ".moorage", ".langgraph_api")

    def __call__(self, change: watchfiles.Change, path: str) -> bool:
        name = Path(path).name
        return super().__call__(change, path) and (name.endswith(_SUFFIXES) or name.startswith(".env"))


def serve_and_restart(arguments: list[str], folder: Path) -> None:
    """Run `moorage <arguments>` and start it anew at each change below the folder, until we are told to stop.

    Raises typer.Exit with the child's code when the child ends by itself before it ever served.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    child = _start(arguments)
    try:
        for changes in watchfiles.watch(folder, watch_filter=_Sources(), stop_event=stop, yield_on_timeout=True):
            if changes:
                names = sorted({os.path.relpath(path, folder) for _, path in changes})
                typer.echo(f"reloading: {', '.join(names)} changed", err=True)
                _stop(child)
                child = _start(arguments)
            elif child.poll() == FAILED:
                typer.echo("the server did not start; it will be tried again when a file changes", err=True)
                _wait_for_change(folder, stop)
                if not stop.is_set():
                    child = _start(arguments)
    finally:
        _stop(child)


def _wait_for_change(folder: Path, stop: threading.Event) -> None:
    for _ in watchfiles.watch(folder, watch_filter=_Sources(), stop_event=stop):
        return


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """The server as a child that ends with us, even when we are killed: it watches the pipe that is its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "moorage", *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, CHILD_VARIABLE: "1"},
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.stdin:
        child.stdin.close()
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
