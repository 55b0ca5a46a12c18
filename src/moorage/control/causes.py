"""Causes of failed builds and starts: the cause first, then up to three lines around it, then where the whole log is.

Pure functions on a program's last lines of output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moorage.control.records.orders import Order

_LINES = 3
# How our own server, the installer and git begin the line that gives the cause.
_COMPLAINT = re.compile(r"(error|fatal|ERROR): |\s*\u00d7 ")
# The last line of a stack trace: the class of the error, and its text.
_RAISED = re.compile(r"(\w+\.)*\w*(Error|Exception|Exit|Interrupt)(:|$)")


def build_failure(order: Order, printed: Sequence[str], otherwise: str) -> str:
    """Explain why a build failed. `otherwise` is the explanation when the build printed nothing."""
    log = f"moorage logs {order.deployment_name} --type build --revision {order.number}"
    return _failure("", printed or [otherwise], log)


def start_failure(order: Order, what: str, printed: Sequence[str]) -> str:
    """Explain why an agent does not run. `what` says in a few words what happened."""
    return _failure(f"{what}: ", printed, f"moorage logs {order.deployment_name} --revision {order.number}")


def _failure(what: str, printed: Sequence[str], log: str) -> str:
    lines = [line for line in printed if line.strip()] or ["it printed nothing"]
    at = _cause_at(lines)
    # The installer explains an error in the lines below it; the lines that lead to an exception are above it.
    near = lines[at + 1 : at + 1 + _LINES] or lines[max(0, at - _LINES) : at]
    cause = lines[at].strip().removeprefix("error: ")
    return "\n".join([f"{what}{cause}", *(f"  {line}" for line in near), f"The whole log: {log}"])


def _cause_at(lines: Sequence[str]) -> int:
    for pattern in (_COMPLAINT, _RAISED):
        if found := [number for number, line in enumerate(lines) if pattern.match(line)]:
            return found[-1]
    return len(lines) - 1
