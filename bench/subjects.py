"""The servers that are compared, each in processes of its own, and what those processes cost."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

BENCH = Path(__file__).parent
START_BOUND_S = 60.0
STOP_BOUND_S = 30.0
IDLE_S = 1.0

_POLL_S = 0.005
# Settings of the caller's shell, such as DATABASE_URI, must not change what is measured.
_ENVIRONMENT_KEPT = {"PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"}


@dataclass(frozen=True)
class Subject:
    name: str
    has_postgres: bool
    saver: str | None = None  # of a ceiling
    config: str = "langgraph.json"

    def argv(self, port: int, home: Path) -> list[str]:
        if self.saver:
            return [sys.executable, str(BENCH / "ceiling.py"), "--port", str(port), "--saver", self.saver]
        config = str(BENCH / "project" / self.config)
        return [sys.executable, "-m", "moorage", "serve", "--config", config, "--port", str(port), "--home", str(home)]


MOORAGE = Subject("moorage", has_postgres=True)
WITH_HANDLERS = Subject("with-handlers", has_postgres=True, config="langgraph_auth.json")
CEILING = Subject("ceiling", has_postgres=False, saver="memory")
CEILING_POSTGRES = Subject("ceiling-postgres", has_postgres=True, saver="postgres")


def subjects(*, with_handlers: bool = False) -> list[Subject]:
    """Moorage and the ceilings; or Moorage without and with a project's own authentication."""
    if with_handlers:
        return [MOORAGE, WITH_HANDLERS]
    has_saver = importlib.util.find_spec("langgraph.checkpoint.postgres") is not None
    return [MOORAGE, CEILING, *([CEILING_POSTGRES] if has_saver else [])]


@dataclass(frozen=True)
class Running:
    """A subject that answers, and the pids at the roots of what is counted."""

    subject: Subject
    port: int
    server_pid: int
    postgres_pid: int | None = None

    def cpu_s(self) -> tuple[float, float]:
        """What the server and PostgreSQL have used so far, apart even if one were the child of the other."""
        postgres = _tree(self.postgres_pid) if self.postgres_pid else {}
        server = {pid: process for pid, process in _tree(self.server_pid).items() if pid not in postgres}
        return _cpu_s(server.values()), _cpu_s(postgres.values())


@contextmanager
def running(subject: Subject) -> Iterator[Running]:
    """The subject on a new home. A PostgreSQL it needs is held by a third process, so that it is nobody's child here."""
    with new_home() as home:
        if not subject.has_postgres:
            with _serving(subject, home, {}) as (process, port):
                yield Running(subject, port, process.pid)
            return
        with _held_postgres(home) as held:
            environment = {"DATABASE_URI": held.conninfo} if subject.saver else {}
            with _serving(subject, home, environment) as (process, port):
                assert held.pid not in _tree(process.pid), "the server must adopt PostgreSQL, not start it"
                yield Running(subject, port, process.pid, held.pid)


@dataclass(frozen=True)
class Start:
    first_s: float
    later_s: float
    idle_mb: float


def measure_start(subject: Subject) -> Start:
    """Start to /ok on an empty home and again on the same home, with whatever engine the subject starts itself; and the
    memory of the server process alone, once it idles.
    """
    with new_home() as home:
        first_s, _ = _timed_start(subject, home)
        later_s, idle_mb = _timed_start(subject, home)
    return Start(first_s, later_s, idle_mb)


def _timed_start(subject: Subject, home: Path) -> tuple[float, float]:
    started_at = time.perf_counter()
    with _serving(subject, home, {}) as (process, _):
        took_s = time.perf_counter() - started_at
        time.sleep(IDLE_S)
        return took_s, psutil.Process(process.pid).memory_info().rss / 2**20


@contextmanager
def new_home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="moorage-bench-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL is another user, who has to get in
        yield Path(folder) / "home"


@dataclass(frozen=True)
class _Held:
    conninfo: str
    pid: int


@contextmanager
def _held_postgres(home: Path) -> Iterator[_Held]:
    argv = [sys.executable, str(BENCH / "postgres_holder.py"), str(home)]
    # A session of its own: an interrupt at the terminal must not stop PostgreSQL below its server.
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), start_new_session=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            line = holder.stdout.readline()
            if not line:
                raise RuntimeError("PostgreSQL did not start; what it said stands above")
            yield _Held(**json.loads(line))
        finally:
            with suppress(BrokenPipeError):
                holder.stdin.close()
            holder.wait(STOP_BOUND_S)


@contextmanager
def _serving(subject: Subject, home: Path, more: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = _free_port()
    log = home.parent / f"{subject.name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            subject.argv(port, home),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**_environment(), **more},
            start_new_session=True,
        )
    try:
        _await_ok(process, port, log)
        yield process, port
    finally:
        _stop(process)


def _await_ok(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up_at = time.monotonic() + START_BOUND_S
    while not _is_ok(port):
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"the server does not answer; its log ends with:\n{log.read_text()[-2000:]}")
        time.sleep(_POLL_S)


def _is_ok(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ok")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT_KEPT}
    return {**kept, "LANGSMITH_TRACING": "false"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> dict[int, psutil.Process]:
    try:
        root = psutil.Process(pid)
        return {process.pid: process for process in (root, *root.children(recursive=True))}
    except psutil.NoSuchProcess:
        return {}


def _cpu_s(processes: Iterator[psutil.Process]) -> float:
    """Of processes that live, and of their children that have ended: a PostgreSQL has one for each connection."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
