"""The command line. One file per group of commands."""

from __future__ import annotations

import typer

from moorage.cli import serve

app = typer.Typer(
    name="moorage",
    help="The open, self-hosted home for LangGraph agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("dev")(serve.dev)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate)
app.command("version")(serve.show_version)
