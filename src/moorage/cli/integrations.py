"""`moorage integrations`: forge tokens, GitHub apps and deploy keys for private repositories."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from moorage.cli.client import Client, connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.kernel.errors import InvalidRequestError, NotFoundError

app = typer.Typer(
    help="Integrations: forge tokens, GitHub apps and deploy keys for private repositories.",
    no_args_is_help=True,
)

_INTEGRATIONS = "/v2/integrations"
# A token is not an option: options appear in the shell's history and in the list of processes.
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


class IntegrationKindName(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    SSH = "ssh"


@app.command("add")
@client_command
def add_integration(
    name: Annotated[str, typer.Argument(help="Name of the integration.")],
    kind: Annotated[
        IntegrationKindName,
        typer.Option(help="Kind of forge. gitea includes Forgejo; ssh is any git server, with a deploy key."),
    ] = IntegrationKindName.GITHUB,
    base_url: Annotated[
        str | None, typer.Option(help="Address of the forge. Default: github.com or gitlab.com.")
    ] = None,
    host_keys: Annotated[
        Path | None,
        typer.Option(
            help="For ssh: file with the output of `ssh-keyscan HOST`, after you checked it with the host's owner."
        ),
    ] = None,
    app_id: Annotated[
        str | None, typer.Option(help="For a GitHub app instead of a token: its id or client id.")
    ] = None,
    installation_id: Annotated[
        int | None, typer.Option(help="For a GitHub app: the number at the end of its installation's address.")
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="For a GitHub app: the .pem file that GitHub made for it.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add an integration. A forge token is read from FORGE_TOKEN, a prompt or stdin."""
    wanted: dict[str, Any] = {"kind": kind.value, "name": name, "base_url": base_url}
    if kind is IntegrationKindName.SSH:
        wanted |= {"host_keys": _read_host_keys(host_keys)}
    elif app_id is not None or installation_id is not None or private_key is not None:
        wanted |= {"app": _read_app(app_id, installation_id, private_key)}
    else:
        wanted |= {"token": _read_token()}
    with connect() as client:
        made = client.post(_INTEGRATIONS, wanted)
    if kind is IntegrationKindName.SSH:
        show_one(made, {**_COLUMNS, "public key": "public_key"}, output)
        note("Add the public key to the repository as a deploy key. It only needs read access.")
        return
    show_one(made, {**_COLUMNS, "webhook": "webhook_url", "webhook secret": "webhook_secret"}, output)
    note(
        "At the forge, make a webhook for pushes with this URL and secret, as application/json. "
        "The secret is not shown again."
    )


@app.command("list")
@client_command
def list_integrations(output: OutputOption = Output.TABLE) -> None:
    """List the integrations of the workspace, newest first."""
    empty = "no integrations yet; `moorage integrations add NAME` adds one"
    with connect() as client:
        show_list(client.get(_INTEGRATIONS), _COLUMNS, output, empty)


@app.command("repos")
@client_command
def list_repositories(integration: IntegrationArgument, output: OutputOption = Output.TABLE) -> None:
    """List the repositories that an integration can access."""
    with connect() as client:
        found = client.get(f"{_path(client, integration)}/repositories")
    show_list(found, _REPOSITORIES, output, "this integration can access no repository; check the rights of its token")


@app.command("branches")
@client_command
def list_branches(
    integration: IntegrationArgument,
    repository: Annotated[str, typer.Argument(help="Repository, such as owner/name.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """List the branches of a repository, each with its newest commit."""
    with connect() as client:
        found = client.get(f"{_path(client, integration)}/branches", repository=repository)
    show_list(found, _BRANCHES, output, "the repository has no branches")


@app.command("remove")
@client_command
def remove_integration(
    integration: IntegrationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove an integration. From then on, its deployments fetch their repositories without credentials."""
    with connect() as client:
        path = _path(client, integration)
        if not yes:
            confirm(f"Remove the integration {integration}?")
        show_one(client.delete(path), {"id": "id"}, output)


def _read_token() -> str:
    """Read the token. Raises InvalidRequestError when none is given."""
    token: Any = os.environ.get(_TOKEN)
    if not token and sys.stdin.isatty():
        token = typer.prompt("Forge token", hide_input=True, err=True)
    token = (token or sys.stdin.readline()).strip()
    if not token:
        raise InvalidRequestError(f"No token: set {_TOKEN}, or pass the token on stdin")
    return str(token)


def _read_host_keys(file: Path | None) -> list[str]:
    """Read the host keys. Raises InvalidRequestError when no file is named, or the file cannot be read."""
    if file is None:
        raise InvalidRequestError("--host-keys is missing: name a file with the output of `ssh-keyscan HOST`")
    return [line for line in _read_text(file).splitlines() if line.strip() and not line.startswith("#")]


def _read_app(app_id: str | None, installation_id: int | None, private_key: Path | None) -> dict[str, Any]:
    """Read the GitHub app. Raises InvalidRequestError when one of its three options is missing, or the file cannot be
    read.
    """
    if app_id is None or installation_id is None or private_key is None:
        raise InvalidRequestError("A GitHub app needs --app-id, --installation-id and --private-key")
    return {"app_id": app_id, "installation_id": installation_id, "private_key": _read_text(private_key)}


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"{file} cannot be read: {error}") from None


def find_integration(client: Client, integration: str) -> str:
    """Return the id of an integration by its id or name. Raises NotFoundError."""
    for each in client.get(_INTEGRATIONS):
        if integration in {each["id"], each["name"]}:
            return str(each["id"])
    raise NotFoundError(f"There is no integration {integration!r}; see `moorage integrations list`")


def _path(client: Client, integration: str) -> str:
    return f"{_INTEGRATIONS}/{quote(find_integration(client, integration), safe='')}"
