"""Starts real platforms for tests: `moorage up` in a process of its own, on a home of its own, with all its engines."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from uuid import UUID

import httpx
import psutil

from tests.preloaded import Moorage
from tests.serving import free_port

# Variables that would change the platform of a test.
_FOREIGN = re.compile(r"(MOORAGE|LANGSMITH|LANGCHAIN|LANGGRAPH)_|(DATABASE|POSTGRES|REDIS)_URI$|CLICKHOUSE_URL$|LOG_")
_OUTPUT_BYTES_MAX = 2**26


def environment(**more: str) -> dict[str, str]:
    """Return our environment without settings of the platform and its clients, and with the given ones."""
    return {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)} | more


def moorage(*arguments: str | Path, **more: str) -> tuple[int, str, str]:
    """Run a command that ends by itself, and return its exit code, standard output and standard error."""
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = Moorage(*map(str, arguments), env=environment(**more), stdout=stdout, stderr=stderr)
        try:
            code = process.wait(90)
        finally:
            process.kill()
        out, err = (os.pread(file.fileno(), _OUTPUT_BYTES_MAX, 0).decode() for file in (stdout, stderr))
    assert "Traceback" not in err, err
    return code, out, err


@dataclass
class Platform:
    """A `moorage up` with its home. The key and the workspace are those that its first start printed or was given."""

    home: Path
    settings: Mapping[str, str]
    port: int = field(default_factory=free_port)
    key: str = ""
    workspace_id: UUID | None = None
    process: Moorage | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Return the standard output and standard error of all its starts."""
        return self.home.with_name(f"{self.home.name}.log")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self, **options) -> httpx.Client:
        """Return a plain HTTP client with the key."""
        return httpx.Client(base_url=self.url, headers={"X-Api-Key": self.key}, timeout=30, **options)

    def start(self, timeout_s: float = 300) -> None:
        """Start the platform, and return when it says that it serves."""
        arguments = ["up", "--port", str(self.port), "--home", str(self.home)]
        with self.log.open("ab") as log:
            self.process = Moorage(*arguments, stdout=log, stderr=log, env=environment(**self.settings))
        deadline = time.monotonic() + timeout_s
        while not self._serves():
            assert self.process.poll() is None, f"the platform ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"the platform does not serve: {self.log.read_text()}"
            time.sleep(0.02)
        self._read_key()

    def _serves(self) -> bool:
        try:
            owner = json.loads((self.home / "platform.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        return owner["pid"] == self.pid and owner["serves"]

    def _read_key(self) -> None:
        if self.key:
            return
        printed = dict(re.findall(r"(API key|workspace) +(\S+)", self.log.read_text()))
        self.key = self.settings.get("MOORAGE_BOOTSTRAP_API_KEY") or printed["API key"]
        self.workspace_id = UUID(self.settings.get("MOORAGE_BOOTSTRAP_WORKSPACE_ID") or printed["workspace"])

    def engines(self) -> dict[str, int]:
        """Return the process numbers of its engines, by their names."""
        marks = {"caddy": "front-door/caddy.json", "clickhouse": "chdb_server", "postgres": "postgres/data"}
        found = {}
        for process in sorted(
            psutil.process_iter(["cmdline", "create_time"]), key=lambda each: each.info["create_time"]
        ):
            words = " ".join(process.info["cmdline"] or ())
            for name, mark in marks.items():
                if mark in words and f"{self.home}/" in words:
                    # The oldest: a process that an engine has just forked has the engine's command line for a moment.
                    found.setdefault(name, process.pid)
        return found

    def kill(self) -> None:
        """Kill the platform alone, with kill -9: its engines keep running."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the platform, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def make_platform(home: Path, **settings: str) -> Iterator[Platform]:
    """Yield a platform that serves. When the context ends, nothing of it is left running, whatever happened to it.

    The home is in a directory that others can pass through, since under root the engines have a user of their own.
    """
    platform = Platform(home, settings)
    try:
        platform.start()
        yield platform
    finally:
        moorage("down", "--home", home)
        if platform.process is not None:
            platform.process.kill()
            platform.process.wait()


@contextmanager
def make_folder() -> Iterator[Path]:
    """Make a folder. Not pytest's tmp_path, which is closed to the user that engines run as under root."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
