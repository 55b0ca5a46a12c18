"""Connections of commands to an agent server, by its address or by the name of a deployment, and
paged searches there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from moorage.cli.client import Client, ClientSettings, connect, connect_to, origin_of
from moorage.cli.deployments import complete_deployment, find_deployment
from moorage.kernel.errors import BadRequestError, InvalidRequestError

_PAGE_MAX = 100
_START = "start a server with `moorage dev`, or name one with --url, --deployment or MOORAGE_AGENT_URL"

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Address of the agent server. Default: MOORAGE_AGENT_URL.")
]
DeploymentOption = Annotated[
    str | None,
    typer.Option(
        "--deployment",
        "-d",
        help="Name of a deployment on the platform, instead of --url.",
        autocompletion=complete_deployment,
    ),
]


@contextmanager
def connect_agent(url: str | None, deployment: str | None) -> Iterator[Client]:
    """Connect to the agent server. Raises BadRequestError for an invalid address, and InvalidRequestError for two
    addresses.
    """
    if url is not None and deployment is not None:
        raise InvalidRequestError("give --url or --deployment, not both")
    settings = ClientSettings()
    with connect_to(_address(url, deployment, settings), settings, _START) as client:
        yield client


def _address(url: str | None, deployment: str | None, settings: ClientSettings) -> str:
    if deployment is not None:
        with connect(settings) as platform:
            name = find_deployment(platform, deployment)["name"]
        # Never at a deployment's own host name, which anybody may have chosen: the key is for the platform only.
        return f"{origin_of(settings.url)}/d/{name}"
    address = (url or settings.agent_url).strip().rstrip("/")
    if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).netloc:
        raise BadRequestError(f"the address of an agent server must look like http://127.0.0.1:2024, not {address!r}")
    return address


def search(client: Client, path: str, body: Mapping[str, Any], most: int | None = None) -> Iterator[Any]:
    """Yield the results of a search, page by page, at most `most`."""
    return islice(_pages(client, path, body), most)


def _pages(client: Client, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
    offset = 0
    while True:
        page = client.post(path, {**body, "limit": _PAGE_MAX, "offset": offset})
        yield from page
        offset += len(page)
        if len(page) < _PAGE_MAX:
            return


def json_of(text: str | None, option: str) -> Any:
    """Read an option that holds JSON. Raises InvalidRequestError that names the option."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise InvalidRequestError(f"{option} takes JSON, not {text!r}") from None
