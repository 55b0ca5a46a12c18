"""Server processes that `dev` and `serve --workers` start, and that end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

_VARIABLE = "MOORAGE_CHILD"
_STOP_S = 15


def start_child(arguments: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """`moorage <arguments>` as a child that ends with us, even when we are killed: it watches the pipe of its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "moorage", *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, _VARIABLE: "1"},
        pass_fds=pass_fds,
    )


def stop_children(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all, wait for each, and kill what does not listen."""
    for child in children:
        if child.stdin:
            child.stdin.close()
        child.terminate()
    for child in children:
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def stop_with_parent() -> None:
    """In a child: end when the parent is gone."""
    if _VARIABLE not in os.environ:
        return

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held here, would fail the interpreter's end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stop-with-parent", daemon=True).start()
