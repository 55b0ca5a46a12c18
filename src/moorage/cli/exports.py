"""`moorage exports`: export trace runs to a bucket, once or on a schedule; watch and verify exports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import Client, WaitedTooLongError, connect
from moorage.cli.destinations import find_destination
from moorage.cli.errors import FAILED
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    counted,
    moment,
    note,
    show_json,
    show_json_line,
    show_list,
    show_one,
    show_warnings,
)
from moorage.cli.projects import ProjectArgument, find_project, size_text
from moorage.kernel.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(help="Exports of trace runs to a bucket, as Parquet.", no_args_is_help=True)

EXPORTS = "/api/v1/bulk-exports"
_ENDED = frozenset({"Completed", "Failed", "Cancelled", "TimedOut"})
_WATCH_S = 1.0
_FIRST_WATCH_S = 0.2


class Version(StrEnum):
    V1 = "v1"
    V2_BETA = "v2_beta"


class CompressionName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTANDARD = "zstandard"


_NOTHING_YET: Mapping[str, Any] = {"rows_written": 0, "bytes_written": 0, "exported_files": [], "latest_cursor": None}


def _result(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return run["metadata"]["result"] or _NOTHING_YET


def _last_error(run: Mapping[str, Any]) -> str | None:
    errors = run["errors"] or {}
    return errors.get(f"retry_{len(errors) - 1}")


_COLUMNS: Columns = {
    "id": "id",
    "status": "status",
    "from": moment("start_time"),
    "to": moment("end_time"),
    "every": lambda export: f"{export['interval_hours']} h" if export["interval_hours"] else None,
    "created": moment("created_at"),
    "finished": moment("finished_at"),
    "error": "error",
}
_FIELDS: Columns = {
    **_COLUMNS,
    "destination": "bulk_export_destination_id",
    "project": lambda export: "all experiments" if export["all_experiments"] else export["session_id"],
    "filter": "filter",
    "fields": "export_fields",
    "format": lambda export: f"{export['format']} {export['format_version']}, {export['compression']}",
    "of schedule": "source_bulk_export_id",
    "cutoff": moment("cutoff_at"),
    "manifest": "manifest",
    "tells": "webhook_url",
}
_RUN_COLUMNS: Columns = {
    "day": lambda run: run["start_time"][:10],
    "status": "status",
    "rows": lambda run: _result(run)["rows_written"],
    "files": lambda run: len(_result(run)["exported_files"]),
    "size": lambda run: size_text(_result(run)["bytes_written"]),
    "attempts": lambda run: run["retry_number"] + (run["status"] != "Created"),
    "last error": _last_error,
}
ExportArgument = Annotated[str, typer.Argument(help="Id of the export.")]
DestinationOption = Annotated[str, typer.Option("--to", help="Id or name of the destination.")]
FilterOption = Annotated[str | None, typer.Option(help='Only runs that match, such as eq(run_type, "llm").')]
FieldsOption = Annotated[str | None, typer.Option(help="Columns to export, separated by commas. Default: all.")]
FormatOption = Annotated[Version, typer.Option("--format", help="Format version; v2_beta has UTC times and lists.")]
CompressionOption = Annotated[CompressionName | None, typer.Option(help="Compression. Default: the platform's.")]
WebhookOption = Annotated[str | None, typer.Option(help="URL to notify when the export ends.")]


@app.command("create")
@client_command
def create_export(
    project: ProjectArgument,
    to: DestinationOption,
    start: Annotated[str, typer.Option(help="Start of the window, as 2026-01-31 or 2026-01-31T12:00:00Z.")],
    end: Annotated[str | None, typer.Option(help="End of the window, exclusive. Default: now.")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help='Only runs that match: eq(run_type, "llm").')] = None,
    fields: FieldsOption = None,
    version: FormatOption = Version.V2_BETA,
    compression: CompressionOption = None,
    webhook: WebhookOption = None,
    changed_since: Annotated[
        str | None,
        typer.Option(help="Only days that changed since this time, or since the export with this id."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the runs to export.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress until the export ends.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Export the runs of a project in a time window."""
    with connect() as client:
        body = _order(client, project, to, start, filter_, fields, version, compression, webhook)
        body["end_time"] = _moment(end) if end else datetime.now(UTC).isoformat()
        if changed_since:
            body["changed_since"] = _since(client, changed_since)
        if dry_run:
            _show_estimate(client.post(EXPORTS, {**body, "dry_run": True}), output)
            return
        made = client.post(EXPORTS, body)
        show_warnings(made)
        if watch:
            _watch(client, made["id"], None, output)
        else:
            show_one(made, _made_fields(made), output)


