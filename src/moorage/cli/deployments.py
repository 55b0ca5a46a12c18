"""`moorage deployments`, `revisions` and `rollback`: deployments, their builds, and the return to an earlier build."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import Client, WaitedTooLongError, connect
from moorage.cli.output import (
    Columns,
    Output,
    OutputOption,
    client_command,
    confirm,
    moment,
    note,
    show_json,
    show_list,
    show_one,
    show_warnings,
)
from moorage.cli.phases import Phases
from moorage.kernel.errors import MoorageError, NotFoundError

app = typer.Typer(help="Deployments: agents that the platform runs.", no_args_is_help=True)
revisions_app = typer.Typer(help="Revisions: the successive builds of a deployment.", no_args_is_help=True)

DEPLOYMENTS = "/v2/deployments"
_PAGE_MAX = 100
_COMPLETIONS_MAX = 20
_POLL_S = 0.5
_WAIT_S = 900
_ENDED = {"DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED", "UNKNOWN"}


class NotDeployedError(MoorageError):
    """A revision has ended without being deployed."""

    code = "not_deployed"


def complete_deployment(incomplete: str) -> list[str]:
    """Return names of deployments for the shell's completion; none when the platform does not answer."""
    try:
        with connect() as client:
            found = client.get(DEPLOYMENTS, name_contains=incomplete, limit=_COMPLETIONS_MAX)
    except MoorageError:
        return []
    return [one["name"] for one in found["resources"] if one["name"].startswith(incomplete)]


DeploymentArgument = Annotated[
    str, typer.Argument(help="Name or id of the deployment.", autocompletion=complete_deployment)
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the revision is deployed or has failed.")
]
TimeoutOption = Annotated[int, typer.Option("--timeout", min=1, help="Maximum seconds to wait.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of the build while it runs.")]
WAIT_S = _WAIT_S


def by_name(client: Client, name: str) -> Any:
    """Return the deployment of that name, or None."""
    found = client.get(DEPLOYMENTS, name=name, limit=1)["resources"] if name else []  # "" would find any deployment
    return found[0] if found else None


def find_deployment(client: Client, named: str) -> Any:
    """Find a deployment by name, or by id when none has that name. Raises NotFoundError."""
    if found := by_name(client, named):
        return found
    try:
        deployment_id = UUID(named)
    except ValueError:
        raise NotFoundError(f"there is no deployment {named!r}; see `moorage deployments list`") from None
    return client.get(f"{DEPLOYMENTS}/{deployment_id}")


def find_revision(client: Client, deployment: Mapping[str, Any], named: str) -> Any:
    """Find a revision by number or by id. Raises NotFoundError."""
    for revision in resources(client, f"{DEPLOYMENTS}/{deployment['id']}/revisions"):
        if named in {str(revision["number"]), revision["id"]}:
            return revision
    raise NotFoundError(f"{deployment['name']} has no revision {named!r}; see `moorage revisions list`")


def await_revision(
    client: Client, deployment_id: str, revision_id: str, timeout_s: int, *, verbose: bool
) -> Mapping[str, Any]:
    """Wait until the revision is deployed, and show its progress on stderr.

    Raises NotDeployedError with the reason, WaitedTooLongError after the time.
    """
    path, give_up_at = f"{DEPLOYMENTS}/{deployment_id}/revisions/{revision_id}", time.monotonic() + timeout_s
    lines = _BuildLines(client, deployment_id, revision_id)
    with Phases() as phases:
        while True:
            revision: Mapping[str, Any] = client.get(path)
            status = revision["status"]
            phases.show(revision["number"], status, lines.read_new() if verbose or phases.is_live else ())
            if status in _ENDED:
                break
            if time.monotonic() > give_up_at:
                raise WaitedTooLongError(
                    f"revision {revision['number']} is still {status} after {timeout_s} s; see `moorage revisions list`"
                )
            time.sleep(_POLL_S)
    if status not in {"DEPLOYED", "SKIPPED"}:
        raise NotDeployedError(
            f"revision {revision['number']} ended {status}: {revision['status_message'] or 'no reason given'}"
        )
    return revision


