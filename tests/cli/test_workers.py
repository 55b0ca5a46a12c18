"""Several processes behind one socket: when each is started, and what it is told.

Programs that only report what happens to them stand in for the servers, and end with their parent as servers do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from moorage.cli import children
from moorage.embedded.agents import CRASH_LOOP

_WORKER = """#!{python} -uSE
import os, signal, sys, time

sys.path.append("{children}")
import children

def say(word):
    os.write(said, f"{{os.getpid()}} {{word}}\\n".encode())

def end(*_):
    say("asked to end")
    os._exit(0)

said = os.open("{folder}/said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
children._STOP_S = 0.5
children.stop_with_parent()
mode = open("{folder}/mode").read()
if mode == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
say("starts")
if mode == "cannot":
    sys.exit(3)
while mode == "slow":
    time.sleep(0.1)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGURG, lambda *_: say("pauses"))
signal.signal(signal.SIGCONT, lambda *_: say("goes on"))
told = int(os.environ["MOORAGE_TELL_FD"])
os.write(told, b".\\n")
say("serves")
if mode == "crash":
    os._exit(1)
signal.signal(signal.SIGUSR1, lambda *_: (say("leaves"), os._exit(0)))
try:
    while True:
        os.write(told, open("{folder}/load").read().encode())
        time.sleep(0.05)
except BrokenPipeError:  # the parent does not follow the load
    while True:
        time.sleep(600)
"""
_PARENT = """
import socket, sys, typer
from moorage.cli import workers
from moorage.cli.scaling import Scale

workers._BACK_OFF_S = (0.0,) * 4
sys.executable = {program!r}

def serve():
    with socket.socket() as listening:
        workers.run_workers({scale}, ["serve"], listening)

typer.run(serve)
"""


class Crew:
    """A parent with its workers, and the workers' reports."""

    def __init__(self, folder: Path, mode: str = "serve", scale: str = "Scale(2, 2)") -> None:
        self._folder = folder
        program = folder / "worker"
        where = Path(children.__file__).parent
        program.write_text(_WORKER.format(python=sys.executable, folder=folder, children=where))
        program.chmod(0o755)
        self.set_mode(mode)
        (folder / "said").touch()
        self.set_load(0, 0, 0)
        self.parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT.format(program=str(program), scale=scale)], stderr=subprocess.DEVNULL
        )

    def set_mode(self, mode: str) -> None:
        """Set the mode of workers that are started from now on."""
        (self._folder / "mode").write_text(mode)

    def set_load(self, *numbers: int) -> None:
        """Set the load of each worker: runs, waiting runs and streams."""
        new = self._folder / "new-load"
        new.write_text("{} {} {}\n".format(*numbers))
        new.replace(self._folder / "load")

    def who(self, word: str) -> list[int]:
        lines = (line.split(" ", 1) for line in (self._folder / "said").read_text().splitlines())
        return [int(pid) for pid, said in lines if said == word]

    def tell(self, number: signal.Signals) -> None:
        self.parent.send_signal(number)

    def until(self, true: Callable[[], bool], bound_s: float = 40) -> None:
        give_up_at = time.monotonic() + bound_s
        while not true():
            assert time.monotonic() < give_up_at, (self._folder / "said").read_text()
            time.sleep(0.02)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    made.parent.kill()
    made.parent.wait()


def test_one_that_dies_is_replaced_and_each_is_asked_once_to_end(crew: Crew) -> None:
    crew.until(lambda: len(crew.who("serves")) == 2)
    first, second = crew.who("serves")
    assert crew.who("starts") == [first, second], "the second waits for the first to serve"
    os.kill(first, signal.SIGKILL)
    crew.until(lambda: len(crew.who("serves")) == 3)
    crew.tell(signal.SIGTERM)
    assert crew.parent.wait(40) == 0
    assert sorted(crew.who("asked to end")) == sorted([second, crew.who("serves")[2]])