@app.command("schedule")
@client_command
def schedule_export(
    project: ProjectArgument,
    to: DestinationOption,
    every_hours: Annotated[int, typer.Option(min=1, max=168, help="Hours in a window, and between exports.")],
    start: Annotated[str | None, typer.Option(help="Start of the first window. Default: now.")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help='Only runs that match: eq(run_type, "llm").')] = None,
    fields: FieldsOption = None,
    version: FormatOption = Version.V2_BETA,
    compression: CompressionOption = None,
    webhook: WebhookOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Export a project regularly: each window ten minutes after its end, until you cancel the schedule."""
    with connect() as client:
        begins = start or datetime.now(UTC).isoformat()
        body = _order(client, project, to, begins, filter_, fields, version, compression, webhook)
        made = client.post(EXPORTS, {**body, "interval_hours": every_hours})
        show_one(made, _made_fields(made), output)


@app.command("list")
@client_command
def list_exports(output: OutputOption = Output.TABLE) -> None:
    """List exports and schedules, newest first."""
    with connect() as client:
        show_list(
            client.pages(EXPORTS),
            _COLUMNS,
            output,
            "no exports yet; `moorage exports create PROJECT --to DESTINATION --start DAY` makes one, and "
            "`moorage destinations list` shows the destinations",
        )


@app.command("show")
@client_command
def show_export(export_id: ExportArgument, output: OutputOption = Output.TABLE) -> None:
    """Show an export and the progress of each day."""
    with connect() as client:
        export = client.get(_path(export_id))
        runs = list(client.pages(f"{_path(export_id)}/runs"))
    if output is Output.JSON:
        show_json({**export, "runs": runs})
        return
    show_one(export, _FIELDS, output)
    show_warnings(export)
    if runs:
        typer.echo()
        show_list(runs, _RUN_COLUMNS, output)


@app.command("watch")
@client_command
def watch_export(
    export_id: ExportArgument,
    timeout_s: Annotated[float | None, typer.Option("--timeout", help="Maximum seconds to wait.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the progress of an export until it ends. The exit code is 0 only if it is complete."""
    with connect() as client:
        _watch(client, export_id, timeout_s, output)


@app.command("cancel")
@client_command
def cancel_export(export_id: ExportArgument, output: OutputOption = Output.TABLE) -> None:
    """Cancel an export permanently, or end a schedule. Exports that the schedule started continue."""
    with connect() as client:
        show_one(client.patch(_path(export_id), {"status": "Cancelled"}), _COLUMNS, output)


@app.command("verify")
@client_command
def verify_export(export_id: ExportArgument, output: OutputOption = Output.TABLE) -> None:
    """Read every file back and compare it with the manifest. The exit code is 0 only if nothing differs."""
    with connect() as client:
        proof = client.post(f"{_path(export_id)}/verify")
    if output is Output.JSON:
        show_json(proof)
    else:
        _show_proof(proof)
    if not proof["verified"]:
        raise typer.Exit(FAILED)


# --- ordering ---------------------------------------------------------------------------------------------------------


def _order(
    client: Client,
    project: str,
    to: str,
    start: str,
    filter_: str | None,
    fields: str | None,
    version: Version,
    compression: CompressionName | None,
    webhook: str | None,
) -> dict[str, Any]:
    return {
        "bulk_export_destination_id": find_destination(client, to)["id"],
        "session_id": find_project(client, project)["id"],
        "start_time": _moment(start),
        "filter": filter_,
        "export_fields": [name.strip() for name in fields.split(",")] if fields else None,
        "format_version": version.value,
        "compression": compression.value if compression else None,
        "webhook": {"url": webhook} if webhook else None,
    }


