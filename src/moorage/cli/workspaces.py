"""`moorage workspaces`: the workspaces that a key opens, and new ones."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.cli.client import connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, moment, note, show_list, show_one
from moorage.kernel.access import Plan

app = typer.Typer(help="The workspaces that your key opens, and new ones.", no_args_is_help=True)

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
    name: Annotated[str, typer.Argument(help="What people see.")],
    handle: Annotated[str | None, typer.Option(help="A short name, unique in the installation.")] = None,
    plan: Annotated[Plan | None, typer.Option(help="Default: the installation's.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a workspace, and print the key that opens it, this once."""
    with connect() as client:
        made = client.post("/api/v1/workspaces", {"display_name": name, "tenant_handle": handle, "plan": plan})
    show_one(made, {"api key": "api_key", **_COLUMNS}, output)
    note("The key is shown this once. It opens this workspace and no other.")
