"""`moorage doctor`: check the platform and its deployments, and say what to do about problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import typer

from moorage import __version__
from moorage.cli.client import Client, ClientSettings, connect
from moorage.cli.deployments import DEPLOYMENTS, resources
from moorage.cli.errors import FAILED
from moorage.cli.output import Columns, Output, OutputOption, client_command, show_list
from moorage.kernel.errors import ForbiddenError, MoorageError, UnauthenticatedError

_FREE_PCT_MIN = 10


class State(StrEnum):
    WELL = "well"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    words: str


_COLUMNS: Columns = {"check": "check", "state": "state", "what": "words"}


@client_command
def doctor(output: OutputOption = Output.TABLE) -> None:
    """Check the platform and its deployments. The exit code is 1 if a check fails."""
    findings = list(_findings())
    show_list([asdict(finding) for finding in findings], _COLUMNS, output)
    if any(finding.state is State.FAILED for finding in findings):
        raise typer.Exit(FAILED)


def _findings() -> Iterator[Finding]:
    """Check everything in order, and yield the findings. Skips checks that depend on a failed one."""
    with connect() as client:
        reached = _checked("platform", lambda: _platform(client))
        yield reached
        if reached.state is State.FAILED:
            return
        yield _checked("engines", lambda: _engines(client))
        yield _checked("disk of traces", lambda: _disk(client))
        yield _checked("isolation", lambda: _isolation(client))
        key = _checked("API key", lambda: _key(client))
        yield key
        if key.state is State.WELL:
            for deployment in resources(client, DEPLOYMENTS):
                yield _checked(f"deployment {deployment['name']}", partial(_deployment, client, deployment))
                for warning in deployment.get("warnings", ()):
                    yield Finding(f"settings of {deployment['name']}", State.WARNING, warning)


def _checked(check: str, look: Callable[[], tuple[State, str]]) -> Finding:
    try:
        return Finding(check, *look())
    except MoorageError as error:
        return Finding(check, State.FAILED, str(error))


def _platform(client: Client) -> tuple[State, str]:
    version = client.get("/info").get("moorage_version")
    where = f"moorage {version} at {ClientSettings().url}"
    if version != __version__:
        return State.WARNING, f"{where}; this command line is version {__version__}"
    return State.WELL, where


def _engines(client: Client) -> tuple[State, str]:
    services = client.get("/ok", check_db=True)["services"]
    return State.WELL, f"{' and '.join(sorted(services))} answer"


def _disk(client: Client) -> tuple[State, str]:
    free_pct = client.get("/info/health")["clickhouse_disk_free_pct"]
    return (State.WELL if free_pct >= _FREE_PCT_MIN else State.WARNING), f"{free_pct:.0f} % free"


def _isolation(client: Client) -> tuple[State, str]:
    found = client.get("/info")
    if found.get("isolation") == "none":
        return State.WARNING, (
            "none: agents run as the platform's user and can read its files. Run it as root, or install bubblewrap"
        )
    words = f"agents are isolated by {found.get('isolation')}: {', '.join(found.get('isolation_holds', ()))}"
    lacks = found.get("isolation_lacks", ())
    if "own view of processes" in lacks:
        return State.WARNING, f"{words}. Missing: {', '.join(lacks)}. bubblewrap does not work here"
    if "no link-local addresses" in lacks and found.get("isolation") == "user":
        return (
            State.WARNING,
            f"{words}. Missing: {', '.join(lacks)}. Install nftables, and let root configure the network",
        )
    return State.WELL, f"{words}. Missing: {', '.join(lacks) or 'nothing'}"


def _key(client: Client) -> tuple[State, str]:
    try:
        client.get(DEPLOYMENTS, limit=1)
    except (UnauthenticatedError, ForbiddenError) as error:
        return State.FAILED, str(error)
    return State.WELL, "the key may read deployments"


def _deployment(client: Client, deployment: Mapping[str, Any]) -> tuple[State, str]:
    active, latest = deployment["active_revision_id"], deployment["latest_revision_id"]
    path = f"{DEPLOYMENTS}/{deployment['id']}/revisions"
    if active is None:
        told = client.get(f"{path}/{latest}") if latest else {"status": "it has no revision", "status_message": None}
        return State.WARNING, _words("nothing serves yet", told)
    serving = client.get(f"{path}/{active}")
    if serving["status_message"]:
        return State.FAILED, _words(f"revision {serving['number']}", serving)
    client.get(f"/d/{deployment['name']}/ok")
    if latest != active and (newest := client.get(f"{path}/{latest}"))["status"].endswith("FAILED"):
        return State.WARNING, _words(f"revision {serving['number']} serves; revision {newest['number']}", newest)
    where = f"revision {serving['number']} serves at {deployment['source_config']['custom_url']}"
    return State.WELL, f"{where}{_certificate(deployment)}"


def _certificate(deployment: Mapping[str, Any]) -> str:
    """Return the state of the host name's certificate. A failure is among the deployment's warnings."""
    host = deployment.get("host_name")
    if not host or host["certificate"] == "none":
        return ""
    return f"; certificate {host['certificate']}" + (f" until {host['expires_at'][:10]}" if host["expires_at"] else "")


def _words(beginning: str, revision: Mapping[str, Any]) -> str:
    """Return `beginning` with the revision's status and the first line of its reason."""
    reason = (revision["status_message"] or "").strip().partition("\n")[0]
    return f"{beginning}: {revision['status']}{f', {reason}' if reason else ''}"
