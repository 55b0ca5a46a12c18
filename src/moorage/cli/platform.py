"""`moorage up`, `down` and `restart`: the platform of one machine, with its engines and its front door.

`up` is the platform's own process. It starts and watches the engines and the front door, which are separate processes,
and stops them when it is asked to end. If it ends in any other way, they keep running and the next `up` adopts them.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from pydantic import ValidationError

from moorage import __version__
from moorage.cli.client import WaitedTooLongError
from moorage.cli.connections import websocket
from moorage.cli.engines import PlatformEngines
from moorage.cli.errors import plain_errors
from moorage.cli.listening import Address, listening_on
from moorage.cli.output import EXIT_CODES, Output, OutputOption, client_command, show_json, show_json_line
from moorage.cli.owner import Owner, Ownership, find_owner, owned
from moorage.embedded import processes
from moorage.embedded.caddy import EmbeddedCaddy
from moorage.embedded.front_door import PLATFORM_IDLE_S, BodyLimits
from moorage.embedded.front_tls import Https
from moorage.kernel.errors import ConflictError, MoorageError, NotFoundError, StartupError
from moorage.kernel.logs import configure_logs
from moorage.settings.platform import PlatformSettings

if TYPE_CHECKING:
    from moorage.cli.server import Stopped
    from moorage.wiring.platform import Platform

log = structlog.get_logger(__name__)

Home = Annotated[
    Path | None,
    typer.Option(envvar="MOORAGE_HOME", help="State directory. Default: ~/.moorage, or /var/lib/moorage for root."),
]

# Not SIGHUP, which a closed terminal sends.
RESTART = signal.SIGUSR1
STOP_BOUND_S = 60.0
RESTART_BOUND_S = 120.0
_POLL_S = 0.05
# Modules that the extra `platform` installs.
_EXTRA = (
    *("chdb", "clickhouse_connect", "cryptography", "joserfc", "obstore", "prometheus_client", "pyarrow"),
    *("zstandard",),
)


@plain_errors
def up(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. Default: 8080.")] = None,
    home: Home = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the platform: its API, its engines and its front door. Ctrl-C stops all of it."""
    check_extra()
    home = home_of(home)
    settings = read_settings(MOORAGE_HOST=host, MOORAGE_PORT=port, MOORAGE_HOME=home)
    configure_logs(settings.log_level, as_json=settings.log_json)
    address = Address(settings.host, settings.port)
    limits = BodyLimits(
        upload_bytes_max=settings.upload_bytes_max,
        images_bytes_max=settings.images_bytes_max,
        else_bytes_max=settings.body_bytes_max,
    )
    _raise_descriptor_limit()
    try:
        with owned(home, str(address)) as ownership:
            engines = PlatformEngines(
                home,
                address,
                limits,
                _https(settings),
                connections_per_client_max=settings.connections_per_client_max,
            )
            stopped = _run(settings, home, engines, ownership, output)
    except ConflictError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_CODES[ConflictError]) from error
    if stopped.by == RESTART:
        # Keeps the process and terminal, with the current code and settings.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line
    stopped.leave()


@client_command
def down(home: Home = None, output: OutputOption = Output.TABLE) -> None:
    """Stop the platform, its engines and its front door, including processes left by a killed platform."""
    home = home_of(home)
    owner, engines = find_owner(home), PlatformEngines(home)
    found = owner is not None or engines.front_door.is_running()
    if owner is not None:
        owner.signal(signal.SIGTERM)
        if not owner.ends_within(STOP_BOUND_S):
            log.warning("the platform did not stop in time and is killed", pid=owner.pid)
            owner.signal(signal.SIGKILL)
            owner.ends_within(STOP_BOUND_S)
    if home.exists():
        engines.stop()
    if output is Output.JSON:
        show_json({"home": str(home), "was_running": found})
    else:
        typer.echo(
            f"stopped moorage and everything that ran in {home}"
            if found
            else f"nothing runs in {home}; `moorage up` starts the platform"
        )


@client_command
def restart(home: Home = None, output: OutputOption = Output.TABLE) -> None:
    """Restart the platform with the code that is installed now. Engines, agents and the front door keep running."""
    home = home_of(home)
    owner = find_owner(home)
    if owner is None:
        raise NotFoundError(f"nothing runs in {home}; start it with `moorage up`")
    if not owner.serves:
        raise ConflictError(f"the platform of {home} is still starting; try again in a moment")
    owner.signal(RESTART)
    url = _await_new_start(home, owner).url
    if output is Output.JSON:
        show_json({"home": str(home), "url": url})
    else:
        typer.echo(f"moorage has restarted at {url}")


def _await_new_start(home: Path, old: Owner) -> Owner:
    give_up_at = time.monotonic() + RESTART_BOUND_S
    while time.monotonic() < give_up_at:
        if not old.is_alive():
            raise MoorageError("the platform ended instead of restarting; the output of its `moorage up` says why")
        new = find_owner(home)
        if new is not None and new.serves and new.since != old.since:
            return new
        time.sleep(_POLL_S)
    raise WaitedTooLongError(f"the platform did not restart within {RESTART_BOUND_S:.0f} s")