def _moment(text: str) -> str:
    """Return a time as the API takes it. A time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is not a time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def _since(client: Client, given: str) -> str:
    """Return a time: the given one, or the time at which an earlier export read its runs."""
    try:
        export_id = UUID(given)
    except ValueError:
        return _moment(given)
    cutoff_at = client.get(_path(str(export_id)))["cutoff_at"]
    if cutoff_at is None:
        raise InvalidRequestError(f"export {export_id} has not begun yet; give a time, or the id of an export that has")
    return str(cutoff_at)


def _path(export_id: str) -> str:
    try:
        return f"{EXPORTS}/{UUID(export_id)}"
    except ValueError:
        raise InvalidRequestError(f"{export_id!r} is not the id of an export; see `moorage exports list`") from None


def _made_fields(made: Mapping[str, Any]) -> Columns:
    return {**_FIELDS, "webhook secret": "webhook_secret"} if "webhook_secret" in made else _FIELDS


def _show_estimate(estimate: Mapping[str, Any], output: Output) -> None:
    show_warnings(estimate)
    if output is Output.JSON:
        show_json(estimate)
        return
    columns: Columns = {"day": lambda day: day["start_time"][:10], "rows": "rows"}
    show_list(estimate["partitions"], columns, output)
    note(f"{estimate['rows']} rows in {estimate['export_runs']} export runs; nothing was exported")


# --- watching ---------------------------------------------------------------------------------------------------------


def _watch(client: Client, export_id: str, timeout_s: float | None, output: Output) -> None:
    # Slow to import, and only needed to watch.
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if output is Output.JSON or not console.is_terminal:
        for export, runs in _looks(client, export_id, timeout_s):
            if output is Output.JSON:
                show_json_line({"status": export["status"], **_totals(runs)})
        if output is Output.TABLE:
            console.print(_picture(export, runs))
    else:
        with Live(console=console, auto_refresh=False) as live:
            for export, runs in _looks(client, export_id, timeout_s):
                live.update(_picture(export, runs), refresh=True)
    if export["status"] != "Completed":
        note(f"the export is {export['status']}: {export['error'] or 'see `moorage exports show`'}")
        raise typer.Exit(FAILED)


def _looks(client: Client, export_id: str, timeout_s: float | None) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the export and its runs again and again, until it has ended."""
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    wait_s = _FIRST_WATCH_S
    while True:
        export = client.get(_path(export_id))
        yield export, list(client.pages(f"{_path(export_id)}/runs"))
        if export["status"] in _ENDED:
            return
        if give_up_at is not None and time.monotonic() > give_up_at:
            raise WaitedTooLongError(
                f"the export is still {export['status']} after {timeout_s:g} seconds; it continues"
            )
        time.sleep(wait_s)
        wait_s = min(_WATCH_S, wait_s * 1.5)


def _picture(export: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Draw a bar for each day. How many rows a day has is not known before it is done, so a bar shows how much of the
    day's time lies before the cursor.
    """
    # Slow to import, and only needed in a terminal.
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("DAY", "", "STATUS", "ROWS", "SIZE", "ATTEMPTS"):
        table.add_column(heading, no_wrap=True)
    for run in runs:
        result = _result(run)
        table.add_row(
            run["start_time"][:10],
            ProgressBar(total=1.0, completed=_share(run), width=24),
            run["status"],
            str(result["rows_written"]),
            size_text(result["bytes_written"]),
            str(run["retry_number"] + (run["status"] != "Created")),
        )
    totals = _totals(runs)
    line = (
        f"{export['status']}: {totals['rows']} rows, {size_text(totals['bytes'])}, {counted(totals['files'], 'file')}"
    )
    return Group(table, Text(line, style="bold"))


def _share(run: Mapping[str, Any]) -> float:
    """Return the share of the run's time that lies before its cursor."""
    if run["status"] == "Completed":
        return 1.0
    cursor = _result(run)["latest_cursor"]
    if cursor is None:
        return 0.0
    start, end, at = (
        datetime.fromisoformat(text) for text in (run["start_time"], run["end_time"], cursor.rpartition("_")[0])
    )
    return float((at - start) / (end - start))


def _totals(runs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    results = [_result(run) for run in runs]
    return {
        "runs": len(runs),
        "runs_completed": sum(run["status"] == "Completed" for run in runs),
        "rows": sum(result["rows_written"] for result in results),
        "bytes": sum(result["bytes_written"] for result in results),
        "files": sum(len(result["exported_files"]) for result in results),
        "retries": sum(run["retry_number"] for run in runs),
    }


# --- proving ----------------------------------------------------------------------------------------------------------


def _show_proof(proof: Mapping[str, Any]) -> None:
    if proof["differences"]:
        columns: Columns = {"file": "file", "problem": "problem", "expected": "expected", "found": "found"}
        show_list(proof["differences"], columns, Output.TABLE)
    said = "they match the manifest" if proof["verified"] else f"{len(proof['differences'])} differences"
    typer.echo(f"{counted(proof['files'], 'file')}, {proof['rows']} rows, {size_text(proof['bytes'])}: {said}")
    for day in proof["stale"]:
        note(f"stale: {day['rows']} runs of {day['start_time'][:10]} arrived, changed or went after the export began")
