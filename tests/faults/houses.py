"""A home with its servers, the content of its database, and the files of marks that its graphs write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil
import psycopg
from psycopg.rows import dict_row

from moorage.embedded.postgres import EmbeddedPostgres
from tests.serving import Server, make_server
from tests.waiting import wait_until

PROJECT = Path(__file__).parent / "project" / "langgraph.json"
LEASE_S = 2
ACTIVE = ("pending", "running")
RANDOM = random.Random()


@dataclass(frozen=True)
class Mark:
    """One line that a node wrote."""

    run_id: str
    pid: int
    what: str


class House:
    """The servers of one home. Nothing here keeps the database alive: only the servers use it."""

    def __init__(self, folder: Path, home: Path | None = None, config: Path = PROJECT) -> None:
        self.folder = folder
        self.config = config
        self.home = home or folder / "home"
        self.marks = folder / "marks"
        self.marks.mkdir(exist_ok=True)
        self.servers: list[Server] = []
        self.at_stop: list[Callable[[], None]] = []
        self._conninfo = ""

    def serve(self, *arguments: str, **environment: str) -> Server:
        """Start another server on the home."""
        # Frames are kept for as long as a reader may take to come back; the judge reads them too.
        kept = {"RESUMABLE_STREAM_TTL_SECONDS": "3600"}
        given = {"MOORAGE_LEASE_SECONDS": str(LEASE_S), "LOG_LEVEL": "WARNING", **kept, **environment}
        server = make_server(self.folder, self.config, **given)
        server.home = self.home
        server.log = self.folder / f"server-{len(self.servers)}.log"
        self.servers.append(server)
        server.start(*arguments)
        return server

    def stop(self) -> None:
        for close in self.at_stop:
            close()
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                _stop_or_kill(server)
        EmbeddedPostgres(self.home).stop()

    # --- the database ---------------------------------------------------------------------------------------------

    def query(self, sql: str, values: Any = ()) -> list[dict[str, Any]]:
        with psycopg.connect(self._database(), row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

    def query_and_undo(self, sql: str, values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self._database(), row_factory=dict_row) as connection:
            rows = connection.execute(sql, values).fetchall()
            connection.rollback()
        return rows

    def _database(self) -> str:
        if not self._conninfo:
            engine = EmbeddedPostgres(self.home)
            self._conninfo = engine.start()
            engine.stop()  # the servers use it too, so this only ends our own use
        return self._conninfo

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, the oldest first."""
        return self.query("SELECT run_id, thread_id, graph_id, status, attempt, error FROM runs ORDER BY run_id")

    def await_the_end_of_all_runs(self, bound_s: float) -> None:
        wait_until(
            lambda: not self.query("SELECT 1 FROM runs WHERE status = ANY(%s) LIMIT 1", (list(ACTIVE),)), bound_s
        )

    def postgres_family(self) -> list[psutil.Process]:
        """Return the postmaster, which is first, and its children."""
        pid = int((self.home / "postgres" / "data" / "postmaster.pid").read_text().partition("\n")[0])
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children()]

    # --- marks ----------------------------------------------------------------------------------------------------

    def new_marks(self, name: str) -> str:
        return str(self.marks / name)

    def read_marks(self, name: str) -> list[Mark]:
        path = self.marks / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [Mark(run_id, int(pid), what) for run_id, pid, what in (line.split(" ", 2) for line in lines)]


def _stop_or_kill(server: Server) -> None:
    try:
        server.stop()
    except subprocess.TimeoutExpired:
        server.kill()


@contextmanager
def house_in(folder: Path, home: Path | None = None, config: Path = PROJECT) -> Iterator[House]:
    house = House(folder, home, config)
    try:
        yield house
    finally:
        house.stop()


@contextmanager
def new_folder() -> Iterator[Path]:
    """Make a folder that is open to the user that the embedded database runs as under root."""
    with TemporaryDirectory(prefix="moorage-fault-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def rss_mb(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def is_up(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/ok", params={"check_db": "true"}, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def worker_pids(server: Server) -> list[int]:
    """Return the processes that serve, for a server with several workers."""
    children = psutil.Process(server.pid).children()
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child.pid for child in alive if "--fd" in child.cmdline()]


def freeze(processes: list[psutil.Process], seconds: float) -> None:
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
