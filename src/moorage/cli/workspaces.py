"""`moorage workspaces`: the workspaces that a key opens, and new ones."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.cli.client import connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, moment, note, show_list, show_one
from moorage.kernel.access import Plan

app = typer.Typer(help="Workspaces that your key opens.", no_args_is_help=True)

_COLUMNS: Columns = {
    "id": "id",
    "name": "display_name",
    "handle": "tenant_handle",
    "plan": "plan",
    "created": moment("created_at"),
}


@app.command("list")
@client_command
def list_workspaces(output: OutputOption = Output.TABLE) -> None:
    """List the workspaces that your key opens."""
    with connect() as client:
        show_list(client.get("/api/v1/workspaces"), _COLUMNS, output)


@app.command("create")
@client_command
def create_workspace(
    name: Annotated[str, typer.Argument(help="Display name.")],
    handle: Annotated[str | None, typer.Option(help="Short name, unique in the installation.")] = None,
    plan: Annotated[Plan | None, typer.Option(help="Plan. Default: the installation's.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a workspace and print its API key. The key is not shown again."""
    with connect() as client:
        made = client.post("/api/v1/workspaces", {"display_name": name, "tenant_handle": handle, "plan": plan})
    show_one(made, {"api key": "api_key", **_COLUMNS}, output)
    note("The key is not shown again. It opens only this workspace.")
