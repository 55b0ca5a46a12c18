"""`moorage logs`: the output of a deployment, from its build and while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from moorage.cli.client import Client, connect
from moorage.cli.deployments import DeploymentArgument, find_deployment, find_revision
from moorage.cli.output import Output, OutputOption, client_command, note, printable, show_json, show_json_line
from moorage.kernel.errors import NotFoundError

_POLL_S = 1.0
_PAGE_MAX = 100
_COUNT_MAX = 10_000


class LogKindName(StrEnum):
    BUILD = "build"
    DEPLOY = "deploy"


class Level(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


@client_command
def logs(
    deployment: DeploymentArgument,
    kind: Annotated[
        LogKindName, typer.Option("--type", help="Log of the build, or of the running agent (deploy).")
    ] = LogKindName.DEPLOY,
    revision: Annotated[
        str | None, typer.Option(help="Number or id of a revision. Default: all; for builds, the latest.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")] = False,
    level: Annotated[
        Level | None, typer.Option(case_sensitive=False, help="Only lines of this level or a higher one.")
    ] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Only lines that contain this text.")] = None,
    count: Annotated[int, typer.Option("--lines", "-n", min=1, max=_COUNT_MAX, help="Number of lines to show.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the last lines that a deployment printed, oldest first.

    -o json prints one array, or with -f one object per line.
    """
    with connect() as client:
        found = find_deployment(client, deployment)
        wanted = {
            "deployment_id": found["id"],
            "revision_id": _revision_id(client, found, revision, kind),
            "log_type": kind.upper(),
            "level": level,
            "query": query,
        }
        lines = _last(client, wanted, count)
        if output is Output.JSON and not follow:
            show_json(lines)
            return
        for line in lines:
            _show(line, output)
        if follow:
            for line in _new(client, wanted, lines):
                _show(line, output)
        elif not lines:
            note(f"no log lines; {_elsewhere(found['name'], kind)}")


def _elsewhere(name: str, kind: LogKindName) -> str:
    """Return a hint at the deployment's other log."""
    if kind is LogKindName.DEPLOY:
        return f"`moorage logs {name} --type build` shows the log of the build"
    return f"`moorage revisions list {name}` shows the revisions"


def _revision_id(client: Client, deployment: Mapping[str, Any], named: str | None, kind: LogKindName) -> str | None:
    if named is not None:
        return str(find_revision(client, deployment, named)["id"])
    if kind is LogKindName.DEPLOY:
        return None
    if deployment["latest_revision_id"] is None:
        raise NotFoundError(f"{deployment['name']} has no revision yet; `moorage deploy` makes one")
    return str(deployment["latest_revision_id"])


def _last(client: Client, wanted: Mapping[str, Any], count: int) -> list[Any]:
    """Return the last lines, oldest first."""
    lines: list[Any] = []
    cursor = None
    while len(lines) < count:
        size = min(_PAGE_MAX, count - len(lines))
        page = client.get("/v2/deployment-logs", **wanted, sort_order="desc", page_size=size, cursor=cursor)
        lines += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return lines[::-1]


def _new(client: Client, wanted: Mapping[str, Any], seen: list[Any]) -> Iterator[Any]:
    """Yield lines after those already seen: first by the time of the last line, then by cursor."""
    known = {line["id"] for line in seen}
    since, cursor = _moment(seen[-1]["timestamp"]) if seen else None, None
    while True:
        page = client.get("/v2/deployment-logs", **wanted, start_time=since, page_size=_PAGE_MAX, cursor=cursor)
        yield from (line for line in page["items"] if line["id"] not in known)
        cursor = page["next_cursor"] or cursor
        if not page["items"]:
            time.sleep(_POLL_S)


def _moment(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(timestamp_ms / 1000)) + f".{timestamp_ms % 1000:03}Z"


def _show(line: Mapping[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json_line(line)
        return
    typer.echo(f"{_moment(line['timestamp'])} {line['level']:<8} {printable(line['message'])}")
