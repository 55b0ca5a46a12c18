"""`moorage destinations`: the buckets that exports go to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moorage.cli.client import Client, connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.kernel.errors import InvalidRequestError, NotFoundError

app = typer.Typer(help="Destinations: the buckets that exports go to.", no_args_is_help=True)

DESTINATIONS = "/api/v1/bulk-exports/destinations"


class DestinationKindName(StrEnum):
    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"
    LOCAL = "local"


class Addressing(StrEnum):
    AUTO = "auto"
    VIRTUAL = "virtual"
    PATH = "path"


# Secrets are not options: options appear in the shell's history and in the list of processes.
_VARIABLES = {
    DestinationKindName.S3: {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
    },
    DestinationKindName.GCS: {"service_account_key": "GOOGLE_APPLICATION_CREDENTIALS"},
    DestinationKindName.AZURE: {"account_key": "AZURE_STORAGE_ACCOUNT_KEY"},
    DestinationKindName.LOCAL: {},
}
_OPTIONAL = frozenset({"session_token"})

_COLUMNS: Columns = {
    "id": "id",
    "name": "display_name",
    "type": "destination_type",
    "bucket": lambda destination: destination["config"]["bucket_name"],
    "prefix": lambda destination: destination["config"]["prefix"],
    "endpoint": lambda destination: destination["config"]["endpoint_url"],
    "created": moment("created_at"),
}
_FIELDS: Columns = {
    **_COLUMNS,
    "region": lambda destination: destination["config"]["region"],
    "role": lambda destination: destination["config"]["aws_role_arn"],
    "credentials": "credentials_keys",
    "may": lambda destination: _may(destination["permissions"]),
    "may not": lambda destination: _may(destination["permissions"], granted=False),
    "changed": moment("updated_at"),
}
DestinationArgument = Annotated[str, typer.Argument(help="Id or name of the destination.")]


@app.command("create")
@client_command
def create_destination(
    name: Annotated[str, typer.Argument(help="Display name.")],
    bucket: Annotated[str, typer.Option(help="Bucket, container or folder. It must exist, unless it is a folder.")],
    prefix: Annotated[str, typer.Option(help="Prefix of all keys in the bucket.")] = "",
    kind: Annotated[DestinationKindName, typer.Option("--type", help="Kind of store.")] = DestinationKindName.S3,
    region: Annotated[str | None, typer.Option(help="Region; required for AWS.")] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="Address of the store, if it is not AWS.")] = None,
    addressing: Annotated[
        Addressing | None, typer.Option(help="Put the bucket into the host name (virtual) or the path of S3 addresses.")
    ] = None,
    account_name: Annotated[str | None, typer.Option(help="Storage account, for Azure.")] = None,
    role_arn: Annotated[str | None, typer.Option(help="AWS role to assume with the credentials.")] = None,
    kms_key_id: Annotated[str | None, typer.Option(help="Encrypt objects with this AWS KMS key.")] = None,
    installation_credentials: Annotated[
        bool,
        typer.Option("--installation-credentials", help="Use the credentials of the platform, if it allows that."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register a bucket. The platform first writes a test file there.

    Credentials are read from your environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN),
    or the file named by GOOGLE_APPLICATION_CREDENTIALS, or AZURE_STORAGE_ACCOUNT_KEY.
    """
    config: dict[str, Any] = {"bucket_name": bucket, "prefix": prefix, "region": region, "endpoint_url": endpoint_url}
    if account_name:
        config["account_name"] = account_name
    if role_arn:
        config["aws_role_arn"] = role_arn
    if addressing:
        config["config_kwargs_s3"] = {"addressing_style": addressing.value}
    if kms_key_id:
        config["s3_additional_kwargs"] = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id}
    wanted = {
        "display_name": name,
        "destination_type": kind.value,
        "config": config,
        "credentials": None if installation_credentials else _credentials_or_advice(kind),
    }
    with connect() as client:
        show_one(client.post(DESTINATIONS, wanted), _FIELDS, output)


@app.command("list")
@client_command
def list_destinations(output: OutputOption = Output.TABLE) -> None:
    """List the destinations of the workspace."""
    with connect() as client:
        show_list(
            client.pages(DESTINATIONS),
            _COLUMNS,
            output,
            "no destinations yet; `moorage destinations create NAME --bucket BUCKET` makes one",
        )


@app.command("show")
@client_command
def show_destination(destination: DestinationArgument, output: OutputOption = Output.TABLE) -> None:
    """Show a destination and what its credentials may do there."""
    with connect() as client:
        show_one(find_destination(client, destination), _FIELDS, output)


@app.command("rotate")
@client_command
def rotate_credentials(destination: DestinationArgument, output: OutputOption = Output.TABLE) -> None:
    """Test the credentials in your environment, and replace the old ones with them; see `create`."""
    with connect() as client:
        found = find_destination(client, destination)
        credentials = _credentials(DestinationKindName(found["destination_type"]), os.environ)
        wanted: dict[str, Any] = {"credentials": credentials}
        if role_arn := found["config"].get("aws_role_arn"):
            wanted["aws_role_arn"] = role_arn
        changed = client.patch(f"{DESTINATIONS}/{found['id']}", wanted)
    show_one(changed, _FIELDS, output)
    note("Export runs under way keep the old credentials until they end.")


@app.command("delete")
@client_command
def delete_destination(
    destination: DestinationArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a destination and its credentials. Exported files stay in the bucket; exports under way fail."""
    with connect() as client:
        found = find_destination(client, destination)
        if not yes:
            confirm(f"Delete {found['display_name']!r}? Exports that go there will fail.")
        client.delete(f"{DESTINATIONS}/{found['id']}")
    note(f"Destination {found['display_name']} is deleted.")


def find_destination(client: Client, named: str) -> Any:
    """Find a destination by id, or by a name that only one has. Raises NotFoundError and InvalidRequestError."""
    found = [each for each in client.pages(DESTINATIONS) if named in {each["id"], each["display_name"]}]
    if not found:
        raise NotFoundError(f"there is no destination {named!r}; see `moorage destinations list`")
    if len(found) > 1:
        raise InvalidRequestError(f"several destinations are named {named!r}; give the id of one")
    return found[0]


def _credentials_or_advice(kind: DestinationKindName) -> dict[str, str] | None:
    try:
        return _credentials(kind, os.environ)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{error}, or use --installation-credentials") from None


def _credentials(kind: DestinationKindName, environment: Mapping[str, str]) -> dict[str, str] | None:
    variables = _VARIABLES[kind]
    missing = [name for field, name in variables.items() if field not in _OPTIONAL and not environment.get(name)]
    if missing:
        raise InvalidRequestError(f"set {' and '.join(missing)} in the environment")
    given = {field: environment[name] for field, name in variables.items() if environment.get(name)}
    if kind is DestinationKindName.GCS:
        given = {field: _read_key(path) for field, path in given.items()}
    return given or None


def _read_key(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidRequestError(
            f"GOOGLE_APPLICATION_CREDENTIALS names a file that cannot be read: {error}"
        ) from error


def _may(permissions: Mapping[str, Any], *, granted: bool = True) -> list[str]:
    known = {name: found for name, found in permissions.items() if name not in {"md5_etags", "sha256_checksums"}}
    return sorted(name.replace("_", " ") for name, found in known.items() if found is granted)