class _BuildLines:
    """Build logs of a revision, printed as they come."""

    def __init__(self, client: Client, deployment_id: str, revision_id: str) -> None:
        self._client = client
        self._path = f"{DEPLOYMENTS}/{deployment_id}/revisions/{revision_id}/logs"
        self._offset: str | None = None

    def read_new(self) -> Iterator[str]:
        while (page := self._client.get(self._path, type="build", limit=1000, offset=self._offset))["logs"]:
            yield from (line["message"] for line in page["logs"])
            self._offset = page["next_offset"]


def show_outcome(client: Client, deployment_id: str, revision: Mapping[str, Any], output: Output) -> None:
    """Show the deployed revision and its address."""
    deployment = client.get(f"{DEPLOYMENTS}/{deployment_id}")
    if output is Output.JSON:
        show_json({"deployment": deployment, "revision": revision})
        return
    show_warnings(deployment)
    outcome = {**deployment, "revision": revision["number"], "status": revision["status"]}
    show_one(outcome, {"url": _url, "name": "name", "id": "id", "revision": "revision", "status": "status"}, output)


def _url(deployment: Mapping[str, Any]) -> Any:
    return deployment["source_config"]["custom_url"]


def _source(row: Mapping[str, Any]) -> str:
    """Return the source of a revision, or of a deployment's latest revision."""
    config = row["source_revision_config"]
    if config["image_uri"]:
        return str(config["image_uri"])
    if config["repo_ref"]:
        return f"{config['repo_ref']} {(config['repo_commit_sha'] or '')[:10]}".strip()
    return "upload" if config["source_tarball_path"] else "-"


def _status(row: Mapping[str, Any]) -> str:
    """Return whether the deployment serves, and the status of its latest revision if another one is active."""
    latest = row.get("latest_revision_status") or row["status"]
    if row["active_revision_id"] is None:
        return str(latest)
    state = "down" if row.get("active_revision_message") else "serving"
    return state if row["active_revision_id"] == row["latest_revision_id"] else f"{state}; latest {latest}"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:120]


_COLUMNS: Columns = {
    "name": "name",
    "id": "id",
    "status": _status,
    "source": _source,
    "url": _url,
    "updated": moment("updated_at"),
}
_CREDENTIALS = {"platform_keys": "a key of the workspace", "custom": "credentials for the project's own authentication"}
_FIELDS: Columns = {
    **_COLUMNS,
    "kind of source": "source",
    "secrets": lambda row: [secret["name"] for secret in row["secrets"]],
    "latest revision": "latest_revision_id",
    "active revision": "active_revision_id",
    "message": lambda row: _first_line(row.get("active_revision_message")),
    "callers bring": lambda row: _CREDENTIALS.get(row["authentication"], ""),
    "created": moment("created_at"),
}
_REVISION_COLUMNS: Columns = {
    "revision": "number",
    "id": "id",
    "status": "status",
    "source": _source,
    "created": moment("created_at"),
    "message": lambda row: _first_line(row["status_message"]),
}


def resources(client: Client, path: str, **query: Any) -> Iterator[Any]:
    """Yield all items of a list, page by page."""
    offset = 0
    while True:
        page = client.get(path, **query, limit=_PAGE_MAX, offset=offset)
        yield from page["resources"]
        offset = page["offset"]
        if len(page["resources"]) < _PAGE_MAX:
            return


