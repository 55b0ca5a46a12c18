"""`moorage projects`: collections of traces, their size, and how long their runs are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import Client, connect
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    confirm,
    moment,
    note,
    show_list,
    show_one,
    shown,
)
from moorage.kernel.errors import InvalidRequestError, MoorageError, NotFoundError

app = typer.Typer(help="Projects: collections of traces.", no_args_is_help=True)

SESSIONS = "/api/v1/sessions"
_COMPLETIONS_MAX = 20
_KIB = 1024
_FOR_EVER = "for-ever"
# Shown for an empty list, before the first trace.
NOTHING_TRACED = (
    "no traces yet; where your agent runs, set LANGSMITH_TRACING=true, LANGSMITH_ENDPOINT to the platform's "
    "address with /api/v1, and LANGSMITH_API_KEY. `moorage keys create NAME` makes a key"
)


class Sort(StrEnum):
    NAME = "name"
    CREATED = "created"
    LAST_RUN = "last-run"
    TRACES = "traces"
    ERRORS = "errors"


_SORTS = {
    Sort.NAME: "name",
    Sort.CREATED: "start_time",
    Sort.LAST_RUN: "last_run_start_time",
    Sort.TRACES: "runs_count",
    Sort.ERRORS: "error_rate",
}


def complete_project(incomplete: str) -> list[str]:
    """Return names of projects for the shell's completion; none when the platform does not answer."""
    try:
        with connect() as client:
            found = client.get(SESSIONS, name_contains=incomplete, sort_by="name", limit=_COMPLETIONS_MAX)
    except MoorageError:
        return []
    return [project["name"] for project in found if project["name"].startswith(incomplete)]


ProjectArgument = Annotated[str, typer.Argument(help="Name or id of the project.", autocompletion=complete_project)]


def find_project(client: Client, named: str, **query: Any) -> Any:
    """Find a project by name, or by id when none has that name. Raises NotFoundError."""
    if found := client.get(SESSIONS, name=named, limit=1, **query):
        return found[0]
    try:
        project_id = UUID(named)
    except ValueError:
        raise NotFoundError(f"there is no project {named!r}; see `moorage projects list`") from None
    return client.get(f"{SESSIONS}/{project_id}", **query)


def size_text(value: Any) -> str:
    """Return a number of bytes as people read it."""
    if value is None:
        return "-"
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < _KIB:
            break
        size, unit = size / _KIB, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def seconds_text(value: Any) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.2f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def percent_text(value: Any) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def cost_text(value: Any) -> str:
    """Return the cost without an exponent, which JSON numbers may have."""
    return "-" if value is None else f"${Decimal(str(value)):f}"


def feedback_text(stats: Mapping[str, Mapping[str, Any]] | None) -> str:
    """Return averages by key; for a key without scores, how many feedbacks it has."""
    parts = (
        f"{key} {each['avg']:.2f} ({each['n']})" if each.get("avg") is not None else f"{key} ({each['n']})"
        for key, each in (stats or {}).items()
    )
    return ", ".join(parts) or "-"


def _kept(project: Mapping[str, Any]) -> str:
    if project.get("trace_tier") == "shortlived":
        return "as short-lived"
    days = project.get("longlived_ttl_days")
    if days is None:
        return "workspace default"
    return f"{days} days" if days else "for ever"


_COLUMNS: Columns = {"name": "name", "id": "id", "created": moment("start_time")}
_STATS: Columns = {
    "traces": "run_count",
    "errors": lambda row: percent_text(row["error_rate"]),
    "p50": lambda row: seconds_text(row["latency_p50"]),
    "tokens": "total_tokens",
    "cost": lambda row: cost_text(row["total_cost"]),
    "last run": moment("last_run_start_time"),
    "runs": "stored_runs",
    "size": lambda row: size_text(row["stored_bytes"]),
}
_FIELDS: Columns = {
    **_COLUMNS,
    "description": "description",
    "metadata": lambda row: shown((row["extra"] or {}).get("metadata")),
    "kept": _kept,
}
_ALL_FIELDS: Columns = {
    **_FIELDS,
    **_STATS,
    "p99": lambda row: seconds_text(row["latency_p99"]),
    "first token p50": lambda row: seconds_text(row["first_token_p50"]),
    "streamed": lambda row: percent_text(row["streaming_rate"]),
    "feedback": lambda row: feedback_text(row["feedback_stats"]),
}

