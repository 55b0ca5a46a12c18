"""`moorage audit`: who changed what, from where and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import Client, connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, show_list
from moorage.cli.traces import moment_of

_PAGE = 100


def _log(event: Mapping[str, Any]) -> Mapping[str, Any]:
    log: Mapping[str, Any] = event["unmapped"]["original_audit_log"]
    return log


_COLUMNS: Columns = {
    "time": lambda event: f"{_log(event)['request_time'][:19].replace('T', ' ')}Z",
    "operation": lambda event: event["api"]["operation"],
    "status": lambda event: event["status"],
    "actor": lambda event: _log(event)["actor"],
    "from": lambda event: event["src_endpoint"]["ip"],
    "resources": lambda event: [resource["uid"] for resource in event["resources"]],
    "workspace": lambda event: _log(event)["workspace_id"],
}


@client_command
def audit(
    since: Annotated[str, typer.Option(help="Show changes since this time, or an age such as 30m, 12h or 7d.")] = "7d",
    until: Annotated[str | None, typer.Option(help="Show changes before this time or age. Default: now.")] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this operation, such as create_api_key. Can be repeated.")
    ] = None,
    workspace: Annotated[
        UUID | None, typer.Option(help="Operators only: changes in this workspace. Default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many changes.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show who changed what, from where and when; newest first."""
    query = {
        "start_time": moment_of(since),
        # One minute extra, since the platform's clock may be ahead of ours.
        "end_time": moment_of(until) if until else (datetime.now(UTC) + timedelta(minutes=1)).isoformat(),
        "operations": operation,
        "workspace_id": str(workspace) if workspace else None,
        "limit": min(limit, _PAGE),
    }
    with connect() as client:
        show_list(
            islice(_events(client, query), limit),
            _COLUMNS,
            output,
            "no changes in this time; a longer --since, such as 30d, shows older ones",
        )


def _events(client: Client, query: Mapping[str, Any]) -> Iterator[Any]:
    given = {name: value for name, value in query.items() if value is not None}
    cursor: str | None = None
    while True:
        page = client.get("/api/v1/audit-logs", **given, **({"cursor": cursor} if cursor else {}))
        yield from page["items"]
        if not (cursor := page["cursor"]):
            return
