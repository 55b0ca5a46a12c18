"""Start `moorage` by forking a process that has imported it: imports are half of a start, and tests start hundreds of
servers.

Use `Moorage` like a `subprocess.Popen` of `python -m moorage`. The child has the given arguments, environment and
outputs, and the folder and session of the test. Everything that it starts itself starts from the command line, as in
production. The process that forks has one thread, no event loop, and only modules that start neither.
`tests/test_cli.py`, the tests on terminals and those of listeners and workers start the real command line.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

# Not `moorage.wiring.platform`: it imports pyarrow, which starts threads.
_MODULES = (
    "moorage.cli",
    "moorage.cli.agent_server",
    "moorage.accounts.routes",
    "moorage.audit.routes",
    "moorage.control.routes",
    "moorage.kernel.clickhouse",
    "moorage.traces.routes.ingest",
    "moorage.traces.routes.runs",
    "moorage.traces.routes.runs_v2",
)
_NUMBER = struct.Struct("i")
_REQUEST_BYTES_MAX = 2**18


class Moorage:
    """A running `moorage <arguments>`. `returncode` is a Popen's: negative for a signal."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str], stdout: IO[bytes] | int, stderr: IO[bytes] | int
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._life, theirs = socket.socketpair()
        request = json.dumps([self.args, dict(env), str(Path.cwd())]).encode()
        with theirs:
            files = [file if isinstance(file, int) else file.fileno() for file in (stdout, stderr)]
            socket.send_fds(_imported(), [request], [*files, theirs.fileno()])
        self.pid = self._read_number()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._life.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._read_number())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(["moorage", *self.args], timeout or 0) from None
            self._life.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        told = self._life.recv(_NUMBER.size)
        assert told, "the process that is forked has ended"
        return int(_NUMBER.unpack(told)[0])


@cache
def _imported() -> socket.socket:
    """Return the socket of the process that is forked; there is one for each test process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=Path(__file__).parent.parent
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# --- the process that is forked ---


def _fork_on_request(requests: socket.socket) -> list[str]:
    """Return the arguments of a command in each forked process; end when nobody asks any more."""
    lives: dict[int, tuple[int, int]] = {}  # by the descriptor of a process: its number, and where its end is told
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in lives:
                poll.unregister(ready)
                number, life = lives.pop(ready)
                _tell(life, os.waitpid(number, 0)[1])
                os.close(life)
                os.close(ready)
                continue
            request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
            if not request:
                sys.exit()
            if (number := os.fork()) == 0:
                return _become(*json.loads(request), files)
            _tell(files[2], number)
            ended = os.pidfd_open(number)
            lives[ended] = number, files[2]
            poll.register(ended, select.POLLIN)
            for file in files[:2]:
                os.close(file)


def _tell(life: int, number: int) -> None:
    try:
        os.write(life, _NUMBER.pack(number))
    except BrokenPipeError:  # the test has ended without waiting
        return


def _become(arguments: list[str], environment: dict[str, str], folder: str, files: list[int]) -> list[str]:
    os.dup2(files[0], 1)
    os.dup2(files[1], 2)
    os.closerange(3, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    del sys.modules["tests"]  # a project may have a module of that name
    sys.orig_argv = [sys.executable, "-m", "moorage", *arguments]  # `moorage up` restarts itself with it
    return arguments


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _MODULES:
        import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in a forked process"
    gc.freeze()  # otherwise each process would copy the memory of all modules when its collector marks them
    requests = socket.socket(fileno=int(sys.argv[1]))
    sys.argv[1:] = _fork_on_request(requests)
    requests.detach()
    runpy.run_module("moorage", run_name="__main__", alter_sys=True)
