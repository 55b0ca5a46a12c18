"""Commands on a terminal of their own, as a person has them."""

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

from tests.platform.serving import environment


def on_terminal(arguments: list[str], width: int, typed: bytes = b"", **settings: str) -> tuple[int, list[str]]:
    """The exit code, and the lines that the command writes, with colours. `typed` is what comes after the first word."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    # Empty: variables that speak louder than the terminal.
    told = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": "", "NO_COLOR": "", **settings}
    command = [sys.executable, "-m", "moorage", *arguments]
    # Its controlling terminal: what sends the signal of Ctrl-C.
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**told)
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65536):
            written += data
            if typed:
                os.write(ours, typed)
                typed = b""
    os.close(ours)
    return process.wait(60), written.decode().splitlines()


def without_colours(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)
