"""Commands on a terminal of their own, as people use them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from select import select

from tests.platform.serving import environment

QUIET_S = 1.0
TYPED_MAX = 30


def on_terminal(arguments: list[str], width: int, typed: bytes = b"", **settings: str) -> tuple[int, list[str]]:
    """Run the command on a terminal, and return its exit code and the lines that it writes, with colours.

    `typed` is typed whenever the command has been quiet for `QUIET_S`. It may be typed twice: Python does not notice a
    Ctrl-C in the moment between a question and the wait for its answer, and people then press it again.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    # Empty, since these variables override the terminal.
    told = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": "", "NO_COLOR": "", **settings}
    command = [sys.executable, "-m", "moorage", *arguments]
    # Its controlling terminal, which sends the signal of Ctrl-C.
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**told)
    ) as process:
        os.close(theirs)
        try:
            written = _read_and_type(ours, typed)
            os.close(ours)
            return process.wait(60), written.decode().splitlines()
        finally:
            process.kill()


def _read_and_type(terminal: int, typed: bytes) -> bytes:
    """Return everything that is written until the other end is closed. Raises AssertionError with it when typing does
    not end the command.
    """
    written, typed_times = b"", 0
    with suppress(OSError):  # the other end was closed
        while data := os.read(terminal, 65536):
            written += data
            while typed and not select([terminal], [], [], QUIET_S)[0]:
                assert typed_times < TYPED_MAX, written
                os.write(terminal, typed)
                typed_times += 1
    return written


def without_colours(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)
