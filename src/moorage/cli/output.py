"""Output of commands: tables for people, JSON for programs, errors on stderr, and an exit code for
each kind of error.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

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

if TYPE_CHECKING:
    from rich.console import Console

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
# A pipe has no width, and a program that reads it has no use for text cut at 80 columns.
_PIPE_WIDTH = 10_000


# The gap between columns, the length up to which a text is never cut, and the least length that a text is cut to.
_GAP = 2
_WHOLE_CHARS = 20
_NARROW_CHARS = 10
_WELL = {"success", "deployed", "completed", "serving", "ready", "well", "ok"}


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for programs.")]
# The heading of a column, and the source of its value: a key of the row, or a function of the row.
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], Any]]


def client_command(command: Callable[P, T]) -> Callable[P, T]:
    """Make a command print a MoorageError as one plain line on stderr, and exit with the code for its kind."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except MoorageError as error:
            lines = [printable(line) for line in str(error).splitlines()]
            typer.echo("error: " + "\n".join(lines), err=True)
            raise typer.Exit(EXIT_CODES.get(type(error), FAILED)) from error

    return plain_errors(wrapped)


def show_list(
    rows: Iterable[Mapping[str, Any]], columns: Columns, output: Output, empty: str = "nothing found"
) -> None:
    """Show a list. JSON: one array of the whole rows. Table: the given columns, or `empty` on stderr, which names the
    next command.
    """
    rows = list(rows)
    if output is Output.JSON:
        show_json(rows)
    elif rows:
        _print_table(columns, rows)
    else:
        note(empty)


def show_one(row: Mapping[str, Any], fields: Columns, output: Output) -> None:
    """Show one row. JSON: the whole row. Table: one line for each field."""
    if output is Output.JSON:
        show_json(row)
        return
    lines = [{"field": heading, "value": _value(row, source)} for heading, source in fields.items()]
    _print_table({"field": "field", "value": "value"}, lines, headed=False)


def show_json(value: Any) -> None:
    """Print indented JSON, with the keys in the server's order."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_line(value: Any) -> None:
    """Print one item of an endless list as one line, at once."""
    typer.echo(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a note for people on stderr, so that no program reads it as the result."""
    typer.echo(printable(text), err=True)


def confirm(question: str) -> None:
    """Ask a question on stderr. Raises typer.Exit for a no, KeyboardInterrupt for Ctrl-C, InvalidRequestError for no
    answer.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from abort
        raise InvalidRequestError("the question got no answer; give --yes to go ahead without it") from abort
    if not agreed:
        raise typer.Exit(FAILED)


def show_warnings(answer: Mapping[str, Any]) -> None:
    """Print the warnings in an answer of the platform on stderr."""
    for warning in answer.get("warnings", ()):
        note(f"warning: {warning}")


def printable(text: str) -> str:
    """Return text from elsewhere as one line, without characters that would control the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def shown(value: Any) -> str:
    """Return a value as a table shows it; a time is cut to the second."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def moment(key: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a column with a time of the API, cut to the second."""

    def read(row: Mapping[str, Any]) -> Any:
        told = row.get(key)
        return f"{told[:19].replace('T', ' ')}Z" if isinstance(told, str) else None

    return read


def _value(row: Mapping[str, Any], source: str | Callable[[Mapping[str, Any]], Any]) -> Any:
    return source(row) if callable(source) else row.get(source)


def terminal() -> Console:
    """Return the standard output: as wide as the terminal, or in a pipe as wide as the lines need."""
    from rich.console import Console  # slow to import, and not needed to start a server

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def state_style(state: str) -> str:
    """Return the colour of a state's name: green for well, red for failed, yellow for under way."""
    word = state.lower()
    if word.endswith(("failed", "error", "timedout", "down")):
        return "red"
    return "green" if word in _WELL else "yellow"


def _print_table(columns: Columns, rows: Sequence[Mapping[str, Any]], *, headed: bool = True) -> None:
    """Print a table. On a terminal, a row is one line: empty columns and columns that do not fit are left out, and long
    texts are cut.
    """
    from rich.table import Table  # slow to import, and not needed to start a server
    from rich.text import Text

    console = terminal()
    texts = {heading: [printable(shown(_value(row, source))) for row in rows] for heading, source in columns.items()}
    one_line = headed and console.is_terminal
    kept = _fitting(texts, console.width) if one_line else list(texts)
    table = Table(box=None, show_header=headed, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, heading in enumerate(kept):
        # The first column is never cut, because people copy from it.
        whole = number == 0 or (one_line and not _may_be_cut(texts[heading]))
        table.add_column(heading.upper(), no_wrap=not console.is_terminal or whole, overflow="fold")
    for number in range(len(rows)):
        cells = ((heading, texts[heading][number]) for heading in kept)
        table.add_row(
            *(
                # A plain string in a cell would be parsed as markup.
                Text(
                    cell,
                    style=state_style(cell) if heading == "status" and headed else "",
                    no_wrap=one_line or None,
                    overflow="ellipsis" if one_line else None,
                )
                for heading, cell in cells
            )
        )
    console.print(table)
    if left_out := [heading for heading in texts if heading not in kept and set(texts[heading]) != {"-"}]:
        note(f"a wider terminal also shows {', '.join(left_out)}; -o json shows all")


def _may_be_cut(cells: Sequence[str]) -> bool:
    """Return True for prose. A time, a number or an identifier is useless when cut."""
    return any(len(cell) > _WHOLE_CHARS and " " in cell for cell in cells)


def _fitting(texts: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Return the headings of the columns that fit into a terminal of this width, from the first on."""
    kept, used = list[str](), 0
    for heading, cells in texts.items():
        if kept and all(cell == "-" for cell in cells):
            continue
        longest = max(len(heading), *map(len, cells))
        used += (_NARROW_CHARS if kept and _may_be_cut(cells) else longest) + _GAP
        if kept and used - _GAP > width:
            break
        kept.append(heading)
    return kept
