"""A PostgreSQL server that tests may kill, with any number of databases."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from moorage.embedded.postgres import EmbeddedPostgres


def end_postmaster(home: Path, how: signal.Signals) -> None:
    """End the server of the home with a signal, and wait for its children, which end with it."""
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    postmaster = psutil.Process(int(pid_file.read_text().partition("\n")[0]))
    family = [*postmaster.children(), postmaster]
    postmaster.send_signal(how)
    deadline = time.monotonic() + 10
    while not all(map(_has_ended, family)):
        assert time.monotonic() < deadline, "PostgreSQL does not end"
        time.sleep(0.01)


def _has_ended(process: psutil.Process) -> bool:
    """Return True also for a process that only waits for its parent to reap it: in a container nobody may do that."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class Engine:
    """A PostgreSQL server that a test may kill, if it starts the server again."""

    home: Path
    _use: EmbeddedPostgres = field(init=False)
    _conninfo: str = field(init=False)
    _numbers: Iterator[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self._use = EmbeddedPostgres(self.home)
        self.start()

    def start(self) -> None:
        self._conninfo = self._use.start()

    def stop(self) -> None:
        """Stop at once, without a checkpoint, since nobody will read these databases again."""
        end_postmaster(self.home, signal.SIGQUIT)
        self._use.stop()

    def kill(self) -> None:
        """Kill the postmaster with kill -9: data that is not on the disk is lost."""
        end_postmaster(self.home, signal.SIGKILL)

    def make_database(self, template: str = "template1") -> str:
        """Create a database, and return its conninfo."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return make_conninfo(self._conninfo, dbname=name)
