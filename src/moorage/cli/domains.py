"""`moorage domains`: host names of their own that agents are served at, and their certificates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from moorage.cli.client import Client, WaitedTooLongError, connect
from moorage.cli.deployments import DEPLOYMENTS, DeploymentArgument, find_deployment, resources
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.kernel.errors import MoorageError, NotFoundError

app = typer.Typer(help="Host names of their own that agents are served at.", no_args_is_help=True)

_POLL_S = 0.5
_WAIT_S = 120
_COLUMNS: Columns = {
    "name": "name",
    "deployment": "deployment",
    "url": "url",
    "certificate": "certificate",
    "expires": moment("expires_at"),
    "message": "message",
}


class NoCertificateError(MoorageError):
    """The certificate of a host name could not be had."""

    code = "no_certificate"


@app.command("list")
@client_command
def list_domains(output: OutputOption = Output.TABLE) -> None:
    """List the host names of the workspace's deployments, with their certificates."""
    empty = "no deployment has a host name of its own; `moorage domains set DEPLOYMENT NAME` gives it one"
    with connect() as client:
        found = [_domain(each) for each in resources(client, DEPLOYMENTS) if each["host_name"]]
    show_list(found, _COLUMNS, output, empty)


@app.command("set")
@client_command
def set_domain(
    deployment: DeploymentArgument,
    name: Annotated[str, typer.Argument(help="The host name, such as chat.example.com, or an address with one.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for its certificate, if it gets one.")] = True,
    timeout_s: Annotated[int, typer.Option("--timeout", min=1, help="Seconds to wait at most.")] = _WAIT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Serve a deployment at a host name of its own. Another name that it has is given back."""
    with connect() as client:
        found = find_deployment(client, deployment)
        named = _patch(client, found, name if "://" in name else f"https://{name}")
        if wait:
            named = _await_certificate(client, named, timeout_s)
    show_one(_domain(named), _COLUMNS, output)
    note(f"Point {named['host_name']['name']} at the platform in the DNS, if it does not lead there yet.")


@app.command("remove")
@client_command
def remove_domain(
    deployment: DeploymentArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give back the host name of a deployment, which is then served at the platform's address only."""
    with connect() as client:
        found = find_deployment(client, deployment)
        if not found["host_name"]:
            raise NotFoundError(f"{found['name']} has no host name of its own")
        name = found["host_name"]["name"]
        if not yes:
            confirm(f"Serve {found['name']} at {name} no longer? Take the name out of the DNS first.")
        left = _patch(client, found, None)
    show_one({"name": name, "deployment": left["name"], "url": _url(left)}, {"name": "name", "now at": "url"}, output)


def _patch(client: Client, deployment: Mapping[str, Any], url: str | None) -> Any:
    return client.patch(f"{DEPLOYMENTS}/{deployment['id']}", {"source_config": {"custom_url": url}})


def _await_certificate(client: Client, deployment: Mapping[str, Any], timeout_s: int) -> Mapping[str, Any]:
    """Raises NoCertificateError with the reason, WaitedTooLongError after the time."""
    give_up_at = time.monotonic() + timeout_s
    while (host := deployment["host_name"]) and host["certificate"] == "pending":
        if time.monotonic() > give_up_at:
            raise WaitedTooLongError(f"the certificate of {host['name']} is still pending after {timeout_s} s")
        time.sleep(_POLL_S)
        deployment = client.get(f"{DEPLOYMENTS}/{deployment['id']}")
    if host and host["certificate"] == "failed":
        raise NoCertificateError(f"{host['name']} is set, but has no certificate. {host['message']}")
    return deployment


def _domain(deployment: Mapping[str, Any]) -> dict[str, Any]:
    return {**deployment["host_name"], "deployment": deployment["name"], "url": _url(deployment)}


def _url(deployment: Mapping[str, Any]) -> str:
    return str(deployment["source_config"]["custom_url"])
