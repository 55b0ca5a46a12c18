"""Errors of commands: their messages and exit codes."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from moorage.kernel.errors import MoorageError

P = ParamSpec("P")
T = TypeVar("T")

FAILED = 1
INTERRUPTED = 130


def plain_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Print a MoorageError as one plain line instead of a traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except MoorageError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(FAILED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error

    return wrapped


def exit_by(stopped_by: signal.Signals | None) -> None:
    """Raise typer.Exit after Ctrl-C, but not after SIGTERM, which is the regular way to stop a server."""
    if stopped_by == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
