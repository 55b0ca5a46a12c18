"""`moorage keys`: the API keys of a workspace, and the master key of the installation."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from moorage.cli.client import connect
from moorage.cli.output import Columns, Output, OutputOption, client_command, moment, note, show_list, show_one
from moorage.cli.platform import Home, check_extra, home_of, read_settings
from moorage.embedded.postgres import EmbeddedPostgres
from moorage.kernel.access import Scope, checked_scope
from moorage.kernel.errors import ForbiddenError, NotFoundError
from moorage.kernel.logs import configure_logs

app = typer.Typer(help="API keys of a workspace, and the master key of the installation.", no_args_is_help=True)

_COLUMNS: Columns = {
    "id": "id",
    "name": "description",
    "key": "short_key",
    "scopes": lambda key: _shown_scopes(key["scopes"]),
    "created": moment("created_at"),
    "expires": moment("expires_at"),
    "last used": moment("last_used_at"),
}
# Rights that a key gets only if they are named.
_BY_NAME = {Scope.SECRETS_READ, Scope.OPERATOR}
_SCOPE_HELP = (
    "Scope of the key. Can be repeated. Default: all of your scopes, except secrets:read and operator. "
    f"Scopes: {', '.join(Scope)}; agents:read:NAME and agents:invoke:NAME for one deployment."
)


def _checked_scopes(scopes: list[str] | None) -> list[str] | None:
    try:
        return scopes and [checked_scope(scope) for scope in scopes]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("create")
@client_command
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, such as its purpose.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help=_SCOPE_HELP, callback=_checked_scopes)
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Operators only: id of another workspace that the key opens.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="The key may read, but change nothing.")] = False,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days until the key expires. Default: never.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an API key and print it. It is not shown again."""
    wanted: dict[str, Any] = {"description": name, "read_only": read_only, "scopes": scope or None}
    if workspace:
        wanted["workspace_id"] = workspace
    if expires_days:
        wanted["expires_at"] = (datetime.now(UTC) + timedelta(days=expires_days)).isoformat()
    with connect() as client:
        made = client.post("/api/v1/api-key", wanted)
    show_one(made, {"api key": "key", **{field: _COLUMNS[field] for field in ("id", "scopes", "expires")}}, output)
    note("The key is not shown again. To use it, set MOORAGE_API_KEY or LANGSMITH_API_KEY to it.")


@app.command("list")
@client_command
def list_keys(output: OutputOption = Output.TABLE) -> None:
    """List the API keys of the workspace, newest first, without the keys themselves."""
    with connect() as client:
        show_list(client.get("/api/v1/api-key"), _COLUMNS, output, "no keys; `moorage keys create NAME` makes one")


@app.command("revoke")
@client_command
def revoke_key(
    key_id: Annotated[UUID, typer.Argument(help="Id of the key, as `moorage keys list` shows it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke an API key and the tokens made from it. This cannot be undone."""
    with connect() as client:
        revoked = client.delete(f"/api/v1/api-key/{key_id}")
    show_one(revoked, {field: _COLUMNS[field] for field in ("id", "name", "key")}, output)
    note("The key stops working within 2 seconds, on deployed agents too.")


@app.command("recover")
@client_command
def recover_key(
    workspace: Annotated[UUID | None, typer.Option(help="Id of the workspace. Default: the oldest one.")] = None,
    home: Home = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create another first key if you have lost yours. Needs no key. Run it on the home's machine, as its owner."""
    check_extra()
    folder = home_of(home)
    _check_owner(folder)
    settings = read_settings(MOORAGE_HOME=home)
    configure_logs(settings.log_level, as_json=settings.log_json)
    from moorage.wiring.recovery import recover_key as recovered  # needs the extra `platform`

    with ExitStack() as engines:
        conninfo = settings.database_uri
        if conninfo is None:
            engine = EmbeddedPostgres(folder)
            engines.callback(engine.stop)  # the engine stays up while the platform uses it
            conninfo = engine.start()
        found = asyncio.run(recovered(settings, conninfo, workspace))
    made = {"api_key": found.api_key, "workspace_id": str(found.workspace_id)}
    show_one(made, {"api key": "api_key", "workspace": "workspace_id"}, output)
    note(
        "The key is not shown again. Other keys keep working: `moorage keys list` shows them, "
        "and `moorage keys revoke` ends one."
    )


def _check_owner(home: Path) -> None:
    """Check that the caller owns the home. Raises NotFoundError if no platform has run there, ForbiddenError if another
    user of the machine owns it.
    """
    if not (home / "secret-key").exists() and not (home / "postgres").exists():
        raise NotFoundError(f"no platform has run in {home} yet; name its state directory with --home")
    if home.stat().st_uid != os.geteuid():
        raise ForbiddenError(f"only the owner of {home} may recover a key; run this as that user")


@app.command("new-master")
def make_master_key() -> None:
    """Print a new master key. The platform uses it after a restart, if it comes first in the list of master keys."""
    # This library comes with the extra `platform`, which clients of the API do not need.
    from moorage.kernel.crypto import new_master_key

    typer.echo(new_master_key())
    note(
        "Put the key first in MOORAGE_SECRET_KEY, with a comma before the old keys, or on the first line of secret-key "
        "in the home. Then run `moorage restart` and `moorage keys rotate-master`, and remove the old keys."
    )


@app.command("rotate-master")
@client_command
def rotate_master_key(output: OutputOption = Output.TABLE) -> None:
    """Seal all stored secrets with the newest master key, so that you can remove the older keys."""
    with connect() as client:
        rotation = client.post("/api/v1/master-key/rotate")
    show_one(rotation, {"master key": "key_id", "re-wrapped": "rewrapped", "left": "left"}, output)
    if rotation["left"]:
        note(
            "Some secrets still need an older key. Keep it, and run this again; "
            "if that does not help, see the platform's log."
        )


def _shown_scopes(scopes: list[str]) -> Any:
    """Return the scopes as short text. Most keys hold all rights but a few, and naming the missing ones fits into a
    table.
    """
    missing = [scope for scope in Scope if scope not in scopes]
    if not missing:
        return "all"
    return f"all but {', '.join(missing)}" if {*missing} <= _BY_NAME else scopes
