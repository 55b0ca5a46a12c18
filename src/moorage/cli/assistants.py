"""`moorage assistants`: graphs of an agent server with their settings."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from moorage.cli.agents import DeploymentOption, UrlOption, connect_agent, search
from moorage.cli.output import Columns, Output, OutputOption, client_command, moment, show_list, show_one

app = typer.Typer(help="Assistants: graphs of an agent server with their settings.", no_args_is_help=True)

_COLUMNS: Columns = {
    "id": "assistant_id",
    "graph": "graph_id",
    "name": "name",
    "version": "version",
    "description": "description",
    "changed": moment("updated_at"),
}
_FIELDS: Columns = {**_COLUMNS, "config": "config", "context": "context", "metadata": "metadata"}


@app.command("list")
@client_command
def list_assistants(
    graph: Annotated[str | None, typer.Option("--graph", help="Only assistants of this graph.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 100,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List assistants, newest first."""
    with connect_agent(url, deployment) as client:
        rows = list(search(client, "/assistants/search", {"graph_id": graph} if graph else {}, limit))
    show_list(rows, _COLUMNS, output, "no assistants found; each graph in langgraph.json has one")


@app.command("show")
@client_command
def show_assistant(
    assistant: Annotated[UUID, typer.Argument(help="Id of the assistant.")],
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show an assistant with its settings."""
    with connect_agent(url, deployment) as client:
        show_one(client.get(f"/assistants/{assistant}"), _FIELDS, output)
