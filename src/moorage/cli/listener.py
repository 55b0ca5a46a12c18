"""`moorage listener` runs agents on this machine for a platform elsewhere; `moorage listeners` lists such machines."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit, urlunsplit

import typer

from moorage import __version__
from moorage.cli.client import Client, ClientSettings, UnreachableError, WaitedTooLongError, connect, origin_of
from moorage.cli.output import Columns, Output, OutputOption, client_command, confirm, moment, note, show_list, show_one
from moorage.cli.owner import find_owner
from moorage.cli.platform import STOP_BOUND_S, Home, check_extra, home_of
from moorage.embedded import processes
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BadRequestError, MoorageError, NotFoundError
from moorage.kernel.logs import configure_logs

app = typer.Typer(help="Listeners: machines that run agents for the platform.", no_args_is_help=True)

LISTENERS = "/v2/listeners"
_START_BOUND_S = 300.0
_POLL_S = 0.2
_WATCH_S = 1.0
_COLUMNS: Columns = {
    "id": "id",
    "name": "compute_id",
    "connected": lambda listener: "yes" if listener["is_connected"] else "no",
    "last seen": moment("last_seen_at"),
    "version": "version",
}


@client_command
def listener(
    name: Annotated[
        str | None, typer.Argument(help="Name of this listener. Default: this machine's host name.")
    ] = None,
    home: Home = None,
    port: Annotated[int, typer.Option(help="Port of this machine's own moorage, on 127.0.0.1.")] = 8080,
    drain_s: Annotated[
        float, typer.Option("--drain", min=0, help="Seconds that requests may still take after Ctrl-C.")
    ] = 30,
) -> None:
    """Run agents on this machine for the platform at MOORAGE_URL, with the key in MOORAGE_API_KEY.

    Nothing connects to this machine: it connects to the platform. Ctrl-C stops the listener and its agents.
    """
    check_extra()
    settings = ClientSettings()
    if settings.api_key is None:
        raise BadRequestError("no API key is set: set MOORAGE_API_KEY to a key of the platform")
    configure_logs("INFO", as_json=False)
    home, origin = home_of(home), origin_of(settings.url)
    found = _registered(settings, name or socket.gethostname())
    own = OwnPlatform(home, port, origin)
    own.start()
    typer.echo(f"moorage {__version__} runs agents for {origin} as the listener {found['compute_id']}")
    typer.echo(f"Deploy to it: moorage deploy --listener {found['compute_id']}")
    sys.stdout.flush()
    url = _tunnels_url(origin, found["id"])
    asyncio.run(_serve(own, url, settings.api_key.get_secret_value(), drain_s))


@app.command("list")
@client_command
def list_listeners(output: OutputOption = Output.TABLE) -> None:
    """List the listeners of the workspace, newest first."""
    empty = "no listeners yet; `moorage listener NAME` on another machine starts one"
    with connect() as client:
        show_list(_all(client), _COLUMNS, output, empty)


@app.command("show")
@client_command
def show_listener(
    listener: Annotated[str, typer.Argument(help="Id or name of the listener.")], output: OutputOption = Output.TABLE
) -> None:
    """Show a listener."""
    with connect() as client:
        found = client.get(f"{LISTENERS}/{quote(find_listener(client, listener), safe='')}")
    show_one(found, {**_COLUMNS, "type": "compute_type", "created": moment("created_at")}, output)


@app.command("remove")
@client_command
def remove_listener(
    listener: Annotated[str, typer.Argument(help="Id or name of the listener.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a listener that runs no deployments. Run `moorage down` on its machine to stop what is left there."""
    with connect() as client:
        found = find_listener(client, listener)
        if not yes:
            confirm(f"Remove the listener {listener}?")
        client.delete(f"{LISTENERS}/{quote(found, safe='')}")
    show_one({"id": found}, {"id": "id"}, output)


def find_listener(client: Client, listener: str) -> str:
    """Return the id of a listener by its id or name. Raises NotFoundError."""
    for each in _all(client):
        if listener in {each["id"], each["compute_id"]}:
            return str(each["id"])
    raise NotFoundError(f"There is no listener {listener!r}; see `moorage listeners list`")


