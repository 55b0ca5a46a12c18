"""`moorage traces`: find traces, inspect one, follow new ones, and show totals."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import Client, UnreachableError, connect
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    moment,
    note,
    printable,
    show_json,
    show_json_line,
    show_list,
    show_one,
    state_style,
    terminal,
)
from moorage.cli.projects import (
    NOTHING_TRACED,
    SESSIONS,
    complete_project,
    cost_text,
    feedback_text,
    find_project,
    percent_text,
    seconds_text,
)
from moorage.kernel.errors import InvalidRequestError, NotFoundError, UnauthenticatedError

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

app = typer.Typer(help="Traces: what agents and chains did.", no_args_is_help=True)

_QUERY = "/api/v1/runs/query"
_TAIL = "/api/v1/runs/tail"
_PAGE_MAX = 100
_RUNS_MAX = 25_000
_PROJECTS_MAX = 1000
_POLL_S = 1.0
_FOLLOWED_MAX = 10_000
_AGE = re.compile(r"(\d+)(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHOWN = ("id", "name", "run_type", "status", "error", "start_time", "end_time", "total_tokens", "total_cost")
_IN_TREE = (
    *_SHOWN,
    *("trace_id", "parent_run_id", "dotted_order", "session_id", "thread_id", "tags", "feedback_stats"),
    *("inputs_preview", "outputs_preview"),
)
_NOTHING = ("{}", "null")
_INTERRUPT = re.compile(r"GraphInterrupt\(\(Interrupt\(value=(.*?)(?:, (?:id|resumable|ns|when)=.*)?\)\)?,?\)*$")
# Filter for runs that an interrupt ended. The SDKs' error text begins with the exception.
_IS_INTERRUPT = 'like(error, "GraphInterrupt(%")'
_STATS_PATH = "/api/v1/runs/stats"
_SERIES_PATH = f"{_STATS_PATH}/series"
_TRACEBACK = "Traceback (most recent call last):"

ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project",
        "-p",
        help="Name or id of the project. Default: LANGSMITH_PROJECT, or all projects.",
        autocompletion=complete_project,
    ),
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", help='An expression such as and(eq(run_type, "llm"), gt(latency, "5s")).'),
]
SinceOption = Annotated[
    str | None, typer.Option(help="Only runs that began since this time, or an age such as 30m, 12h or 7d.")
]


def _latency(run: Mapping[str, Any]) -> float | None:
    if not run.get("end_time"):
        return None
    return (_time(run["end_time"]) - _time(run["start_time"])).total_seconds()


# A narrow terminal shows the columns that come first.
_COLUMNS: Columns = {
    "id": "id",
    "name": "name",
    "status": lambda run: _state(run)[0],
    "latency": lambda run: seconds_text(_latency(run)),
    "error": lambda run: _state(run)[1],
    "tokens": lambda run: run.get("total_tokens") or None,
    "cost": lambda run: cost_text(run.get("total_cost")),
    "project": "project",
    "started": moment("start_time"),
}
_STATS: Columns = {
    "runs": "run_count",
    "errors": lambda row: percent_text(row.get("error_rate")),
    "interrupts": lambda row: row.get("interrupt_count") or None,
    "p50": lambda row: seconds_text(row.get("latency_p50")),
    "p99": lambda row: seconds_text(row.get("latency_p99")),
    "first token p50": lambda row: seconds_text(row.get("first_token_p50")),
    "tokens": "total_tokens",
    "prompt": "prompt_tokens",
    "completion": "completion_tokens",
    "cost": lambda row: cost_text(row.get("total_cost")),
    "streamed": lambda row: percent_text(row.get("streaming_rate")),
    "last run": moment("last_run_start_time"),
    "feedback": lambda row: feedback_text(row.get("feedback_stats")),
}


_SERIES_SELECT = (
    "run_count",
    "error_rate",
    "latency_p50",
    "latency_p99",
    "first_token_p50",
    "total_tokens",
    "total_cost",
)
_IN_SERIES: Columns = {
    "from": moment("start_time"),
    **{name: _STATS[name] for name in ("runs", "errors", "p50", "p99", "first token p50", "tokens", "cost")},
}


@app.command("list")
@client_command
def list_traces(
    project: ProjectOption = None,
    filter_: FilterOption = None,
    since: SinceOption = None,
    until: Annotated[str | None, typer.Option(help="Only runs that began before this time or age.")] = None,
    failed: Annotated[
        bool | None, typer.Option("--failed/--ok", help="Only runs with an error, or only runs without one.")
    ] = None,
    all_runs: Annotated[
        bool, typer.Option("--all-runs", help="Include all runs, not only the roots of traces.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=_RUNS_MAX, help="Show at most this many.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List traces, newest first. -o json also shows their inputs and outputs."""
    with connect() as client:
        query = _query(client, project, filter_, since, until, failed, all_runs=all_runs)
        if output is Output.TABLE:
            query["select"] = _SHOWN
        found = islice(_runs(client, query, limit), limit)
        names = _all_projects(client) if _named(project) is None and output is Output.TABLE else {}
        rows = ({**run, "project": names.get(run["session_id"])} if names else run for run in found)
        narrowed = any(value is not None for value in (filter_, since, until, failed)) or _named(project)
        empty = "no trace matches; `moorage traces list` shows the newest of all projects"
        show_list(rows, _COLUMNS, output, empty if narrowed else NOTHING_TRACED)


