"""`moorage threads`: list the threads of an agent server, and prune them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.agents import DeploymentOption, UrlOption, connect_agent, search
from moorage.cli.client import Client
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    confirm,
    counted,
    moment,
    show_list,
    show_one,
)
from moorage.cli.projects import pairs, size_text
from moorage.cli.traces import moment_of
from moorage.kernel.errors import InvalidRequestError

app = typer.Typer(help="Threads of an agent server: conversations and their state.", no_args_is_help=True)

_SEARCH = "/threads/search"
_PRUNED_AT_ONCE = 100
_SHOWN = ["thread_id", "status", "created_at", "updated_at", "metadata"]
_COLUMNS: Columns = {
    "id": "thread_id",
    "status": "status",
    "graph": lambda row: row["metadata"].get("graph_id"),
    "changed": moment("updated_at"),
    "created": moment("created_at"),
    "metadata": "metadata",
}


class ThreadStatusName(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class Strategy(StrEnum):
    DELETE = "delete"
    KEEP_LATEST = "keep-latest"


MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Only threads with this. Can be repeated.")
]
StatusOption = Annotated[ThreadStatusName | None, typer.Option("--status", help="Only threads in this state.")]


@app.command("list")
@client_command
def list_threads(
    metadata: MetadataOption = None,
    status: StatusOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 20,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List threads, the last changed first. -o json also shows their values."""
    body = {"metadata": pairs(metadata or ()), "status": status, "sort_by": "updated_at"}
    shown = {"select": _SHOWN} if output is Output.TABLE else {}
    with connect_agent(url, deployment) as client:
        rows = list(search(client, _SEARCH, {**body, **shown}, limit))
    show_list(rows, _COLUMNS, output, "no such thread; a first run makes one, as in `moorage chat`")


@app.command("prune")
@client_command
def prune_threads(
    threads: Annotated[list[UUID] | None, typer.Argument(help="Ids of threads, unless --idle-for is given.")] = None,
    idle_for: Annotated[str | None, typer.Option(help="Threads unchanged for this long, such as 90d.")] = None,
    metadata: MetadataOption = None,
    status: StatusOption = None,
    strategy: Annotated[
        Strategy, typer.Option(help="Delete threads, or keep only their latest state.")
    ] = Strategy.DELETE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete threads with their runs and checkpoints, or delete all of their checkpoints but the latest."""
    if bool(threads) == bool(idle_for):
        raise InvalidRequestError("give either ids of threads or --idle-for")
    if threads and (metadata or status):
        raise InvalidRequestError("--metadata and --status work only with --idle-for, not with ids of threads")
    with connect_agent(url, deployment) as client:
        ids = [str(thread) for thread in threads or ()] or list(_idle(client, str(idle_for), metadata or (), status))
        freed = _pruned(client, ids, strategy, dry_run=True)
        if dry_run:
            _show(freed, output)
            return
        if not yes and freed["pruned_count"]:
            size, many = size_text(freed["bytes"]), counted(freed["pruned_count"], "thread")
            confirm(f"{many}, {counted(freed['rows'], 'row')}, {size}: {_ASKED[strategy]} permanently?")
        _show(freed | _pruned(client, ids, strategy, dry_run=False), output)


_ASKED = {Strategy.DELETE: "delete them", Strategy.KEEP_LATEST: "delete all but their latest state"}


def _idle(client: Client, age: str, metadata: Sequence[str], status: ThreadStatusName | None) -> Iterator[str]:
    """Yield ids of threads without a run under way, the least recently changed first."""
    since = moment_of(age)
    body = {"metadata": pairs(metadata), "status": status, "sort_by": "updated_at", "sort_order": "asc"}
    for row in search(client, _SEARCH, {**body, "select": ["thread_id", "status", "updated_at"]}):
        if row["updated_at"] >= since:
            return
        if row["status"] != ThreadStatusName.BUSY:
            yield row["thread_id"]


def _pruned(client: Client, ids: Sequence[str], strategy: Strategy, *, dry_run: bool) -> dict[str, int]:
    """Return the sum of the server's answers, for a group of threads at a time."""
    total = {"pruned_count": 0, **({"rows": 0, "bytes": 0} if dry_run else {})}
    for start in range(0, len(ids), _PRUNED_AT_ONCE):
        body: dict[str, Any] = {"strategy": strategy.replace("-", "_"), "dry_run": dry_run}
        body["thread_ids"] = ids[start : start + _PRUNED_AT_ONCE]
        answer = client.post("/threads/prune", body)
        total = {name: count + answer[name] for name, count in total.items()}
    return total


def _show(freed: dict[str, int], output: Output) -> None:
    show_one(freed, {"threads": "pruned_count", "rows": "rows", "size": lambda row: size_text(row["bytes"])}, output)