def _all(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := client.get(LISTENERS, limit=100, offset=len(found))["resources"]:
        found += page
    return found


def _registered(settings: ClientSettings, name: str) -> dict[str, Any]:
    """Return the listener of that name, created if it is missing. Waits while the platform is away: it may just be
    restarting.
    """
    told = False
    while True:
        try:
            with connect(settings) as client:
                for each in _all(client):
                    if each["compute_id"] == name:
                        return each
                new = {"compute_type": "machine", "compute_id": name, "compute_config": {}, "version": __version__}
                made: dict[str, Any] = client.post(LISTENERS, new)
                return made
        except UnreachableError as error:
            if not told:
                note(f"{error}. Waiting for the platform")
            told = True
            time.sleep(2)


def _tunnels_url(origin: str, listener_id: str) -> str:
    scheme, *rest = urlsplit(f"{origin}{LISTENERS}/{listener_id}/tunnels")
    return urlunsplit(("wss" if scheme == "https" else "ws", *rest))


async def _serve(own: OwnPlatform, url: str, key: str, drain_s: float) -> None:
    from moorage.cli.tunnels import TunnelEnd, TunnelRules  # slow to import

    hello = encode({"instance": own.instance, "key": own.key, "version": __version__}).decode()
    end = TunnelEnd(TunnelRules(url, key, hello, own.front_door))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    working = {asyncio.create_task(end.keep_open()), asyncio.create_task(own.watch()), asyncio.create_task(stop.wait())}
    done, rest = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await end.drain(drain_s)
    await asyncio.to_thread(own.stop)
    for task in done:
        task.result()


class OwnPlatform:
    """The moorage of this machine, which takes the platform's orders. It outlives a killed listener; the next one
    adopts it.
    """

    def __init__(self, home: Path, port: int, origin: str) -> None:
        self._home = home
        self._port = port
        self._origin = origin
        self.front_door = home / "front-door"
        processes.make_directory(home, processes.passable_mode())
        file = home / "listener.json"
        if not file.exists():
            made = {"instance": secrets.token_hex(16), "key": f"lsv2_sk_{secrets.token_hex(32)}"}
            processes.write_private(file, encode(made))
        known = decode(file.read_bytes())
        self.instance, self.key = str(known["instance"]), str(known["key"])

    def start(self) -> None:
        """Start the platform, and return once it serves. Raises MoorageError if it does not."""
        child = None if find_owner(self._home) else self._spawn()
        give_up_at = time.monotonic() + _START_BOUND_S
        while not self._serves():
            if child is not None and child.poll() is not None:
                raise MoorageError("moorage on this machine did not start; its messages above say why")
            if time.monotonic() > give_up_at:
                raise WaitedTooLongError(f"moorage on this machine did not start within {_START_BOUND_S:.0f} s")
            time.sleep(_POLL_S)

    async def watch(self) -> None:
        """Restart the platform whenever it has ended. Runs for ever."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if await asyncio.to_thread(find_owner, self._home) is None:
                await asyncio.to_thread(self.start)

    def stop(self) -> None:
        owner = find_owner(self._home)
        if owner is not None:
            owner.signal(signal.SIGTERM)
            owner.ends_within(STOP_BOUND_S)

    def _serves(self) -> bool:
        owner = find_owner(self._home)
        return owner is not None and owner.serves

    def _spawn(self) -> subprocess.Popen[bytes]:
        path = ["-P"] if sys.flags.safe_path else []
        command = [sys.executable, *path, "-m", "moorage", "up", "--home", str(self._home), "--port", str(self._port)]
        told = {"MOORAGE_BOOTSTRAP_API_KEY": self.key, "MOORAGE_ORDERS_FROM": self._origin, "MOORAGE_HOST": "127.0.0.1"}
        # This machine's moorage must not get the platform's key. Ctrl-C reaches only this process, so that requests can
        # end first.
        kept = {
            name: value for name, value in os.environ.items() if name not in {"MOORAGE_API_KEY", "LANGSMITH_API_KEY"}
        }
        return subprocess.Popen(
            [*command, "--output", "json"],
            env={**kept, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
