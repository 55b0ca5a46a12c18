"""`moorage secrets`: variables of a deployment's environment. Most keys cannot read their values back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from moorage.cli.client import Client, connect
from moorage.cli.deployments import (
    DEPLOYMENTS,
    WAIT_S,
    DeploymentArgument,
    TimeoutOption,
    await_revision,
    find_deployment,
)
from moorage.cli.output import Columns, Output, OutputOption, client_command, note, show_list
from moorage.kernel.errors import InvalidRequestError, NotFoundError

app = typer.Typer(help="Secrets of a deployment.", no_args_is_help=True)

# Replaces values in answers. In requests it means that the value stays unchanged.
_MASK = "********"
WaitForRevision = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the new revision is deployed or has failed.")
]
_COLUMNS: Columns = {"name": "name", "value": "value"}


def parsed_secrets(words: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE, or NAME alone for the value that the variable has here, which then appears in no shell history.

    Raises InvalidRequestError.
    """
    found: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given and name not in os.environ:
            raise InvalidRequestError(f"{name} is not set in your environment; write {name}=VALUE")
        found[name] = value if given else os.environ[name]
    return found


def sent_secrets(deployment: Mapping[str, Any] | None, given: Mapping[str, str]) -> list[dict[str, str]]:
    """Return all secrets as the API takes them, old and new; none when there are no new ones."""
    if not given:
        return []
    kept = {secret["name"]: _MASK for secret in (deployment or {}).get("secrets", [])}
    return [{"name": name, "value": value} for name, value in {**kept, **given}.items()]


@app.command("list")
@client_command
def list_secrets(deployment: DeploymentArgument, output: OutputOption = Output.TABLE) -> None:
    """List the secrets of a deployment. Only a key with the scope secrets:read shows their values."""
    with connect() as client:
        found = find_deployment(client, deployment)
        empty = f"no secrets yet; `moorage secrets set {found['name']} NAME=VALUE` sets one"
        show_list(found["secrets"], _COLUMNS, output, empty)


@app.command("set")
@client_command
def set_secrets(
    deployment: DeploymentArgument,
    secret: Annotated[list[str], typer.Argument(help="NAME=VALUE, or NAME to take the value from your environment.")],
    wait: WaitForRevision = False,
    timeout_s: TimeoutOption = WAIT_S,
) -> None:
    """Set secrets, and keep the others. This makes a revision; the agent gets them when it is deployed."""
    with connect() as client:
        found = find_deployment(client, deployment)
        given = parsed_secrets(secret)
        changed = client.patch(f"{DEPLOYMENTS}/{found['id']}", {"secrets": sent_secrets(found, given)})
        note(f"set {', '.join(sorted(given))} for {found['name']}")
        _tell_revision(client, changed, timeout_s if wait else None)


@app.command("unset")
@client_command
def unset_secrets(
    deployment: DeploymentArgument,
    name: Annotated[list[str], typer.Argument(help="Names of secrets.")],
    wait: WaitForRevision = False,
    timeout_s: TimeoutOption = WAIT_S,
) -> None:
    """Remove secrets, and keep the others. This makes a revision; the agent loses them when it is deployed."""
    with connect() as client:
        found = find_deployment(client, deployment)
        names = [secret["name"] for secret in found["secrets"]]
        if missing := sorted(set(name) - set(names)):
            raise NotFoundError(f"{found['name']} has no secret {missing[0]}; see `moorage secrets list`")
        changed = client.patch(f"{DEPLOYMENTS}/{found['id']}", {"remove_secrets": name})
        note(f"removed {', '.join(sorted(name))} from {found['name']}")
        _tell_revision(client, changed, timeout_s if wait else None)


def _tell_revision(client: Client, deployment: Mapping[str, Any], wait_s: int | None) -> None:
    """Print the number of the revision that a change of secrets has made, and wait for the revision if asked to."""
    revision_id = deployment["latest_revision_id"]
    path = f"{DEPLOYMENTS}/{deployment['id']}/revisions/{revision_id}"
    note(f"revision {client.get(path)['number']} of {deployment['name']} will have the change")
    if wait_s is None:
        note(f"`moorage revisions list {deployment['name']}` shows its progress; --wait waits for it")
    else:
        await_revision(client, deployment["id"], revision_id, wait_s, verbose=False)
