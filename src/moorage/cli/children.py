"""Server processes that `dev` and `serve --workers` start, and that end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moorage.kernel.load import Load

_VARIABLE = "MOORAGE_CHILD"
_TELL = "MOORAGE_TELL_FD"
_STOP_S = 15
LEAVE = signal.SIGUSR1  # a parent's signal to one process too many behind its socket


def start_child(
    arguments: Sequence[str],
    pass_fds: Sequence[int] = (),
    tell: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`moorage <arguments>` as a child that ends with us, even when we are killed: it watches the pipe of its input.

    `tell` is the end of a pipe that it writes to when it serves, and from then on its load while somebody reads.
    """
    told = {} if tell is None else {_TELL: str(tell)}
    # Same import mode as this process: with or without the current folder on the module path.
    path = ["-P"] if sys.flags.safe_path else []
    return subprocess.Popen(
        [sys.executable, *path, "-m", "moorage", *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, _VARIABLE: "1", **told, **(variables or {})},
        pass_fds=pass_fds if tell is None else [*pass_fds, tell],
    )


def stop_children(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all, wait for each, and kill what does not listen."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin:  # only now: it is a second request to stop, which cuts off answers under way
            child.stdin.close()


def stop_with_parent() -> None:
    """In a child, before anything else: end when the parent is gone, in whatever state it leaves us.

    First as Ctrl-C would: that also unwinds a start, and stops the engine that it started. Then as the parent would:
    a process that hangs, or that a graph's code keeps running, is killed.
    """
    if os.environ.pop(_VARIABLE, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held here, would fail the interpreter's exit
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_STOP_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="stop-with-parent", daemon=True).start()


def tell_parent() -> int | None:
    """In a child: tell the parent that it serves. Returns the pipe for further reports, if the parent reads any."""
    if not (tell := os.environ.pop(_TELL, "")):
        return None
    os.write(int(tell), b".\n")
    os.set_blocking(int(tell), False)
    os.set_inheritable(int(tell), False)
    return int(tell)


def tell_load(pipe: int, load: Load) -> bool:
    """Tell the parent how much work there is. Returns whether the parent still listens."""
    with suppress(BlockingIOError):
        try:
            os.write(pipe, load.line())
        except BrokenPipeError:
            os.close(pipe)
            return False
    return True
