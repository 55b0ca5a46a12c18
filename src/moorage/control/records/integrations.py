"""Integrations: access of a workspace to repositories, by a token, an installed app of GitHub, or a deploy key."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import TypedDict

from moorage.control.records.oauth import Name
from moorage.control.records.urls import SshUrl, Url
from moorage.kernel.crypto import SealedColumn

SEALED_FORGE_TOKEN = SealedColumn("integrations", "id", "sealed_token")
SEALED_PUSH_SECRET = SealedColumn("integrations", "id", "sealed_webhook_secret")

ForgeKind = Literal["github", "gitlab", "gitea"]
# Forges are reached by their API; a server of plain git is reached with a deploy key.
IntegrationKind = Literal[ForgeKind, "ssh"]
# No white space or control characters: the token becomes part of headers.
Token = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$")]
# The id of a GitHub app, or its client id.
AppId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.]{1,64}$")]
# GitHub's keys have 2048 bits, 1,700 characters. Checking a key of twice that size takes a second of processor time.
PrivateKey = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
HostKeyLine = Annotated[str, StringConstraints(max_length=5000)]
RepositoryName = Annotated[
    str, StringConstraints(max_length=512, pattern=r"^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)+$")
]

_PUBLIC_FORGES: dict[str, str] = {"github": "https://github.com", "gitlab": "https://gitlab.com"}
_PROOFS_OF_KIND: dict[str, tuple[str, ...]] = {"github": ("token", "app"), "ssh": ("host_keys",)}
_PORTS = {"https": 443, "http": 80, "ssh": 22}


class GithubApp(BaseModel):
    """A GitHub app, and the organization or account in which it is installed. `private_key` is the content of the key
    file from GitHub.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    app_id: AppId
    installation_id: Annotated[int, Field(gt=0, lt=2**63)]
    private_key: PrivateKey


class IntegrationCreate(BaseModel):
    """A request for an integration. `base_url` is the forge's own address; without one: github.com or gitlab.com.

    A forge needs `token`; GitHub takes `app` instead. The kind `ssh` needs `host_keys`, lines of `ssh-keyscan`, and
    this server makes a deploy key for it.
    """

    model_config = ConfigDict(extra="forbid")

    kind: IntegrationKind
    name: Name
    token: Token | None = None
    app: GithubApp | None = None
    base_url: Url | SshUrl | None = None
    host_keys: Annotated[list[HostKeyLine], Field(max_length=20)] | None = None

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        takes = _PROOFS_OF_KIND.get(self.kind, ("token",))
        given = [name for name in ("token", "app", "host_keys") if getattr(self, name)]
        if not any(name in takes for name in given):
            raise ValueError(f"{' or '.join(takes)} is missing: an integration of the kind {self.kind} needs it")
        if len(given) > 1:
            refused = next((name for name in given if name not in takes), None)
            told = f"takes no {refused}" if refused else f"takes {' or '.join(takes)}, not both"
            raise ValueError(f"an integration of the kind {self.kind} {told}")
        if self.base_url is not None and self.base_url.startswith("ssh:") != (self.kind == "ssh"):
            raise ValueError(f"base_url must begin with {'ssh' if self.kind == 'ssh' else 'https'}://")
        return self

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.base_url is None and self.kind not in _PUBLIC_FORGES:
            raise ValueError(f"base_url is missing: an integration of the kind {self.kind} needs the forge's address")
        if self.base_url is not None and ("?" in self.base_url or "#" in self.base_url):
            raise ValueError("base_url must hold neither a query nor a fragment")
        return self

    @property
    def address(self) -> str:
        """Return the forge's address without a trailing slash."""
        return (self.base_url or _PUBLIC_FORGES[self.kind]).rstrip("/")


class Integration(TypedDict):
    """An integration, without its token, which no answer contains. `organization_id` is the workspace. Only GitHub apps
    have `app_id` and `installation_id`. Only the kind `ssh` has `public_key`, to be registered as a deploy key of the
    repository, and the pinned `host_keys`.
    """

    id: UUID
    organization_id: UUID
    kind: IntegrationKind
    name: str
    base_url: str
    webhook_url: str | None
    app_id: str | None
    installation_id: int | None
    public_key: str | None
    host_keys: list[str]
    created_at: datetime


class IntegrationCreated(Integration):
    """A new integration: the only answer with `webhook_secret`, with which the forge signs its webhooks."""

    webhook_secret: str | None


class GithubIntegration(TypedDict):
    """An integration as clients of the v1 API list it."""

    id: UUID
    installation_id: int
    name: str


class GithubRepository(TypedDict):
    """A repository of any forge, as clients of the v1 API read it. `url` is accepted as `repo_url` of a deployment."""

    host_integration_id: UUID
    id: int
    name: str
    owner: str
    url: str
    default_branch: str


class Branch(TypedDict):
    name: str
    commit_sha: str


@dataclass(frozen=True)
class StoredIntegration:
    id: UUID
    number: int
    workspace_id: UUID
    kind: IntegrationKind
    name: str
    base_url: str
    app_id: str | None
    installation_id: int | None
    public_key: str | None
    host_keys: list[str]
    created_at: datetime


@dataclass(frozen=True)
class OpenForge:
    """A forge with its token, for requests to the forge. Answers to callers never contain it.

    `is_installation` tells that the token belongs to an installed app, not to a user.
    """

    kind: ForgeKind
    base_url: str
    token: str = field(repr=False)
    is_installation: bool = False


@dataclass(frozen=True)
class CommitStatus:
    """A commit status, as forges accept it. `context` tells the statuses of one commit apart."""

    commit_sha: str
    state: str  # pending, success or failure
    target_url: str
    description: str
    context: str


@dataclass(frozen=True)
class UntoldStatus:
    """The state of a revision that the forge of its commit does not know yet."""

    revision_id: UUID
    workspace_id: UUID
    integration_id: UUID
    deployment_name: str
    repo_url: str
    custom_url: str | None
    commit_sha: str
    state: str


def repository_name(repo_url: str, base_url: str) -> str:
    """Return the name, such as `owner/name`, of a repository that lies at the forge."""
    path = urlsplit(repo_url).path.removeprefix(urlsplit(base_url).path.rstrip("/"))
    return path.strip("/").removesuffix(".git")


def lies_at(repo_url: str, base_url: str) -> bool:
    """Return True if the repository is one of the forge at `base_url`: scheme, host, port and first folders agree."""
    repository, forge = urlsplit(repo_url), urlsplit(base_url)
    folder = forge.path.rstrip("/") + "/"
    return _origin(repository) == _origin(forge) and repository.path.startswith(folder)


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)
