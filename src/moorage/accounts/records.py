"""Workspaces and API keys: what they look like on the wire and in a row, and the pure functions on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, ClassVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.errors import ForbiddenError

ALL_SCOPES = frozenset(Scope)
# What a key holds that nobody chose scopes for: to read secrets is asked for by name or not had.
DEFAULT_SCOPES = ALL_SCOPES - {Scope.SECRETS_READ}
READ_SCOPES = frozenset(scope for scope in DEFAULT_SCOPES if scope.endswith(":read"))

KEY_CHARS_MIN, KEY_CHARS_MAX = 20, 200
TOKEN_LIFE_S_MAX = 3600


class WrongWorkspaceError(ForbiddenError):
    """The key or token is good, but not for the workspace that the request names, or it opens several and names none.

    Clients look for the code in the body's `error` and for "requires workspace specification" in its text, and then ask
    for a workspace.
    """

    code: ClassVar[str] = "org_scoped_key_requires_workspace"


@dataclass(frozen=True)
class Member(Caller):
    """A caller, and all workspaces that the same credentials open."""

    workspace_ids: tuple[UUID, ...]


# --- API keys ---------------------------------------------------------------------------------------------------------


def new_api_key() -> str:
    """128 random bits in the form that clients and secret scanners know; the short part makes it no easier to guess."""
    return f"lsv2_pt_{secrets.token_hex(16)}_{secrets.token_hex(5)}"


def digest_of(credential: str) -> bytes:
    return sha256(credential.encode()).digest()


def short_key_of(key: str) -> str:
    """Enough of a key to tell it from others, and no help in guessing it."""
    return f"{key[:8]}...{key[-4:]}"


class ApiKey(TypedDict):
    """A key as it is listed. `description` is its name; `short_key` begins and ends like it."""

    id: UUID
    short_key: str
    description: str
    scopes: list[str]
    read_only: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class NewApiKey(ApiKey):
    """A key as it is shown once, when it is made."""

    key: str


class StoredKey(TypedDict):
    """What admission needs to know of a key."""

    id: UUID
    workspace_id: UUID
    plan: str
    scopes: list[str]
    expires_at: datetime | None
    revoked_at: datetime | None


def _zoned(moment: datetime) -> datetime:
    """A time without a zone is UTC, as the SDKs send it."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# No control characters: names are shown in terminals and logs.
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Handle = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class ApiKeyCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    description: Name = Field("Default API key", description="What the key is for.")
    read_only: bool = Field(False, description="Only the scopes that read, unless `scopes` names others.")
    scopes: list[Scope] | None = Field(
        None, min_length=1, description="What the key may do. Default: what the caller may do, but not `secrets:read`."
    )
    expires_at: Annotated[datetime, AfterValidator(_zoned)] | None = Field(
        None, description="When the key stops to work. Default: never."
    )


def may_grant(held: frozenset[Scope]) -> frozenset[Scope]:
    """Nobody makes a key that may do more than they; but who may do all else may also name `secrets:read`."""
    return ALL_SCOPES if held >= DEFAULT_SCOPES else held


def known_scopes(words: Iterable[str]) -> frozenset[Scope]:
    """The scopes among the words. Others are no error: a token may serve other programs too."""
    return ALL_SCOPES & frozenset(words)


def has_passed(moment: datetime | None) -> bool:
    return moment is not None and moment <= datetime.now(UTC)


# --- Tokens -----------------------------------------------------------------------------------------------------------


class TokenCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    scopes: list[Scope] | None = Field(None, min_length=1, description="Fewer than the key has. Default: all of them.")
    expires_in: int = Field(900, ge=60, le=TOKEN_LIFE_S_MAX, description="Seconds that the token is good for.")


class Token(TypedDict):
    """In the words of OAuth."""

    access_token: str
    token_type: str
    expires_in: int
    scope: str


class CallerFacts(TypedDict):
    """Whom a request was admitted as."""

    workspace_id: UUID
    actor: str
    scopes: list[str]


# --- Workspaces -------------------------------------------------------------------------------------------------------


class Workspace(TypedDict):
    """`organization_id` and what else a single installation has no use for is there because clients require it."""

    id: UUID
    display_name: str
    tenant_handle: str | None
    plan: str
    is_personal: bool
    is_deleted: bool
    organization_id: UUID | None
    data_plane_url: str | None
    created_at: datetime
    updated_at: datetime


class ListedWorkspace(Workspace):
    """A workspace with what its reader may do in it."""

    read_only: bool
    role_id: UUID | None
    role_name: str | None
    permissions: list[str]


class NewWorkspace(Workspace):
    """A workspace as it is shown once, when it is made, with the key that opens it."""

    api_key: str


class Settings(TypedDict):
    """What the tracing SDKs ask for to learn where they are."""

    id: UUID
    display_name: str
    tenant_handle: str | None
    created_at: datetime


class WorkspaceCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    display_name: Name
    id: UUID | None = Field(None, description="Default: a new one.")
    tenant_handle: Handle | None = Field(None, description="A short name, unique in the installation.")
    plan: Plan | None = Field(None, description="Default: the installation's.")


class WorkspacePatch(BaseModel):
    """What is left out or null stays as it is."""

    model_config = ConfigDict(extra="ignore")

    display_name: Name | None = None
    tenant_handle: Handle | None = None
    plan: Plan | None = None


class HandleChange(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tenant_handle: Handle


class Rotation(TypedDict):
    """How far a rotation of the master key has come: no value that is left needs an older key when `left` is 0."""

    key_id: str
    rewrapped: int
    left: int
