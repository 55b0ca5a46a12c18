"""Server processes that `dev` and `serve --workers` start. They end with the process that started them."""

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
LEAVE = signal.SIGUSR1  # a signal from the parent to one process too many behind its socket


def start_child(
    arguments: Sequence[str],
    pass_fds: Sequence[int] = (),
    tell: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `moorage <arguments>` as a child that ends with us, even when we are killed: it watches the pipe of its
    input.

    `tell` is the end of a pipe. The child writes to it when it serves, and then reports its load there while somebody
    reads.
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
    """Ask all children to end, wait for each, and kill those that do not."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin:  # only now: closing it is a second request to stop, which cuts off answers under way
            child.stdin.close()


def stop_with_parent() -> None:
    """End when the parent is gone, however it ended. Call this in a child before anything else.

    The child first stops as if by Ctrl-C: that also unwinds a start, and stops the engine that it started. Then it is
    killed, since a process may hang, or the code of a graph may keep it running.
    """
    if os.environ.pop(_VARIABLE, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held here, would make the interpreter's exit fail
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_STOP_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="stop-with-parent", daemon=True).start()


def tell_parent() -> int | None:
    """Tell the parent, from a child, that it serves. Returns the pipe for further reports, if the parent reads any."""
    if not (tell := os.environ.pop(_TELL, "")):
        return None
    os.write(int(tell), b".\n")
    os.set_blocking(int(tell), False)
    os.set_inheritable(int(tell), False)
    return int(tell)


def tell_load(pipe: int, load: Load) -> bool:
    """Report the load to the parent. Returns True if the parent still listens."""
    with suppress(BlockingIOError):
        try:
            os.write(pipe, load.line())
        except BrokenPipeError:
            os.close(pipe)
            return False
    return True
