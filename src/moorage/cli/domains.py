"""`moorage domains`: custom host names of deployments, and their certificates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from moorage.cli.client import Client, WaitedTooLongError, connect
from moorage.cli.deployments import DEPLOYMENTS, DeploymentArgument, find_deployment, resources
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.kernel.errors import MoorageError, NotFoundError

app = typer.Typer(help="Custom host names of deployments, and their certificates.", no_args_is_help=True)

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
    """The certificate of a host name could not be obtained."""

    code = "no_certificate"


@app.command("list")
@client_command
def list_domains(output: OutputOption = Output.TABLE) -> None:
    """List the host names of the workspace's deployments, with their certificates."""
    empty = "no deployment has its own host name; `moorage domains set DEPLOYMENT NAME` sets one"
    with connect() as client:
        found = [_domain(each) for each in resources(client, DEPLOYMENTS) if each["host_name"]]
    show_list(found, _COLUMNS, output, empty)


@app.command("set")
@client_command
def set_domain(
    deployment: DeploymentArgument,
    name: Annotated[str, typer.Argument(help="Host name, such as chat.example.com, or a URL with it.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the certificate, if it gets one.")] = True,
    timeout_s: Annotated[int, typer.Option("--timeout", min=1, help="Maximum seconds to wait.")] = _WAIT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Serve a deployment at its own host name. This replaces the host name that it had."""
    with connect() as client:
        found = find_deployment(client, deployment)
        named = _patch(client, found, name if "://" in name else f"https://{name}")
        if wait:
            named = _await_certificate(client, named, timeout_s)
    show_one(_domain(named), _COLUMNS, output)
    note(f"Point {named['host_name']['name']} at the platform in the DNS, if it does not resolve there yet.")


@app.command("remove")
@client_command
def remove_domain(
    deployment: DeploymentArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove the host name of a deployment. The platform's address still serves it."""
    with connect() as client:
        found = find_deployment(client, deployment)
        if not found["host_name"]:
            raise NotFoundError(f"{found['name']} has no host name to remove; see `moorage domains list`")
        name = found["host_name"]["name"]
        if not yes:
            confirm(f"Stop serving {found['name']} at {name}? Remove the name from the DNS first.")
        left = _patch(client, found, None)
    show_one({"name": name, "deployment": left["name"], "url": _url(left)}, {"name": "name", "now at": "url"}, output)


def _patch(client: Client, deployment: Mapping[str, Any], url: str | None) -> Any:
    return client.patch(f"{DEPLOYMENTS}/{deployment['id']}", {"source_config": {"custom_url": url}})


def _await_certificate(client: Client, deployment: Mapping[str, Any], timeout_s: int) -> Mapping[str, Any]:
    """Wait for the certificate. Raises NoCertificateError with the reason, WaitedTooLongError after the time."""
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