KeepDays = Annotated[
    str | None,
    typer.Option(
        "--keep-days", help=f"Days to keep runs; or `{_FOR_EVER}`, or `workspace` for the default of the workspace."
    ),
]
Description = Annotated[str | None, typer.Option(help="What the project is for.")]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of the project. Can be repeated.")
]


@app.command("list")
@client_command
def list_projects(
    name: Annotated[str | None, typer.Option("--name", help="Only projects whose name contains this.")] = None,
    metadata: Metadata = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show counts, latency, cost and size too.")] = False,
    sort: Annotated[Sort, typer.Option(help="Sort by this, the most recent or largest first.")] = Sort.CREATED,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the projects of the workspace."""
    query = {
        "name_contains": name,
        "metadata": json.dumps(pairs(metadata)) if metadata else None,
        "include_stats": stats,
        "sort_by": _SORTS[sort],
        "sort_by_desc": sort is not Sort.NAME,
    }
    with connect() as client:
        found = list(islice(client.pages(SESSIONS, **query), limit))
    empty = "no project matches; `moorage projects list` shows all" if name or metadata else NOTHING_TRACED
    show_list(found, {**_COLUMNS, **_STATS} if stats else _FIELDS, output, empty)


@app.command("show")
@client_command
def show_project(project: ProjectArgument, output: OutputOption = Output.TABLE) -> None:
    """Show a project with the totals of its runs."""
    with connect() as client:
        show_one(find_project(client, project, include_stats=True), _ALL_FIELDS, output)


@app.command("create")
@client_command
def create_project(
    name: Annotated[str, typer.Argument(help="Name of the project.")],
    description: Description = None,
    metadata: Metadata = None,
    keep_days: KeepDays = None,
    upsert: Annotated[bool, typer.Option("--upsert", help="Change the project if it exists already.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a project. Tracing creates a project by itself when it first uses a name."""
    wanted = {"name": name, **_changes(description, metadata, keep_days)}
    with connect() as client:
        show_one(client.post(SESSIONS, wanted, upsert=upsert), _FIELDS, output)


@app.command("update")
@client_command
def update_project(
    project: ProjectArgument,
    name: Annotated[str | None, typer.Option("--name", help="The new name.")] = None,
    description: Description = None,
    metadata: Metadata = None,
    keep_days: KeepDays = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the given fields of a project. Metadata are replaced as a whole."""
    changes = _changes(description, metadata, keep_days)
    if name is not None:
        changes["name"] = name
    if not changes:
        raise InvalidRequestError("nothing to change was given; see `moorage projects update --help`")
    with connect() as client:
        found = find_project(client, project)
        if "extra" in changes:
            changes["extra"] = {**(found["extra"] or {}), **changes["extra"]}
        show_one(client.patch(f"{SESSIONS}/{found['id']}", changes), _FIELDS, output)


@app.command("delete")
@client_command
def delete_projects(
    projects: Annotated[
        list[str], typer.Argument(help="Names or ids of the projects.", autocompletion=complete_project)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete projects with all of their runs, feedback and attachments."""
    with connect() as client:
        found = [find_project(client, named, include_stats=True) for named in projects]
        for project in found:
            note(f"{project['name']}: {project['stored_runs']} runs, {size_text(project['stored_bytes'])}")
        if not yes:
            confirm(f"Delete {len(found)} project(s) permanently?")
        for project in found:
            client.delete(f"{SESSIONS}/{project['id']}")
            note(f"{project['name']} is deleted; its runs are being removed")


def _changes(description: str | None, metadata: Sequence[str] | None, keep_days: str | None) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if description is not None:
        changes["description"] = description
    if metadata:
        changes["extra"] = {"metadata": pairs(metadata)}
    if keep_days is not None:
        changes["longlived_ttl_days"] = _days(keep_days)
    return changes


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Read metadata that are given as KEY=VALUE. Raises InvalidRequestError."""
    found = dict[str, str]()
    for each in given:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise InvalidRequestError(f"metadata must be KEY=VALUE, not {each!r}")
        found[key] = value
    return found


def _days(text: str) -> int | None:
    if text == "workspace":
        return None
    if text == _FOR_EVER:
        return 0
    if not text.isdigit() or int(text) == 0:
        raise InvalidRequestError(f"--keep-days takes a number of days, {_FOR_EVER} or workspace, not {text!r}")
    return int(text)