# --- the process of `up` ---


def _run(
    settings: PlatformSettings, home: Path, engines: PlatformEngines, ownership: Ownership, output: Output
) -> Stopped:
    """Serve until a signal comes.

    When we are asked to end, the engines stop with us. When we fail, the engines that were already running are left as
    they were.
    """
    left_running = engines.front_door.is_running()
    # Until the server handles signals: a start can be stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        stopped = _serve(settings, home, engines, ownership, output)
    except Exception:
        if not left_running:
            engines.stop()
        raise
    except BaseException:
        engines.stop()
        raise
    if stopped.by != RESTART:
        engines.stop()
    return stopped


def _serve(
    settings: PlatformSettings, home: Path, engines: PlatformEngines, ownership: Ownership, output: Output
) -> Stopped:
    with (
        engines.running(settings.database_uri, settings.clickhouse_url) as (postgres, clickhouse),
        _platform_socket(engines.front_door) as listening,
    ):
        # Slow to import, so imported while the engines start.
        from moorage.cli import server
        from moorage.wiring.platform import Engines, platform

        def on_ready(running: Platform) -> None:
            _announce(settings.origin, running, output)
            ownership.tell_that_it_serves()

        return server.run(
            platform(settings, home, Engines(postgres.result(), clickhouse.result())),
            listening,
            on_ready,
            stop_on=_stop_signals(),
            # Only the front door reaches this socket, and it names the client.
            forwarded_allow_ips="*",
            timeout_keep_alive=2 * PLATFORM_IDLE_S,
            ws=websocket,
        )


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that stop the platform. A closed terminal stops it too, unless it was started to outlive its
    terminal.
    """
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, RESTART, *hangup]


@contextmanager
def _platform_socket(front_door: EmbeddedCaddy) -> Iterator[socket.socket]:
    """Return the platform's socket. It is bound through its open directory, so the length of the
    path does not matter.
    """
    directory = os.open(front_door.platform_socket.parent, os.O_PATH | os.O_CLOEXEC)
    path = Path(f"/proc/self/fd/{directory}/{front_door.platform_socket.name}")
    try:
        with listening_on(Address("", 0, uds=path)) as listening:
            path.chmod(0o666)  # the directory keeps others out
            yield listening
    finally:
        os.close(directory)


def _announce(url: str, running: Platform, output: Output) -> None:
    """Print the result of the start. Logs go to stderr, so a program reads only what is printed here."""
    first = running.first
    if output is Output.JSON:
        show_json_line(
            {
                "url": url,
                "workspace_id": str(first.workspace_id),
                "api_key": first.api_key,
                "console": running.login_link or url,
            }
        )
        return
    lines = [f"moorage {__version__} runs at {url}"]
    if first.api_key:
        lines += [
            "",
            "This is the first start. Keep the key: it is not shown again.",
            "`moorage keys recover` makes another.",
            f"  API key    {first.api_key}",
            f"  workspace  {first.workspace_id}",
            "",
            "To trace your code, set these variables where it runs:",
            "  export LANGSMITH_TRACING=true",
            f"  export LANGSMITH_ENDPOINT={url}/api/v1",
            f"  export LANGSMITH_API_KEY={first.api_key}",
            "",
        ]
    if running.login_link:
        lines += ["Console; this link signs you in once, within an hour:", f"  {running.login_link}", ""]
    else:
        lines.append(f"Console: {url}/ (`moorage console` makes a link that signs you in)")
    lines.append(f"API: {url}/docs")
    typer.echo("\n".join(lines))
    sys.stdout.flush()


# --- settings ---


def home_of(given: Path | None) -> Path:
    default = Path("/var/lib/moorage") if processes.is_root() else Path("~/.moorage")
    return (given or default).expanduser().resolve()


def read_settings(**given: Any) -> PlatformSettings:
    """Read the settings. Options of the command line override the environment. Raises StartupError with the reason."""
    try:
        return PlatformSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = [f"{_variable(found)}: {found['msg']}" for found in error.errors(include_input=False)]
        raise StartupError(f"Invalid settings. {'; '.join(wrong)}") from error


def _https(settings: PlatformSettings) -> Https | None:
    if settings.https_port is None:
        return None
    return Https(
        host=settings.host,
        port=settings.https_port,
        http_port=settings.port,
        names=tuple(settings.certificate_names),
        public_url=settings.origin,
        acme_ca=str(settings.acme_ca) if settings.acme_ca else None,
        acme_email=settings.acme_email,
        acme_roots=settings.acme_roots,
        certificate=settings.tls_certificate,
        key=settings.tls_key,
    )


def _variable(error: Mapping[str, Any]) -> str:
    return ".".join(str(step) for step in error["loc"])


def check_extra() -> None:
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise StartupError(
            f"The platform needs packages that are missing ({', '.join(missing)}): pip install 'moorage[platform]'"
        )


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files. Each open stream takes one here and two at the front door, which inherits the
    limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
