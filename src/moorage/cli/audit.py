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
    since: Annotated[str, typer.Option(help="An age such as 30m, 12h or 7d, or a time.")] = "7d",
    until: Annotated[str | None, typer.Option(help="Changes before this age or time. Default: now.")] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this operation, such as create_api_key; repeat it.")
    ] = None,
    workspace: Annotated[
        UUID | None, typer.Option(help="For an operator: changes of this workspace. Default: of all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many changes at most.")] = 100,
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
        show_list(islice(_events(client, query), limit), _COLUMNS, output, "nothing was changed in this time")


def _events(client: Client, query: Mapping[str, Any]) -> Iterator[Any]:
    given = {name: value for name, value in query.items() if value is not None}
    cursor: str | None = None
    while True:
        page = client.get("/api/v1/audit-logs", **given, **({"cursor": cursor} if cursor else {}))
        yield from page["items"]
        if not (cursor := page["cursor"]):
            return
