"""Output of commands: tables, JSON, stderr, exit codes."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from moorage.cli.client import UnreachableError, WaitedTooLongError
from moorage.cli.output import Output, OutputOption, client_command, moment, show_json_line, show_list, show_one
from moorage.kernel import errors

ROWS = [
    {"id": "1", "name": "[bold]one[/bold]", "tags": ["a", "b"], "made": "2026-05-13T16:20:35.012908+00:00", "on": True},
    {"id": "2", "name": "x\x1b[31mred\nline", "tags": [], "made": None, "on": False, "extra": {"k": 1}},
]
COLUMNS = {"id": "id", "name": "name", "tags": "tags", "made": moment("made"), "on": "on", "size": len}


def run(body, *arguments):
    app = typer.Typer()

    @app.command()
    @client_command
    def command(output: OutputOption = Output.TABLE) -> None:
        body(output)

    return CliRunner().invoke(app, arguments)


def test_a_table_shows_the_columns_and_steers_no_terminal():
    result = run(lambda output: show_list(ROWS, COLUMNS, output))
    heading, one, two = result.stdout.splitlines()
    assert heading.split() == ["ID", "NAME", "TAGS", "MADE", "ON", "SIZE"]
    assert one.split() == ["1", "[bold]one[/bold]", "a,", "b", "2026-05-13", "16:20:35Z", "yes", "5"]
    assert two.split() == ["2", "x", "[31mred", "line", "-", "-", "no", "6"]


def test_a_table_in_a_pipe_is_not_cut():
    wide = [{"id": "i" * 300, "name": "n" * 300}]
    result = run(lambda output: show_list(wide, {"id": "id", "name": "name"}, output))
    assert result.stdout.splitlines()[1].split() == ["i" * 300, "n" * 300]


def test_json_is_the_whole_rows():
    assert json.loads(run(lambda output: show_list(ROWS, COLUMNS, output), "-o", "json").stdout) == ROWS
    assert json.loads(run(lambda output: show_one(ROWS[0], COLUMNS, output), "--output", "json").stdout) == ROWS[0]
    assert run(lambda _: show_json_line(ROWS[1])).stdout.count("\n") == 1


def test_one_thing_is_a_line_for_each_field():
    lines = run(lambda output: show_one(ROWS[0], {"id": "id", "on": "on"}, output)).stdout.splitlines()
    assert [line.split() for line in lines] == [["id", "1"], ["on", "yes"]]


def test_an_empty_list_says_so_on_stderr_and_is_valid_json():
    table, as_json = (run(lambda output: show_list([], COLUMNS, output), *more) for more in ([], ["-o", "json"]))
    assert (table.stdout, table.stderr) == ("", "nothing found\n")
    assert json.loads(as_json.stdout) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MoorageError("x"), 1),
        (errors.BadRequestError("x"), 1),
        (errors.UnavailableError("x"), 1),
        (errors.InvalidRequestError("x"), 2),
        (errors.NotFoundError("x"), 3),
        (errors.UnauthenticatedError("x"), 4),
        (errors.ForbiddenError("x"), 4),
        (errors.ConflictError("x"), 5),
        (WaitedTooLongError("x"), 6),
        (UnreachableError("x"), 7),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_tells_what_kind_of_error_it_was(error, code):
    def fail(_):
        raise error

    result = run(fail)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == ("" if code == 130 else "error: x\n")


def test_a_wrong_option_is_a_usage_error():
    assert run(lambda _: None, "-o", "yaml").exit_code == 2
