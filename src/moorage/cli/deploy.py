"""`moorage deploy`: from a folder or a git repository to an agent that answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from dotenv import dotenv_values

from moorage.cli.client import Client, UnreachableError, connect
from moorage.cli.deployments import (
    DEPLOYMENTS,
    WAIT_S,
    TimeoutOption,
    VerboseOption,
    WaitOption,
    await_revision,
    by_name,
    complete_deployment,
    show_outcome,
)
from moorage.cli.integrations import find_integration
from moorage.cli.listener import find_listener
from moorage.cli.output import Output, OutputOption, client_command, note
from moorage.cli.secrets import parsed_secrets, sent_secrets
from moorage.cli.source_archive import archived
from moorage.kernel.encoding import decode
from moorage.kernel.errors import ConflictError, InvalidRequestError, MoorageError

_UPLOAD_S = 600.0
_CHUNK_BYTES = 2**20
_NAME_MAX = 63


class DeploymentType(StrEnum):
    DEV = "dev"
    PROD = "prod"
    DEV_FREE = "dev_free"
    DEV_ZERO = "dev_zero"
    DEV_FREE_ZERO = "dev_free_zero"


@dataclass(frozen=True)
class _Wanted:
    """The requested deployment, whatever its source."""

    name: str
    config: str
    kind: DeploymentType
    secrets: Mapping[str, str]
    integration: str | None = None
    listener: str | None = None


@client_command
def deploy(
    source: Annotated[str, typer.Argument(help="A folder, or the URL of a git repository.")] = ".",
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the deployment. Default: the name of the folder or repository.",
            autocompletion=complete_deployment,
        ),
    ] = None,
    ref: Annotated[
        str | None, typer.Option(help="Branch, tag (refs/tags/…) or commit of the repository. Default: main.")
    ] = None,
    config: Annotated[str, typer.Option(help="Path of langgraph.json in the source.")] = "langgraph.json",
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Secret as NAME=VALUE, or NAME to take the value from your environment. Can be repeated."),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(help="File of secrets. Default: the `env` file of the folder's langgraph.json.", exists=True),
    ] = None,
    kind: Annotated[DeploymentType, typer.Option("--type", help="Type of a new deployment.")] = DeploymentType.DEV,
    integration: Annotated[
        str | None, typer.Option(help="Id or name of the integration for a private repository.")
    ] = None,
    listener: Annotated[
        str | None,
        typer.Option(help="Id or name of the listener that runs the agent. Default: the platform's machine."),
    ] = None,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    verbose: VerboseOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Build and run an agent. If the deployment exists, this makes its next revision.

    Secrets given here are added to the secrets of the deployment.
    """
    is_git = "://" in source or source.startswith("git@")
    folder = Path() if is_git else Path(source).resolve()
    if not is_git and not folder.is_dir():
        raise InvalidRequestError(f"{source} is neither a folder nor the URL of a git repository")
    for option, value in (("--ref", ref), ("--integration", integration)):
        if value is not None and not is_git:
            raise InvalidRequestError(f"{option} works only with the URL of a git repository, not with a folder")
    own_env = {} if is_git or env_file else _own_environment(folder, config)
    given = {**own_env, **(_read_env(env_file) if env_file else {}), **parsed_secrets(secret or [])}
    wanted = _Wanted(
        name or _default_name(source if is_git else folder.name), config, kind, given, integration, listener
    )
    with connect() as client:
        deployment = (
            _deploy_git(client, wanted, source, ref or "main") if is_git else _deploy_folder(client, wanted, folder)
        )
        revision_id = deployment["latest_revision_id"]
        path = f"{DEPLOYMENTS}/{deployment['id']}/revisions/{revision_id}"
        revision = (
            await_revision(client, deployment["id"], revision_id, timeout_s, verbose=verbose)
            if wait
            else client.get(path)
        )
        show_outcome(client, deployment["id"], revision, output)