def test_signals_that_come_at_any_step_of_one_another_are_all_heard(crew: Crew) -> None:
    crew.until(lambda: len(crew.who("serves")) == 2)
    for _ in range(10_000):
        crew.tell(signal.SIGCHLD)
        time.sleep(0.0002)
    crew.tell(signal.SIGTERM)
    assert crew.parent.wait(40) == 0
    assert sorted(crew.who("asked to end")) == sorted(crew.who("serves"))


def test_what_cannot_be_started_ends_with_the_code_of_its_first_worker(tmp_path: Path) -> None:
    broken = Crew(tmp_path, "cannot")
    assert broken.parent.wait(40) == 3
    assert len(broken.who("starts")) == 1


def test_a_place_that_cannot_be_kept_filled_ends_the_server_with_a_code_of_its_own(crew: Crew) -> None:
    crew.until(lambda: len(crew.who("serves")) == 2)
    crew.set_mode("crash")
    os.kill(crew.who("serves")[0], signal.SIGKILL)
    assert crew.parent.wait(40) == CRASH_LOOP
    assert crew.who("asked to end") == crew.who("serves")[1:2]


def test_who_is_paused_is_told_and_nobody_comes_up_until_all_go_on(crew: Crew) -> None:
    crew.until(lambda: len(crew.who("serves")) == 2)
    first, second = crew.who("serves")
    crew.set_mode("slow")
    os.kill(first, signal.SIGKILL)
    crew.until(lambda: len(crew.who("starts")) == 3)
    starting = crew.who("starts")[2]
    crew.tell(signal.SIGURG)
    crew.until(lambda: crew.who("pauses") == [second])
    crew.until(lambda: not Path(f"/proc/{starting}").exists())
    crew.set_mode("serve")
    time.sleep(1)  # twice as long as it takes to look after them
    assert len(crew.who("starts")) == 3
    crew.tell(signal.SIGCONT)
    crew.until(lambda: crew.who("goes on") == [second])
    crew.until(lambda: len(crew.who("serves")) == 3)


@pytest.mark.parametrize("state", ["starting", "serving", "paused", "deaf"])
def test_nobody_outlives_a_parent_that_is_killed(tmp_path: Path, state: str) -> None:
    crew = Crew(tmp_path, {"starting": "slow", "deaf": "deaf"}.get(state, "serve"))
    word, count = ("starts", 1) if state == "starting" else ("serves", 2)
    crew.until(lambda: len(crew.who(word)) == count)
    if state == "paused":
        crew.tell(signal.SIGURG)
        crew.until(lambda: len(crew.who("pauses")) == 2)
    crew.parent.kill()
    crew.parent.wait()
    crew.until(lambda: not any(map(_lives, crew.who("starts"))))


def test_more_come_with_the_load_and_leave_when_it_is_calm(tmp_path: Path) -> None:
    crew = Crew(tmp_path, scale="Scale(1, 3, runs_per_worker=10, streams_per_worker=100, calm_s=1)")
    try:
        crew.until(lambda: len(crew.who("serves")) == 1)
        time.sleep(1.2)  # twice as long as it takes to look after them
        assert len(crew.who("starts")) == 1
        crew.set_load(0, 15, 0)  # waiting runs are those of all workers
        crew.until(lambda: len(crew.who("serves")) == 2)
        time.sleep(1.2)
        assert len(crew.who("starts")) == 2
        crew.set_load(0, 0, 250)
        crew.until(lambda: len(crew.who("serves")) == 3)
        crew.set_load(0, 0, 0)
        crew.until(lambda: len(crew.who("leaves")) == 2)
        crew.until(lambda: sum(map(_lives, crew.who("serves"))) == 1)
        time.sleep(1.2)
        assert len(crew.who("starts")) == 3, "who has left is not started again"
        crew.tell(signal.SIGTERM)
        assert crew.parent.wait(40) == 0
        assert len(crew.who("asked to end")) == 1
    finally:
        crew.parent.kill()
        crew.parent.wait()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
