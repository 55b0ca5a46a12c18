"""How a command tells its result: tables for people, JSON for programs, errors on stderr, and what kind by the exit code."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from moorage.cli.client import UnreachableError, WaitedTooLongError
from moorage.cli.errors import FAILED, plain_errors
from moorage.kernel.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    MoorageError,
    NotFoundError,
    UnauthenticatedError,
)

P = ParamSpec("P")
T = TypeVar("T")

# Scripts rely on these numbers. 1 is any other failure, 130 an interruption.
EXIT_CODES: Mapping[type[MoorageError], int] = {
    InvalidRequestError: 2,
    NotFoundError: 3,
    UnauthenticatedError: 4,
    ForbiddenError: 4,
    ConflictError: 5,
    WaitedTooLongError: 6,
    UnreachableError: 7,
}
# A pipe has no width: what is cut at 80 columns is no use to the program that reads it.
_PIPE_WIDTH = 10_000


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for programs.")]
# The heading of a column, and where its value comes from: a key of the row, or a function of the row.
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], Any]]


def client_command(command: Callable[P, T]) -> Callable[P, T]:
    """Print a MoorageError as one plain line on stderr, and let the exit code tell which kind it was."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except MoorageError as error:
            typer.echo(f"error: {printable(str(error))}", err=True)
            raise typer.Exit(EXIT_CODES.get(type(error), FAILED)) from error

    return plain_errors(wrapped)


def show_list(rows: Iterable[Mapping[str, Any]], columns: Columns, output: Output) -> None:
    """JSON: one array of the whole rows. Table: the columns, or one line on stderr when there is nothing."""
    rows = list(rows)
    if output is Output.JSON:
        show_json(rows)
    elif rows:
        _print_table(columns, rows)
    else:
        note("nothing found")


def show_one(row: Mapping[str, Any], fields: Columns, output: Output) -> None:
    """JSON: the whole row. Table: one line for each field."""
    if output is Output.JSON:
        show_json(row)
        return
    lines = [{"field": heading, "value": _value(row, source)} for heading, source in fields.items()]
    _print_table({"field": "field", "value": "value"}, lines, headed=False)


def show_json(value: Any) -> None:
    """Indented, keys in the order of the server."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_line(value: Any) -> None:
    """One line for one item of an endless list, at once."""
    typer.echo(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def note(text: str) -> None:
    """A word to the person that no program should read as the result."""
    typer.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Text from elsewhere on one line, without what would steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def shown(value: Any) -> str:
    """A value as a table shows it; a time down to the second."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def moment(key: str) -> Callable[[Mapping[str, Any]], Any]:
    """A column with a time of the API, down to the second."""

    def read(row: Mapping[str, Any]) -> Any:
        told = row.get(key)
        return f"{told[:19].replace('T', ' ')}Z" if isinstance(told, str) else None

    return read


def _value(row: Mapping[str, Any], source: str | Callable[[Mapping[str, Any]], Any]) -> Any:
    return source(row) if callable(source) else row.get(source)


def _print_table(columns: Columns, rows: Sequence[Mapping[str, Any]], *, headed: bool = True) -> None:
    # Slow to import, and a server that starts need not wait for it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=headed, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for number, heading in enumerate(columns):
        # Text in a cell would be read as markup; the first column is what people copy, so it is never cut.
        table.add_column(heading.upper(), no_wrap=not console.is_terminal or number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(shown(_value(row, source)))) for source in columns.values()))
    console.print(table)
