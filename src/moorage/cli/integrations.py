"""`moorage integrations`: tokens of forges, by which private repositories are fetched."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from moorage.cli.client import Client, connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.kernel.errors import InvalidRequestError, NotFoundError

app = typer.Typer(
    help="Integrations: tokens of forges, by which private repositories are fetched.", no_args_is_help=True
)

_INTEGRATIONS = "/v2/integrations"
# A token is no option: those stand in the history of the shell and in the list of processes.
_TOKEN = "FORGE_TOKEN"  # noqa: S105 - the name of a variable

_COLUMNS: Columns = {
    "id": "id",
    "name": "name",
    "kind": "kind",
    "address": "base_url",
    "created": moment("created_at"),
}
_REPOSITORIES: Columns = {
    "repository": lambda repository: f"{repository['owner']}/{repository['name']}",
    "url": "url",
    "default branch": "default_branch",
}
_BRANCHES: Columns = {"branch": "name", "commit": "commit_sha"}
IntegrationArgument = Annotated[str, typer.Argument(help="Id or name of the integration.")]


class ForgeKindName(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"


@app.command("add")
@client_command
def add_integration(
    name: Annotated[str, typer.Argument(help="What people see.")],
    kind: Annotated[ForgeKindName, typer.Option(help="The forge; gitea is Forgejo too.")] = ForgeKindName.GITHUB,
    base_url: Annotated[
        str | None, typer.Option(help="The forge's address. Default: github.com or gitlab.com.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add an integration. The token is read from FORGE_TOKEN, from a prompt, or from stdin."""
    wanted = {"kind": kind.value, "name": name, "token": _read_token(), "base_url": base_url}
    with connect() as client:
        made = client.post(_INTEGRATIONS, wanted)
    show_one(made, {**_COLUMNS, "webhook": "webhook_url", "webhook secret": "webhook_secret"}, output)
    note("Make a webhook for pushes with both at the forge, as application/json. The secret is not shown again.")


@app.command("list")
@client_command
def list_integrations(output: OutputOption = Output.TABLE) -> None:
    """List the integrations of the workspace, newest first."""
    empty = "no integrations; `moorage integrations add NAME` adds one"
    with connect() as client:
        show_list(client.get(_INTEGRATIONS), _COLUMNS, output, empty)


@app.command("repos")
@client_command
def list_repositories(integration: IntegrationArgument, output: OutputOption = Output.TABLE) -> None:
    """List the repositories that an integration reaches."""
    with connect() as client:
        found = client.get(f"{_path(client, integration)}/repositories")
    show_list(found, _REPOSITORIES, output, "the token reaches no repository")


@app.command("branches")
@client_command
def list_branches(
    integration: IntegrationArgument,
    repository: Annotated[str, typer.Argument(help="Such as owner/name.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """List the branches of a repository, each with its newest commit."""
    with connect() as client:
        found = client.get(f"{_path(client, integration)}/branches", repository=repository)
    show_list(found, _BRANCHES, output, "the repository has no branch")


@app.command("remove")
@client_command
def remove_integration(
    integration: IntegrationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove an integration. Its deployments fetch their repository without credentials from then on."""
    with connect() as client:
        path = _path(client, integration)
        if not yes:
            confirm(f"Remove the integration {integration}?")
        show_one(client.delete(path), {"id": "id"}, output)


def _read_token() -> str:
    """Raises InvalidRequestError when none is given."""
    token: Any = os.environ.get(_TOKEN)
    if not token and sys.stdin.isatty():
        token = typer.prompt("Token of the forge", hide_input=True, err=True)
    token = (token or sys.stdin.readline()).strip()
    if not token:
        raise InvalidRequestError(f"No token: set {_TOKEN}, or give it on stdin")
    return str(token)


def find_integration(client: Client, integration: str) -> str:
    """Return the id of an integration by its id or name. Raises NotFoundError."""
    for each in client.get(_INTEGRATIONS):
        if integration in {each["id"], each["name"]}:
            return str(each["id"])
    raise NotFoundError(f"There is no integration {integration!r}: `moorage integrations list` shows them")


def _path(client: Client, integration: str) -> str:
    return f"{_INTEGRATIONS}/{quote(find_integration(client, integration), safe='')}"