@app.command("list")
@client_command
def list_deployments(
    name_contains: Annotated[str | None, typer.Option(help="Only deployments whose name contains this.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the deployments of the workspace, newest first."""
    with connect() as client:
        show_list(
            resources(client, DEPLOYMENTS, name_contains=name_contains),
            _COLUMNS,
            output,
            f"no deployment has {name_contains!r} in its name; `moorage deployments list` shows all"
            if name_contains
            else "no deployments yet; `moorage deploy FOLDER` makes one, from a folder with a langgraph.json",
        )


@app.command("show")
@client_command
def show_deployment(deployment: DeploymentArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one deployment."""
    with connect() as client:
        found = find_deployment(client, deployment)
    show_warnings(found)
    show_one(found, _FIELDS, output)


@app.command("delete")
@client_command
def delete_deployment(
    deployment: DeploymentArgument,
    with_traces: Annotated[bool, typer.Option("--with-traces", help="Delete its tracing project too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a deployment and its agent's database. This cannot be undone."""
    with connect() as client:
        found = find_deployment(client, deployment)
        if not yes:
            confirm(f"Delete {found['name']} and everything that its agent has stored?")
        client.delete(f"{DEPLOYMENTS}/{found['id']}", delete_tracing_project=with_traces)
    note(f"{found['name']} is deleted")


@revisions_app.command("list")
@client_command
def list_revisions(
    deployment: DeploymentArgument,
    count: Annotated[int, typer.Option("--lines", "-n", min=1, help="Show at most this many.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the revisions of a deployment, newest first."""
    with connect() as client:
        found = find_deployment(client, deployment)
        rows = islice(resources(client, f"{DEPLOYMENTS}/{found['id']}/revisions"), count)
        show_list(
            rows, _REVISION_COLUMNS, output, f"no revisions yet; `moorage deploy --name {found['name']}` makes one"
        )


@revisions_app.command("show")
@client_command
def show_revision(
    deployment: DeploymentArgument,
    revision: Annotated[str, typer.Argument(help="Number or id of the revision.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one revision with its full message."""
    with connect() as client:
        found = find_revision(client, find_deployment(client, deployment), revision)
        show_one(found, {**_REVISION_COLUMNS, "message": "status_message", "build of": "build_of"}, output)


@revisions_app.command("interrupt")
@client_command
def interrupt_revision(
    deployment: DeploymentArgument,
    revision: Annotated[str | None, typer.Argument(help="Number or id of the revision. Default: the latest.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop a revision that is stuck, so that the next one in the queue proceeds."""
    with connect() as client:
        found = find_deployment(client, deployment)
        which = find_revision(client, found, revision)["id"] if revision else found["latest_revision_id"]
        ended = client.post(f"{DEPLOYMENTS}/{found['id']}/revisions/{which}/interrupt")
        show_one(ended, _REVISION_COLUMNS, output)


@client_command
def rollback(
    deployment: DeploymentArgument,
    to: Annotated[
        str | None, typer.Option(help="Number or id of the revision. Default: the one that served before.")
    ] = None,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Deploy an earlier revision again. This reuses its build, so it takes only a moment."""
    with connect() as client:
        found = find_deployment(client, deployment)
        old = find_revision(client, found, to) if to is not None else _served_before(client, found)
        note(f"rolling back to revision {old['number']}: {_source(old)}")
        path = f"{DEPLOYMENTS}/{found['id']}/revisions"
        made = client.post(f"{path}/{old['id']}/redeploy")["latest_revision_id"]
        revision = (
            await_revision(client, found["id"], made, timeout_s, verbose=False)
            if wait
            else client.get(f"{path}/{made}")
        )
        show_outcome(client, found["id"], revision, output)


def _served_before(client: Client, deployment: Mapping[str, Any]) -> Any:
    """Return the newest deployed revision with another build than the one that serves."""
    revisions = resources(client, f"{DEPLOYMENTS}/{deployment['id']}/revisions", status="DEPLOYED")
    active = None
    for revision in revisions:
        build = revision["build_of"] or revision["id"]
        if active is None and revision["id"] == deployment["active_revision_id"]:
            active = build
        elif active is not None and build != active:
            return revision
    raise NotFoundError(f"{deployment['name']} has no earlier build that served; see `moorage revisions list`")