@app.command("get")
@client_command
def get_trace(
    trace_id: Annotated[UUID, typer.Argument(help="Id of the trace, or of any run in it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a trace as a tree: time, tokens, cost and error of each run, and the beginning of its input and output.

    -o json prints all runs in full.
    """
    with connect() as client:
        run = client.get(f"/api/v1/runs/{trace_id}", exclude_s3_stored_attributes=True, exclude_serialized=True)
        query: dict[str, Any] = {"trace": run["trace_id"], "session": [run["session_id"]], "order": "asc"}
        if output is Output.TABLE:
            query["select"] = _IN_TREE
        runs = sorted(_runs(client, query, _RUNS_MAX), key=lambda each: each["dotted_order"])
    if not runs:
        raise NotFoundError(f"there is no trace {trace_id}; see `moorage traces list`")
    if output is Output.JSON:
        show_json(runs)
    else:
        _print_trees(runs)


@app.command("tail")
@client_command
def tail_traces(
    project: ProjectOption = None,
    filter_: FilterOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new ones until Ctrl-C.")] = False,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, max=_RUNS_MAX, help="Number to begin with.")] = 10,
    all_runs: Annotated[
        bool, typer.Option("--all-runs", help="Include all runs, not only the roots of traces.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the newest traces, oldest first. With -f, each trace prints one line when it begins and one when it ends.

    -o json prints one run per line.
    """
    with connect() as client:
        query = _query(client, project, filter_, None, None, None, all_runs=all_runs)
        if output is Output.TABLE:
            query["select"] = _SHOWN
        runs = list(islice(_runs(client, query, count), count))[::-1] if count else []
        for run in runs:
            _print_line(run, output)
        if not runs and count:
            note(NOTHING_TRACED if not query["session"] else "no trace matches yet; -f waits for new ones")
        if follow:
            if _named(project) is None:  # include new projects too
                query = {name: value for name, value in query.items() if name != "session"}
            for run in _new_runs(client, query, runs):
                _print_line(run, output)


@app.command("stats")
@client_command
def show_stats(
    project: ProjectOption = None,
    filter_: FilterOption = None,
    since: SinceOption = None,
    until: Annotated[str | None, typer.Option(help="Only runs that began before this time or age.")] = None,
    all_runs: Annotated[
        bool, typer.Option("--all-runs", help="Include all runs, not only the roots of traces.")
    ] = False,
    by: Annotated[
        str | None, typer.Option("--by", help="Group by name, run_type, tag, time, or a metadata key as metadata:KEY.")
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Maximum number of groups. Default: 5; for time, 24.", show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show totals of traces: counts, latencies, tokens, costs, feedback."""
    with connect() as client:
        query = _query(client, project, filter_, since, until, None, all_runs=all_runs)
        if by == "time":
            show_list(_series(client, query, groups or 24), _IN_SERIES, output)
            return
        if by is not None:
            attribute, _, key = by.partition(":")
            query["group_by"] = {"attribute": attribute, "path": key or None, "max_groups": groups or 5}
        if not query["session"]:
            raise NotFoundError(NOTHING_TRACED)
        found = _stats_without_interrupts(client, query, in_groups=by is not None)
    if by is None or output is Output.JSON:
        show_one(found, _STATS, output)
    else:
        show_list([{"group": name, **row} for name, row in found.items()], {by: "group", **_STATS}, output)


def _series(client: Client, query: Mapping[str, Any], most: int) -> list[Any]:
    if not query["session"]:
        raise NotFoundError(NOTHING_TRACED)
    found = client.post(_SERIES_PATH, {**query, "buckets": max(most, 2), "select": _SERIES_SELECT})
    return list(found["buckets"])


def _stats_without_interrupts(client: Client, query: Mapping[str, Any], *, in_groups: bool) -> Any:
    """Read statistics. A run that stopped to ask somebody counts as `interrupt_count`, not in `error_rate`: the SDKs
    report the exception that stops it as its error.
    """
    found = client.post(_STATS_PATH, query)
    rows = found if in_groups else {"": found}
    if not any(row.get("error_rate") for row in rows.values()):
        return found
    narrowed = f"and({query['filter']}, {_IS_INTERRUPT})" if query.get("filter") else _IS_INTERRUPT
    asking = client.post(_STATS_PATH, {**query, "filter": narrowed})
    asking = asking if in_groups else {"": asking}
    for name, row in rows.items():
        row["interrupt_count"] = count = asking.get(name, {}).get("run_count") or 0
        if count and row["run_count"]:
            row["error_rate"] = max(0.0, row["error_rate"] - count / row["run_count"])
    return found


def _query(
    client: Client,
    project: str | None,
    filter_: str | None,
    since: str | None,
    until: str | None,
    failed: bool | None,
    *,
    all_runs: bool,
) -> dict[str, Any]:
    named = _named(project)
    query = {
        "session": [find_project(client, named)["id"]] if named else list(_all_projects(client)),
        "filter": filter_,
        "start_time": moment_of(since) if since else None,
        "end_time": moment_of(until) if until else None,
        "error": failed,
        "is_root": None if all_runs else True,
    }
    return {name: value for name, value in query.items() if value is not None}


def _named(project: str | None) -> str | None:
    return project or os.environ.get("LANGSMITH_PROJECT") or os.environ.get("LANGCHAIN_PROJECT")


def _all_projects(client: Client) -> dict[str, str]:
    """Return names by id, those with the newest runs first."""
    found = client.pages(SESSIONS, sort_by="last_run_start_time", sort_by_desc=True)
    return {project["id"]: project["name"] for project in islice(found, _PROJECTS_MAX)}


def _runs(client: Client, query: Mapping[str, Any], most: int) -> Iterator[Any]:
    """Yield runs page by page, one page ahead at most. On a terminal, report the progress on stderr."""
    if query.get("session") == []:
        return  # without a project, the API does not know where to search
    cursor, read = None, 0
    while True:
        body = {**query, "limit": min(most, _PAGE_MAX)}
        answer = client.post(_QUERY, {**body, "cursor": cursor} if cursor else body)
        yield from answer["runs"]
        read += len(answer["runs"])
        cursor = answer["cursors"].get("next")
        if not cursor or read >= most:
            return
        if sys.stderr.isatty():
            note(f"{read} runs read")


def _new_runs(client: Client, query: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield runs that are new or have ended since. A stream that is cut off continues where it was."""
    told = {run["id"]: run["status"] for run in known}
    last = None
    while True:
        try:
            for event in client.events("POST", _TAIL, query, last_event=last):
                if event.event == "error":
                    raise UnauthenticatedError(event.data["detail"])
                last, run = event.id, event.data
                if told.get(run["id"]) != run["status"]:
                    told[run["id"]] = run["status"]
                    yield run
                for run_id in list(told)[:-_FOLLOWED_MAX]:
                    del told[run_id]
        except UnreachableError as error:
            note(f"{error}; trying again")
        time.sleep(_POLL_S)


def moment_of(text: str) -> str:
    """Return an age or a time as a time of the API."""
    try:
        if age := _AGE.fullmatch(text):
            return (datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})).isoformat()
        return _time(text).isoformat()
    except (ValueError, OverflowError):
        raise InvalidRequestError(f"expected an age such as 30m or 7d, or a time, not {text!r}") from None


def _time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _first_line(text: str | None) -> str | None:
    """Return the first line of an error. The SDKs append a stack trace to it."""
    error = (text or "").partition(_TRACEBACK)[0]
    return next((line.strip() for line in error.splitlines() if line.strip()), None)


def _print_line(run: Mapping[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json_line(run)
        return
    from rich.text import Text  # slow to import, and not needed to start a server

    line = Text(f"{moment('start_time')(run)}  ")
    status, error = _state(run)
    line.append(f"{status:<9}", style=state_style(status))
    parts = (run["id"], run["name"], *_measures(run), error)
    line.append("".join(f"  {printable(str(part))}" for part in parts if part))
    terminal().print(line, no_wrap=True, overflow="ellipsis")
    sys.stdout.flush()


def _measures(run: Mapping[str, Any]) -> list[str]:
    latency = _latency(run)
    return [
        seconds_text(latency) if latency is not None else "",
        f"{run['total_tokens']} tokens" if run.get("total_tokens") else "",
        cost_text(run["total_cost"]) if run.get("total_cost") else "",
    ]


def _print_trees(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print one tree, and another for each run whose parent never arrived."""
    from rich.tree import Tree  # slow to import, and not needed to start a server

    branches: dict[str, Tree] = {}
    trees = []
    for run in runs:
        parent = branches.get(run.get("parent_run_id") or "")
        branch = parent.add(_label(run)) if parent else Tree(_label(run))
        if parent is None:
            trees.append(branch)
        branches[run["id"]] = branch
    console = terminal()
    for tree in trees:
        console.print(tree)
    root = runs[0]
    note(f"trace {root['trace_id']}, {len(runs)} runs, began {moment('start_time')(root)}")


def _state(run: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the state and the error. LangGraph reports a graph that stops to ask a question as failed."""
    error = _first_line(run.get("error"))
    if asked := _INTERRUPT.match(error or ""):
        return "interrupt", asked[1]
    return str(run["status"]), error


def _label(run: Mapping[str, Any]) -> Text:
    """Return one line with the run's name, type and figures, one with its error, and the beginnings of its input and output."""
    from rich.text import Text  # as above

    status, error = _state(run)
    style = "" if status == "success" else state_style(status)
    label = Text(printable(str(run["name"])), style=f"bold {style}".strip(), no_wrap=True, overflow="ellipsis")
    label.append(f"  {run['run_type']}", style="cyan not bold")
    if style:
        label.append(f"  {status}", style=f"{style} not bold")
    for part in _measures(run):
        if part:
            label.append(f"  {part}", style="default not bold")
    if stats := run.get("feedback_stats"):
        label.append(f"  [{printable(feedback_text(stats))}]", style="magenta not bold")
    if error:
        label.append(f"\n  {printable(error)}", style=f"{style or 'red'} not bold")
    for word, preview in (("in ", run.get("inputs_preview")), ("out", run.get("outputs_preview"))):
        if preview and preview not in _NOTHING:
            label.append(f"\n  {word}  {printable(preview)}", style="default not bold dim")
    return label
