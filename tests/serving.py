"""Starts real servers for tests: `moorage serve` in a process of its own, on a home of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from moorage.embedded.postgres import EmbeddedPostgres
from tests.preloaded import Moorage

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "tests" / "project" / "langgraph.json"
EXAMPLES = ROOT / "examples" / "langgraph.json"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return True if something takes connections at this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@cache
def _new_home() -> TemporaryDirectory[str]:
    """Make a home with an unused database, to be copied: creating a database takes as long as the rest of a start."""
    folder = TemporaryDirectory(prefix="moorage-test-")
    Path(folder.name).chmod(0o755)
    engine = EmbeddedPostgres(Path(folder.name) / "home")
    engine.start()
    engine.stop()
    return folder


@dataclass
class Server:
    """A running `moorage serve`. `python` is an interpreter with other libraries than those of the tests."""

    config: Path
    home: Path
    port: int
    log: Path
    environment: dict[str, str]
    process: Moorage | subprocess.Popen[bytes] | None = None
    python: str = sys.executable

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *more: str, timeout_s: float = 100, pass_fds: Sequence[int] = ()) -> None:
        """Start the server, and return when `/ok` answers."""
        arguments = ["serve", "--config", str(self.config), "--port", str(self.port), "--home", str(self.home)]
        arguments += more
        if not self.home.exists():
            subprocess.run(["cp", "-a", f"{_new_home().name}/home", self.home], check=True)
        with self.log.open("ab") as log:
            environment = {**os.environ, **self.environment}
            if pass_fds or self.python != sys.executable:
                command = [self.python, "-m", "moorage", *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, pass_fds=pass_fds)
            else:
                self.process = Moorage(*arguments, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()}"
            try:
                if httpx.get(f"{self.url}/ok", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the server did not answer: {self.log.read_text()}")

    def kill(self) -> None:
        """Kill the server with kill -9: nothing is cleaned up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the server, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)


def make_server(folder: Path, config: Path = PROJECT, **environment: str) -> Server:
    """Return a server that is not started yet, with its state below `folder`."""
    return Server(config, folder / "home", free_port(), folder / "server.log", environment)
