"""Processes that use the engine of a home, so that each of them can be killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from moorage.kernel.errors import EngineError

FORK = multiprocessing.get_context("fork")


class User:
    """A process that uses an engine until it is told to stop, or killed. `make_engine` is called in that process."""

    def __init__(self, make_engine: Callable[[], Any]) -> None:
        self._commands, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_obey, args=(theirs, make_engine), daemon=True)
        self.process.start()

    def send(self, command: str) -> None:
        self._commands.send(command)

    def result(self) -> str:
        assert self._commands.poll(60), "no answer from the process"
        text, failed = self._commands.recv()
        if failed:
            raise EngineError(text)
        return str(text)

    def start(self) -> str:
        self.send("start")
        return self.result()

    def stop(self) -> None:
        self.send("stop")
        self.result()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _obey(commands: Connection, make_engine: Callable[[], Any]) -> None:
    engine = make_engine()
    while True:
        command = commands.recv()
        try:
            commands.send((getattr(engine, command)() or "", False))
        except EngineError as error:
            commands.send((str(error), True))
