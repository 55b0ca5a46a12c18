"""A PostgreSQL server that tests may kill, with as many databases as they like."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from moorage.embedded.postgres import EmbeddedPostgres


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
        self._end(signal.SIGQUIT)
        self._use.stop()

    def kill(self) -> None:
        """kill -9 of the postmaster: what is not on the disk is gone. Its children follow it, and are waited for."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        pid_file = self.home / "postgres" / "data" / "postmaster.pid"
        postmaster = psutil.Process(int(pid_file.read_text().partition("\n")[0]))
        family = [*postmaster.children(), postmaster]
        postmaster.send_signal(how)
        psutil.wait_procs(family, timeout=10)

    def make_database(self, template: str = "template1") -> str:
        """The conninfo of a new database."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return make_conninfo(self._conninfo, dbname=name)
