"""`moorage console`: a link that opens the web console."""

from __future__ import annotations

from moorage.cli.client import connect
from moorage.cli.output import Output, OutputOption, client_command, show_json


@client_command
def console(output: OutputOption = Output.TABLE) -> None:
    """Print a link that opens the web console with the rights of your API key. It works once, within an hour."""
    with connect() as client:
        link = client.post("/api/v1/auth/login-link")
    if output is Output.JSON:
        show_json(link)
    else:
        print(link["url"])