def _deploy_git(client: Client, wanted: _Wanted, url: str, ref: str) -> Any:
    source_revision_config = {"repo_ref": ref, "langgraph_config_path": wanted.config}
    reached = {"repo_url": url, **_place(client, wanted)}
    if wanted.integration:
        reached["integration_id"] = find_integration(client, wanted.integration)
    existing = by_name(client, wanted.name)
    if existing is None:
        note(f"creating {wanted.name} from {url}")
        return client.post(
            DEPLOYMENTS,
            {
                "name": wanted.name,
                "source": "github",
                "source_config": {**reached, "deployment_type": wanted.kind},
                "source_revision_config": source_revision_config,
                "secrets": sent_secrets(None, wanted.secrets),
            },
        )
    has_served = existing["active_revision_id"] is not None
    if existing["source_config"]["repo_url"] != url and has_served:
        where = existing["source_config"]["repo_url"] or "uploads"
        raise ConflictError(f"{wanted.name} is deployed from {where}; use another --name for {url}")
    note(f"making the next revision of {wanted.name} from {ref}")
    change: dict[str, Any] = {
        "source_revision_config": source_revision_config,
        "secrets": sent_secrets(existing, wanted.secrets),
    }
    if wanted.listener:  # refused if the deployment already runs elsewhere
        change["source_config"] = _place(client, wanted)
    if not has_served:  # a first attempt, perhaps of another source, has failed
        change |= {"revision_source": "github", "source_config": reached}
    return client.patch(f"{DEPLOYMENTS}/{existing['id']}", change)


def _deploy_folder(client: Client, wanted: _Wanted, folder: Path) -> Any:
    existing, place = by_name(client, wanted.name), _place(client, wanted)
    with archived(folder, wanted.config, environment_files(folder, wanted.config)) as archive:
        if existing is None:
            note(f"creating {wanted.name}")
            existing = client.post(
                DEPLOYMENTS,
                {
                    "name": wanted.name,
                    "source": "internal_source",
                    "source_config": {**place, "deployment_type": wanted.kind},
                    "source_revision_config": {},
                    "secrets": [],
                },
            )
        path = f"{DEPLOYMENTS}/{existing['id']}"
        address = client.post(f"{path}/upload-url", {"supports_upload_headers": True})
        note(f"uploading {archive.stat().st_size / 1e6:.1f} MB")
        _upload(address, archive)
    return client.patch(
        path,
        {
            "revision_source": "internal_source",
            "source_config": place,  # refused if the deployment already runs elsewhere
            "source_revision_config": {
                "source_tarball_path": address["object_path"],
                "langgraph_config_path": wanted.config,
            },
            "secrets": sent_secrets(existing, wanted.secrets),
        },
    )


def _place(client: Client, wanted: _Wanted) -> dict[str, str]:
    """Return the part of `source_config` that says where the agent runs."""
    return {"listener_id": find_listener(client, wanted.listener)} if wanted.listener else {}


def _upload(address: Mapping[str, Any], archive: Path) -> None:
    """Upload the archive. Sends no key, since the address is signed."""
    import httpx  # slow to import, and not needed to start a server

    headers = {**address["upload_headers"], "Content-Length": str(archive.stat().st_size)}
    try:
        answer = httpx.put(address["upload_url"], content=_chunks(archive), headers=headers, timeout=_UPLOAD_S)
    except httpx.TransportError as error:
        raise UnreachableError(f"the upload failed ({error}); check MOORAGE_PUBLIC_URL of the platform") from error
    if not answer.is_success:
        raise MoorageError(f"the platform refused the upload: {answer.text[:500]} (HTTP {answer.status_code})")


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk


def _default_name(text: str) -> str:
    """Return a deployment's default name, made from a path or URL."""
    last = urlsplit(text).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:_NAME_MAX].strip("-")
    if not re.match(r"[a-z]", name):
        raise InvalidRequestError(f"{last!r} cannot be the name of a deployment; choose a name with --name")
    return name


def _environment_of(folder: Path, config: str) -> Any:
    """Return the `env` of the langgraph.json: a map, or the path of a file."""
    try:
        return decode((folder / config).read_bytes()).get("env") or {}
    except (OSError, ValueError, AttributeError):
        return {}  # the build reports errors of the file better


def environment_files(folder: Path, config: str) -> frozenset[str]:
    env = _environment_of(folder, config)
    if not isinstance(env, str):
        return frozenset()
    file = ((folder / config).parent / env).resolve()
    return frozenset({file.relative_to(folder).as_posix()}) if file.is_relative_to(folder) else frozenset()


def _own_environment(folder: Path, config: str) -> dict[str, str]:
    """Read the environment files that the langgraph.json names. A map in the langgraph.json is no secret: it is part of
    the source.
    """
    secrets: dict[str, str] = {}
    for name in environment_files(folder, config):
        if (folder / name).is_file():
            secrets |= _read_env(folder / name)
    return secrets


def _read_env(file: Path) -> dict[str, str]:
    return {name: value for name, value in dotenv_values(file).items() if value is not None}
