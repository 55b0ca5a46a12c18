"""Restart the server of `moorage dev` when a file that a graph can import, or a setting, changes."""

from __future__ import annotations

import importlib.machinery
import json
import os
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
import watchfiles

from moorage.cli.children import start_child, stop_children
from moorage.cli.errors import FAILED

_MODULES = (*importlib.machinery.SOURCE_SUFFIXES, *importlib.machinery.EXTENSION_SUFFIXES)
# How often to check whether the server failed to start.
_LOOK_MS = 1000


class Sources(watchfiles.DefaultFilter):
    """The files that the server of one langgraph.json reads: that file, its `env`, its graphs, and all modules on its
    import path.

    Changes of other files, such as an agent's data, notes or environments, restart nothing.
    """

    def __init__(self, config: Path) -> None:
        super().__init__()
        self._config = config.resolve()
        self._files: set[Path] = set()
        self._roots: list[Path] = []
        self._read()

    def _read(self) -> None:
        """Read the langgraph.json. If it cannot be read, keep the earlier content: the server reports the error."""
        with suppress(OSError, ValueError, AttributeError, TypeError):
            known, folder = json.loads(self._config.read_text()), self._config.parent
            files = {(folder / name).resolve() for name in _named_files(known)}
            # The server's import path: local folders of `dependencies`, each with its `src`.
            local = [entry for entry in known.get("dependencies", []) if entry.startswith(".")] or ["."]
            roots = [(folder / entry).resolve() for entry in local]
            self._files, self._roots = files, [each for root in roots for each in (root / "src", root)]

    @property
    def folders(self) -> list[Path]:
        """Return the folders to watch, each once. Those outside of the project are as the langgraph.json first named
        them.
        """
        wanted = {path for path in (self._config.parent, *self._roots) if path.is_dir()}
        return [path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted)]

    def __call__(self, change: watchfiles.Change, path: str) -> bool:
        file = Path(path)
        if file == self._config:
            self._read()
            return True
        if file in self._files:
            return True
        if not super().__call__(change, path) or not file.name.endswith(_MODULES):
            return False
        return any(file.is_relative_to(root) and _is_importable(file, root) for root in self._roots)


def _named_files(known: dict[str, Any]) -> Iterable[str]:
    """Return the paths of the `env` file, and of the graphs that are given as a file and a name in it."""
    if isinstance(env := known.get("env"), str):
        yield env
    for spec in known["graphs"].values():
        path = spec["path"] if isinstance(spec, dict) else spec
        if (module := path.rpartition(":")[0]).endswith(".py"):
            yield module


def _is_importable(file: Path, root: Path) -> bool:
    """Return True if the file's path below the root is the name of a module, and no folder on the path is an
    environment.
    """
    *packages, name = file.relative_to(root).parts
    if not all(part.isidentifier() for part in (*packages, name.partition(".")[0])):
        return False
    return not any((root.joinpath(*packages[:depth]) / "pyvenv.cfg").exists() for depth in range(1, len(packages) + 1))


def serve_and_restart(arguments: list[str], config: Path, listening: socket.socket) -> signal.Signals:
    """Run `moorage <arguments>` and restart it at each change of its sources. Returns the signal that ends it."""
    command = [*arguments, "--fd", str(listening.fileno())]
    stop, received = threading.Event(), list[signal.Signals]()

    def end(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    sources, is_lost = Sources(config), False
    child = start_child(command, [listening.fileno()])
    try:
        for changes in watchfiles.watch(
            *sources.folders, watch_filter=sources, stop_event=stop, rust_timeout=_LOOK_MS, yield_on_timeout=True
        ):
            if changes:
                names = sorted({os.path.relpath(path, config.resolve().parent) for _, path in changes})
                typer.echo(f"reloading: {', '.join(names)} changed", err=True)
                stop_children([child])
                child, is_lost = start_child(command, [listening.fileno()]), False
            elif child.poll() == FAILED and not is_lost:
                typer.echo("the server did not start; the next change of a file starts it again", err=True)
                is_lost = True
    finally:
        stop_children([child])
    return received[0]
