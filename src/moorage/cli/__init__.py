"""The command line, with one file per group of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.cli import (
    assistants,
    audit,
    chat,
    console,
    crons,
    deploy,
    deployment_logs,
    deployments,
    destinations,
    doctor,
    domains,
    exports,
    images,
    init,
    integrations,
    keys,
    listener,
    oauth,
    platform,
    projects,
    runs,
    secrets,
    serve,
    threads,
    traces,
    worker,
    workspaces,
)

app = typer.Typer(
    name="moorage",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def moorage(
    _: Annotated[
        bool, typer.Option("--version", callback=serve.print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The open, self-hosted home for LangGraph agents."""


app.command("init")(init.init)
app.command("dev")(serve.dev)
app.command("serve")(serve.serve)
app.command("up")(platform.up)
app.command("down")(platform.down)
app.command("restart")(platform.restart)
app.command("worker")(worker.worker)
app.command("migrate")(serve.migrate)
app.command("console")(console.console)
app.command("doctor")(doctor.doctor)
app.command("version")(serve.show_version)
app.add_typer(keys.app, name="keys")
app.add_typer(workspaces.app, name="workspaces")
app.command("audit")(audit.audit)
app.add_typer(projects.app, name="projects")
app.add_typer(traces.app, name="traces")
app.command("chat")(chat.chat)
app.add_typer(assistants.app, name="assistants")
app.add_typer(threads.app, name="threads")
app.add_typer(runs.app, name="runs")
app.add_typer(crons.app, name="crons")
app.add_typer(destinations.app, name="destinations")
app.add_typer(exports.app, name="exports")
app.command("deploy")(deploy.deploy)
app.command("build")(images.build)
app.command("dockerfile")(images.dockerfile)
app.command("rollback")(deployments.rollback)
app.command("logs")(deployment_logs.logs)
app.add_typer(deployments.app, name="deployments")
app.add_typer(deployments.revisions_app, name="revisions")
app.add_typer(domains.app, name="domains")
app.add_typer(secrets.app, name="secrets")
app.add_typer(oauth.app, name="oauth")
app.add_typer(integrations.app, name="integrations")
app.command("listener")(listener.listener)
app.add_typer(listener.app, name="listeners")
