"""Workspaces and API keys, with their rows, requests and answers. Pure functions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, ClassVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import TypedDict

from moorage.kernel.access import Caller, Plan, Scope, checked_scope, only_reads
from moorage.kernel.errors import ForbiddenError

ALL_SCOPES = frozenset(Scope)
# Scopes that a key gets only if the request names them.
BY_NAME_SCOPES = frozenset({Scope.SECRETS_READ, Scope.OPERATOR})
DEFAULT_SCOPES = ALL_SCOPES - BY_NAME_SCOPES
# The first key of the installation belongs to its operator.
FIRST_SCOPES = DEFAULT_SCOPES | {Scope.OPERATOR}

KEY_CHARS_MIN, KEY_CHARS_MAX = 20, 200
_KEY_PREFIX = "lsv2_pt_"  # the format that clients and secret scanners know
SCOPES_MAX = 200
TOKEN_LIFE_S_MAX = 3600


class WrongWorkspaceError(ForbiddenError):
    """The key or token does not open the workspace of the request, or it opens several and the request names none.

    Clients look for the code in the body's `error` and for "requires workspace specification" in its text, and then ask
    for a workspace.
    """

    code: ClassVar[str] = "org_scoped_key_requires_workspace"


@dataclass(frozen=True)
class Member(Caller):
    """A caller with all workspaces that the same credentials open, and the time when the credentials expire."""

    workspace_ids: tuple[UUID, ...]
    expires_at: datetime | None = None


# --- API keys ---------------------------------------------------------------------------------------------------------


def new_api_key() -> str:
    """Return a key of 128 random bits, of which `short_key_of` shows none."""
    return f"{_KEY_PREFIX}{secrets.token_hex(16)}_{secrets.token_hex(5)}"


def digest_of(credential: str) -> bytes:
    return sha256(credential.encode()).digest()


def short_key_of(key: str) -> str:
    """Return the parts of a key that people may see, to tell keys apart: of one that somebody chose, only the end."""
    return f"{_KEY_PREFIX if key.startswith(_KEY_PREFIX) else ''}...{key[-4:]}"


def actor_of_key(key_id: UUID) -> str:
    """Return the actor that is recorded for changes made with the key or one of its tokens."""
    return f"key:{key_id}"


class ApiKey(TypedDict):
    """A key in a list. `description` is its name. `short_key` is the first and last characters of the key."""

    id: UUID
    short_key: str
    description: str
    scopes: list[str]
    read_only: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class NewApiKey(ApiKey):
    """A new key. Only this answer contains the key itself."""

    key: str


class StoredKey(TypedDict):
    """A stored key, with the fields that admission needs."""

    id: UUID
    workspace_id: UUID
    plan: str
    scopes: list[str]
    expires_at: datetime | None
    revoked_at: datetime | None


class RevokedKey(TypedDict):
    id: UUID
    workspace_id: UUID


@dataclass(frozen=True)
class KeyToken:
    """A token or a session. It stands for a key and has at most the key's scopes; None means all of them."""

    key_id: UUID
    scopes: frozenset[str] | None
    expires_in_s: float


class LoginLink(TypedDict):
    """A link that opens the console once; `expires_in` is in seconds."""

    url: str
    expires_in: int


class Login(BaseModel):
    """Credentials that open the console: an API key, or the code of a link."""

    model_config = ConfigDict(extra="forbid")

    api_key: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=KEY_CHARS_MAX)] | None = (
        Field(None, description="An API key, as it was shown once.")
    )
    code: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="What stands behind the # of a link of `POST /api/v1/auth/login-link`."
    )

    @model_validator(mode="after")
    def _is_one(self) -> Login:
        if (self.api_key is None) is (self.code is None):
            raise ValueError("give either api_key or code")
        return self


def _zoned(moment: datetime) -> datetime:
    """Return the time with a zone. The SDKs send times without one, which are UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# No control characters: names are shown in terminals and logs.
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Handle = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_-]*$")]


ScopeText = Annotated[str, AfterValidator(checked_scope)]


class ApiKeyCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    description: Name = Field("Default API key", description="What the key is for.")
    read_only: bool = Field(False, description="Only the scopes that read, unless `scopes` names others.")
    scopes: list[ScopeText] | None = Field(
        None,
        min_length=1,
        max_length=SCOPES_MAX,
        description="The key's rights. Default: those of the caller, but neither `secrets:read` nor `operator`.",
    )
    workspace_id: UUID | None = Field(
        None, description="For an operator: the workspace that the key opens. Default: the caller's."
    )
    expires_at: Annotated[datetime, AfterValidator(_zoned)] | None = Field(
        None, description="When the key stops to work. Default: never."
    )


def default_scopes(held: frozenset[str], *, read_only: bool) -> frozenset[str]:
    """Return the scopes of a new key whose request names none."""
    return frozenset(scope for scope in held - BY_NAME_SCOPES if only_reads(scope) or not read_only)


def has_passed(moment: datetime | None) -> bool:
    return moment is not None and moment <= datetime.now(UTC)


# --- Tokens -----------------------------------------------------------------------------------------------------------


class TokenCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    scopes: list[ScopeText] | None = Field(
        None, min_length=1, max_length=SCOPES_MAX, description="Fewer than the key has. Default: all of them."
    )
    expires_in: int = Field(900, ge=60, le=TOKEN_LIFE_S_MAX, description="Seconds that the token is good for.")


class Token(TypedDict):
    """A token with the field names of OAuth."""

    access_token: str
    token_type: str
    expires_in: int
    scope: str


class CallerFacts(TypedDict):
    """The caller that a request was admitted as, and the time when its credential expires."""

    workspace_id: UUID
    actor: str
    scopes: list[str]
    expires_at: datetime | None


class RevokedKeys(TypedDict):
    """Keys that were revoked since the last page, and the cursor for the next page."""

    key_ids: list[UUID]
    cursor: str


# --- Workspaces -------------------------------------------------------------------------------------------------------


class Workspace(TypedDict):
    """A workspace. Some fields, such as `organization_id`, are there only because clients require them."""

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
    """A workspace with the permissions that the caller has in it."""

    read_only: bool
    role_id: UUID | None
    role_name: str | None
    permissions: list[str]


class NewWorkspace(Workspace):
    """A new workspace with its first key. Only this answer contains the key."""

    api_key: str


class Settings(TypedDict):
    """Settings that the tracing SDKs ask for to learn which workspace they write to."""

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
    """Changes of a workspace. Fields that are missing or null stay unchanged. Only an operator may change `plan`."""

    model_config = ConfigDict(extra="ignore")

    display_name: Name | None = None
    tenant_handle: Handle | None = None
    plan: Plan | None = None


class HandleChange(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tenant_handle: Handle


class Rotation(TypedDict):
    """Progress of a rotation of the master key. When `left` is 0, no value needs an older key."""

    key_id: str
    rewrapped: int
    left: int
