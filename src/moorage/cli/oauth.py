"""`moorage oauth`: OAuth providers, and the tokens that agents use on behalf of users."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import typer

from moorage.cli.client import connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one

app = typer.Typer(help="OAuth providers, and the tokens that agents use on behalf of users.", no_args_is_help=True)
providers_app = typer.Typer(help="OAuth providers: where users sign in.", no_args_is_help=True)
tokens_app = typer.Typer(help="Tokens that were obtained with your API key.", no_args_is_help=True)
app.add_typer(providers_app, name="providers")
app.add_typer(tokens_app, name="tokens")

_PROVIDERS = "/v2/auth/providers"
_TOKENS = "/v2/auth/tokens"
# A secret is not an option: options appear in the shell's history and in the list of processes.
_SECRET = "OAUTH_CLIENT_SECRET"  # noqa: S105 - the name of a variable

_PROVIDER_COLUMNS: Columns = {
    "id": "provider_id",
    "name": "name",
    "client": "client_id",
    "sign-in": "auth_url",
    "tokens": "token_url",
    "mcp server": "mcp_server_url",
    "created": moment("created_at"),
}
_TOKEN_COLUMNS: Columns = {
    "id": "id",
    "provider": "provider_id",
    "account": "provider_account_label",
    "scopes": lambda token: " ".join(token["scopes"]),
    "default": "is_default",
    "expires": moment("expires_at"),
    "created": moment("created_at"),
}


class ClientAuthentication(StrEnum):
    NONE = "none"
    BASIC = "client_secret_basic"
    POST = "client_secret_post"


ProviderArgument = Annotated[str, typer.Argument(help="Id of the provider, such as `github`.")]


@providers_app.command("create")
@client_command
def create_provider(
    provider_id: ProviderArgument,
    client_id: Annotated[str, typer.Option(help="Id of the client that you registered at the provider.")],
    auth_url: Annotated[str, typer.Option(help="URL where users sign in.")],
    token_url: Annotated[str, typer.Option(help="URL that exchanges a code for a token.")],
    name: Annotated[str | None, typer.Option(help="Display name. Default: the id.")] = None,
    revocation_url: Annotated[str | None, typer.Option(help="URL that revokes tokens, if there is one.")] = None,
    pkce: Annotated[bool, typer.Option("--pkce/--no-pkce", help="Protect each sign-in with PKCE.")] = True,
    client_authentication: Annotated[
        ClientAuthentication, typer.Option(help="How the client sends its secret.")
    ] = ClientAuthentication.POST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an OAuth provider. The client secret is read from OAUTH_CLIENT_SECRET."""
    wanted: dict[str, Any] = {
        "provider_id": provider_id,
        "name": name or provider_id,
        "client_id": client_id,
        "client_secret": os.environ.get(_SECRET),
        "auth_url": auth_url,
        "token_url": token_url,
        "revocation_url": revocation_url,
        "uses_pkce": pkce,
        "token_endpoint_auth_method": client_authentication.value,
    }
    with connect() as client:
        made = client.post(_PROVIDERS, wanted)
    show_one(made, _PROVIDER_COLUMNS, output)
    note(f"At the provider, register the platform's address with /v2/auth/callback/{provider_id} as a redirect URI.")


@providers_app.command("discover")
@client_command
def discover_provider(
    provider_id: ProviderArgument,
    mcp_server_url: Annotated[str, typer.Argument(help="Address of the MCP server.")],
    name: Annotated[str | None, typer.Option(help="Display name. Default: the id.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find the provider that protects an MCP server, and register a client there."""
    wanted = {"provider_id": provider_id, "name": name or provider_id, "mcp_server_url": mcp_server_url}
    with connect() as client:
        show_one(client.post(f"{_PROVIDERS}/mcp-discover", wanted), _PROVIDER_COLUMNS, output)


@providers_app.command("list")
@client_command
def list_providers(output: OutputOption = Output.TABLE) -> None:
    """List the OAuth providers of the workspace, newest first."""
    empty = "no OAuth providers; `moorage oauth providers create ID` makes one"
    with connect() as client:
        show_list(client.get(_PROVIDERS), _PROVIDER_COLUMNS, output, empty)


@providers_app.command("delete")
@client_command
def delete_provider(
    provider_id: ProviderArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete an OAuth provider and the tokens that it issued."""
    if not yes:
        confirm(f"Delete the OAuth provider {provider_id} and the tokens that it issued?")
    with connect() as client:
        gone = client.delete(f"{_PROVIDERS}/{quote(provider_id, safe='')}")
    show_one(gone, {"id": "provider_id"}, output)


@tokens_app.command("list")
@client_command
def list_tokens(
    provider: Annotated[str | None, typer.Option(help="Only tokens of this provider.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the tokens that were obtained with your API key, newest first, without the tokens themselves."""
    with connect() as client:
        found = client.get(_TOKENS, **({"provider_id": provider} if provider else {}))
    show_list(found, _TOKEN_COLUMNS, output, "no tokens; an agent obtains one when its user signs in")


@tokens_app.command("revoke")
@client_command
def revoke_token(
    token_id: Annotated[UUID, typer.Argument(help="Id of the token, as `moorage oauth tokens list` shows it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token, on the platform and at its provider."""
    with connect() as client:
        client.delete(f"{_TOKENS}/{token_id}")
    show_one({"id": str(token_id)}, {"id": "id"}, output)
