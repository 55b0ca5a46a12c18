"""`moorage runs`: runs of an agent server. `moorage traces` shows what happened inside."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.agents import DeploymentOption, UrlOption, connect_agent, search
from moorage.cli.client import Client
from moorage.cli.errors import FAILED
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    counted,
    moment,
    note,
    printable,
    show_json_line,
    show_list,
    terminal,
)
from moorage.kernel.errors import InvalidRequestError, NotFoundError

app = typer.Typer(help="Runs of an agent server. `moorage traces` shows what happened inside.", no_args_is_help=True)

_COLUMNS: Columns = {
    "id": "run_id",
    "status": "status",
    "thread": "thread_id",
    "assistant": "assistant_id",
    "created": moment("created_at"),
    "changed": moment("updated_at"),
}
_ACTIVE = ("pending", "running")
_PAGE_MAX = 100
ThreadArgument = Annotated[UUID, typer.Argument(help="Id of the thread.")]


class RunStatusName(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


@app.command("list")
@client_command
def list_runs(
    thread: Annotated[UUID | None, typer.Option("--thread", help="Show all runs of this thread.")] = None,
    status: Annotated[RunStatusName | None, typer.Option("--status", help="Only runs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 20,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the pending and running runs of all threads, or all runs of one thread, newest first."""
    if thread is None and status not in {None, RunStatusName.PENDING, RunStatusName.RUNNING}:
        raise InvalidRequestError("ended runs are listed only for one thread: give --thread")
    with connect_agent(url, deployment) as client:
        found = _active(client, status) if thread is None else _of_thread(client, thread, status)
        rows = list(islice(found, limit))
    show_list(rows, _COLUMNS, output, "no such run; --thread ID also shows the ended runs of a thread")


@app.command("tail")
@client_command
def tail_run(
    thread: ThreadArgument,
    run: Annotated[UUID | None, typer.Argument(help="Id of the run. Default: the newest of the thread.")] = None,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow a run until it ends, one line per event. Shows all events of a resumable run, and only new ones of others.

    -o json prints one object per line. The exit code is 1 if the run did not succeed.
    """
    with connect_agent(url, deployment) as client:
        run_id = run or _newest(client, thread)
        place = f"/threads/{thread}/runs/{run_id}"
        client.get(place)
        for event in client.events("GET", f"{place}/stream"):
            _show_event(event.event, event.data, output)
        status = client.get(place)["status"]
    note(f"run {run_id}: {status}")
    if status != RunStatusName.SUCCESS:
        raise typer.Exit(FAILED)


@app.command("cancel")
@client_command
def cancel_runs(
    thread: Annotated[UUID | None, typer.Argument(help="Id of the thread.")] = None,
    runs: Annotated[list[UUID] | None, typer.Argument(help="Ids of runs. Default: all that have not ended.")] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="Cancel the runs of all threads.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Also delete the runs and what they wrote to their threads.")
    ] = False,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
) -> None:
    """Cancel pending and running runs."""
    if everywhere == (thread is not None):
        raise InvalidRequestError("give either a thread or --all")
    with connect_agent(url, deployment) as client:
        named = [run["run_id"] for run in _active(client, None)] if thread is None else runs
        if thread is not None and not named:
            named = [run["run_id"] for status in _ACTIVE for run in _of_thread(client, thread, status)]
        if not named:
            raise NotFoundError("no pending or running run; see `moorage runs list`")
        body = (
            {"status": "all"} if thread is None else {"thread_id": str(thread), "run_ids": [str(run) for run in named]}
        )
        client.post("/runs/cancel", body, action="rollback" if rollback else "interrupt")
    note(f"{counted(len(named), 'run')} cancelled")


def _active(client: Client, status: str | None) -> Iterator[Any]:
    """Yield runs that are pending or running, thread by thread."""
    busy = {"status": "busy", "sort_by": "updated_at", "select": ["thread_id"]}
    for thread in search(client, "/threads/search", busy):
        for each in _ACTIVE if status is None else (status,):
            yield from _of_thread(client, thread["thread_id"], each)


def _of_thread(client: Client, thread: UUID | str, status: str | None) -> Iterator[Any]:
    return client.pages(f"/threads/{thread}/runs", status=status)


def _newest(client: Client, thread: UUID) -> str:
    found = client.get(f"/threads/{thread}/runs", limit=1)
    if not found:
        raise NotFoundError(f"thread {thread} has no runs")
    return str(found[0]["run_id"])


def _show_event(name: str, data: Any, output: Output) -> None:
    if output is Output.JSON:
        show_json_line({"event": name, "data": data})
        return
    terminal().print(
        f"{printable(name):<10}  {printable(json.dumps(data, ensure_ascii=False))}",
        markup=False,
        no_wrap=True,
        overflow="ellipsis",
    )
    sys.stdout.flush()
