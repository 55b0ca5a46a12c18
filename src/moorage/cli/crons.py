"""`moorage crons`: runs that an agent server starts on a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.agents import DeploymentOption, UrlOption, connect_agent, json_of, search
from moorage.cli.output import Columns, Output, OutputOption, client_command, moment, note, show_list, show_one
from moorage.cli.projects import pairs

app = typer.Typer(help="Crons: runs that an agent server starts on a schedule.", no_args_is_help=True)

_CRONS = "/runs/crons"


def _state(cron: Mapping[str, Any]) -> str:
    if not cron["enabled"]:
        return "paused"
    return "waiting" if cron["next_run_date"] else "over"


_COLUMNS: Columns = {
    "id": "cron_id",
    "schedule": "schedule",
    "next": moment("next_run_date"),
    "state": _state,
    "assistant": "assistant_id",
    "timezone": "timezone",
    "thread": "thread_id",
    "ends": moment("end_time"),
    "metadata": "metadata",
}
CronsArgument = Annotated[list[UUID], typer.Argument(help="Ids of crons.")]


@app.command("list")
@client_command
def list_crons(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 100,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List crons, newest first. -o json also shows what they run."""
    with connect_agent(url, deployment) as client:
        rows = list(search(client, f"{_CRONS}/search", {}, limit))
    show_list(rows, _COLUMNS, output, "no crons yet; `moorage crons create` makes one")


@app.command("create")
@client_command
def create_cron(
    assistant: Annotated[str, typer.Argument(help="Name of the graph, or id of the assistant.")],
    schedule: Annotated[str, typer.Argument(help="Five cron fields, or six with seconds, such as '0 7 * * MON-FRI'.")],
    input_: Annotated[str | None, typer.Option("--input", help="Input of each run, as JSON.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", help="Run on this thread. Default: a new thread for each run.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone, such as Europe/Berlin. Default: UTC.")] = None,
    end: Annotated[str | None, typer.Option(help="Time after which the cron no longer fires.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the thread of each run.")] = False,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of the cron. Can be repeated.")
    ] = None,
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a cron, and show when it first fires."""
    wanted: dict[str, Any] = {"assistant_id": assistant, "schedule": schedule, "metadata": pairs(metadata or ())}
    wanted |= {"input": json_of(input_, "--input"), "timezone": timezone, "end_time": end}
    if thread is None:
        wanted["on_run_completed"] = "keep" if keep else "delete"
    place = _CRONS if thread is None else f"/threads/{thread}{_CRONS}"
    with connect_agent(url, deployment) as client:
        show_one(client.post(place, wanted), _COLUMNS, output)


@app.command("pause")
@client_command
def pause_crons(crons: CronsArgument, url: UrlOption = None, deployment: DeploymentOption = None) -> None:
    """Pause crons until `moorage crons resume`."""
    with connect_agent(url, deployment) as client:
        for cron in crons:
            client.patch(f"{_CRONS}/{cron}", {"enabled": False})
            note(f"{cron} is paused")


@app.command("resume")
@client_command
def resume_crons(crons: CronsArgument, url: UrlOption = None, deployment: DeploymentOption = None) -> None:
    """Let paused crons fire again. Times that passed in between are skipped."""
    with connect_agent(url, deployment) as client:
        for cron in crons:
            changed = client.patch(f"{_CRONS}/{cron}", {"enabled": True})
            note(f"{cron} fires next at {moment('next_run_date')(changed)}")


@app.command("delete")
@client_command
def delete_crons(crons: CronsArgument, url: UrlOption = None, deployment: DeploymentOption = None) -> None:
    """Delete crons. Runs that they started continue."""
    with connect_agent(url, deployment) as client:
        for cron in crons:
            client.delete(f"{_CRONS}/{cron}")
            note(f"{cron} is deleted")
