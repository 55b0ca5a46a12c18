"""A PostgreSQL server that tests may kill, with as many databases as they like."""

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
    """Ends the server of the home by a signal. Its children follow it, and are waited for."""
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    postmaster = psutil.Process(int(pid_file.read_text().partition("\n")[0]))
    family = [*postmaster.children(), postmaster]
    postmaster.send_signal(how)
    deadline = time.monotonic() + 10
    while not all(map(_has_ended, family)):
        assert time.monotonic() < deadline, "PostgreSQL does not end"
        time.sleep(0.01)


def _has_ended(process: psutil.Process) -> bool:
    """Also what only waits for its parent to notice: in a container nobody may."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class Engine:
    """A PostgreSQL server that a test may kill, if it starts it again."""

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
        """At once, without a checkpoint: nobody will read these databases again."""
        end_postmaster(self.home, signal.SIGQUIT)
        self._use.stop()

    def kill(self) -> None:
        """kill -9 of the postmaster: what is not on the disk is gone."""
        end_postmaster(self.home, signal.SIGKILL)

    def make_database(self, template: str = "template1") -> str:
        """The conninfo of a new database."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return make_conninfo(self._conninfo, dbname=name)
