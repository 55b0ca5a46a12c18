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
# Rights that a key gets only when they are named.
_BY_NAME = {Scope.SECRETS_READ, Scope.OPERATOR}
_SCOPE_HELP = (
    f"One right of the key; repeat it. Default: all that you have, except secrets:read and operator. {', '.join(Scope)}; "
    "agents:read:NAME and agents:invoke:NAME for one deployment."
)


def _checked_scopes(scopes: list[str] | None) -> list[str] | None:
    try:
        return scopes and [checked_scope(scope) for scope in scopes]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("create")
@client_command
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help=_SCOPE_HELP, callback=_checked_scopes)
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="For an operator: id of another workspace that the key opens.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="It may read and change nothing.")] = False,
    expires_days: Annotated[
        int | None, typer.Option(min=1, help="Days until it stops to work. Default: never.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make an API key and print it, this once."""
    wanted: dict[str, Any] = {"description": name, "read_only": read_only, "scopes": scope or None}
    if workspace:
        wanted["workspace_id"] = workspace
    if expires_days:
        wanted["expires_at"] = (datetime.now(UTC) + timedelta(days=expires_days)).isoformat()
    with connect() as client:
        made = client.post("/api/v1/api-key", wanted)
    show_one(made, {"api key": "key", **{field: _COLUMNS[field] for field in ("id", "scopes", "expires")}}, output)
    note("The key is shown this once; put it into MOORAGE_API_KEY or LANGSMITH_API_KEY of whoever uses it.")


@app.command("list")
@client_command
def list_keys(output: OutputOption = Output.TABLE) -> None:
    """List the API keys of the workspace, newest first; none shows the key itself."""
    with connect() as client:
        show_list(client.get("/api/v1/api-key"), _COLUMNS, output, "no keys; `moorage keys create NAME` makes one")


@app.command("revoke")
@client_command
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The id of the key, as `moorage keys list` shows it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """End an API key, and the tokens made from it, for ever."""
    with connect() as client:
        revoked = client.delete(f"/api/v1/api-key/{key_id}")
    show_one(revoked, {field: _COLUMNS[field] for field in ("id", "name", "key")}, output)
    note("The key stops to work within 2 seconds, on deployed agents too.")


@app.command("recover")
@client_command
def recover_key(
    workspace: Annotated[UUID | None, typer.Option(help="Id of the workspace. Default: the oldest one.")] = None,
    home: Home = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make another first key when that is lost. Only for who owns the home, on its machine; needs no key."""
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
            engines.callback(engine.stop)  # leaves it running while the platform uses it
            conninfo = engine.start()
        found = asyncio.run(recovered(settings, conninfo, workspace))
    made = {"api_key": found.api_key, "workspace_id": str(found.workspace_id)}
    show_one(made, {"api key": "api_key", "workspace": "workspace_id"}, output)
    note(
        "The key is shown this once. `moorage keys list` shows the others, which go on; `moorage keys revoke` ends one."
    )


def _check_owner(home: Path) -> None:
    """Raises NotFoundError where no platform has been, ForbiddenError for another user of the machine."""
    if not (home / "secret-key").exists() and not (home / "postgres").exists():
        raise NotFoundError(f"no platform has run in {home} yet; name its state directory with --home")
    if home.stat().st_uid != os.geteuid():
        raise ForbiddenError(f"only the user who owns {home} may make a key for it without having one")


@app.command("new-master")
def make_master_key() -> None:
    """Print a fresh master key. It is used from the next start on, when it stands first."""
    # This library comes with the extra `platform`, which clients of the API do not need.
    from moorage.kernel.crypto import new_master_key

    typer.echo(new_master_key())
    note(
        "Put it first in MOORAGE_SECRET_KEY, a comma before the old ones, or as the first line of secret-key in the home. "
        "Then `moorage restart`, `moorage keys rotate-master`, and remove the old ones."
    )


@app.command("rotate-master")
@client_command
def rotate_master_key(output: OutputOption = Output.TABLE) -> None:
    """Seal all stored secrets by the newest master key, so that the older ones can be removed."""
    with connect() as client:
        rotation = client.post("/api/v1/master-key/rotate")
    show_one(rotation, {"master key": "key_id", "re-wrapped": "rewrapped", "left": "left"}, output)
    if rotation["left"]:
        note(
            "Some secrets still need an older key: keep it, repeat this, and see the platform's log if it does not help."
        )


def _shown_scopes(scopes: list[str]) -> Any:
    """Most keys hold all rights but a few: that fits into a table."""
    missing = [scope for scope in Scope if scope not in scopes]
    if not missing:
        return "all"
    return f"all but {', '.join(missing)}" if {*missing} <= _BY_NAME else scopes
