"""Tokens of OAuth providers, the sign-ins that bring them, and the agents that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from typing_extensions import TypedDict

from moorage.control.records.oauth import ProviderId
from moorage.kernel.crypto import SealedColumn
from moorage.worker.leases import Lease

SEALED_TOKEN = SealedColumn("oauth_tokens", "id", "sealed_token")
SEALED_VERIFIER = SealedColumn("oauth_sign_ins", "id", "sealed_verifier")

Word = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
# The characters of RFC 6749, section 3.3.
OAuthScope = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$")]
SCOPES_MAX = 100
TOKEN_CHARS_MAX = 32_768
REFRESH_EARLY_S = 300
WAIT_S_MAX = 300


class AuthAuthenticateRequest(BaseModel):
    """A request for a user's token. `user_id` names the user; `ls_user_id` does if `user_id` is absent."""

    model_config = ConfigDict(extra="ignore")

    provider: ProviderId
    scopes: Annotated[list[OAuthScope], Field(max_length=SCOPES_MAX)]
    user_id: Word | None = None
    ls_user_id: Word | None = None
    agent_id: Word | None = None
    use_agent_builder_public_oauth: bool = False
    force_new: bool = False
    token_id: UUID | None = None
    is_default: bool = True

    @field_validator("use_agent_builder_public_oauth")
    @classmethod
    def _refuse_public_client(cls, value: bool) -> bool:  # noqa: FBT001 - a validator takes the value alone
        if value:
            raise ValueError("this installation has no OAuth clients of its own: make a provider and name it")
        return value


class OAuthFinalizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    code: Annotated[str, Field(min_length=1, max_length=8192)]
    state: Annotated[str, Field(min_length=1, max_length=512)]


class OAuthTokenUpdateRequest(BaseModel):
    """A change of a token. Absent and null fields stay as they are."""

    model_config = ConfigDict(extra="ignore")

    provider_account_label: Word | None = None
    is_default: bool | None = None


class CreateAgentConnectionRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    oauth_token_id: UUID


class AuthAuthenticateResponse(TypedDict):
    status: Literal["completed", "pending", "connection_required", "token_expired"]
    url: str | None
    auth_id: str | None
    token: str | None
    user_id: str | None
    metadata: dict[str, Any] | None


class AuthWaitResponse(TypedDict):
    status: Literal["completed", "pending", "timeout", "not_found"]
    token: str | None


class OAuthTokenSummary(TypedDict):
    id: UUID
    provider_id: str
    provider_account_label: str | None
    scopes: list[str]
    expires_at: datetime | None
    is_default: bool
    created_at: datetime
    updated_at: datetime


class OAuthTokenStatusResponse(TypedDict):
    has_token: bool


class AgentConnectionResponse(TypedDict):
    id: UUID
    agent_id: str
    oauth_token_id: UUID
    provider_id: str
    provider_account_label: str | None
    scopes: list[str]
    expires_at: datetime | None
    created_by: str
    created_at: datetime


class AgentConnectionListResponse(TypedDict):
    data: list[AgentConnectionResponse]


@dataclass(frozen=True)
class OAuthClient:
    """A provider with its secret decrypted, for requests to the provider."""

    row_id: UUID
    provider_id: str
    client_id: str
    client_secret: str | None
    auth_url: str
    token_url: str
    revocation_url: str | None
    issuer: str | None
    mcp_server_url: str | None
    provider_type: str | None
    token_endpoint_auth_method: str
    uses_pkce: bool
    code_challenge_method: str
    changed_at: datetime

    @property
    def proves_itself(self) -> bool:
        """Return True if sign-ins use PKCE. A client without a secret has no other proof."""
        return self.uses_pkce or self.token_endpoint_auth_method == "none"  # noqa: S105 - a word of the wire


@dataclass(frozen=True)
class Grant:
    """A grant of a provider. Never logged: its repr shows nothing."""

    access_token: str
    refresh_token: str | None
    scopes: list[str] | None
    expires_in_s: float | None

    def __repr__(self) -> str:
        return "Grant(…)"

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires_in_s is None else datetime.now(UTC) + timedelta(seconds=self.expires_in_s)

    @property
    def refresh_at(self) -> datetime | None:
        """Return when to refresh the token: five minutes before its end, or a fifth of its life if that is less. None:
        never.
        """
        if self.refresh_token is None or self.expires_in_s is None:
            return None
        early_s = min(REFRESH_EARLY_S, self.expires_in_s / 5)
        return datetime.now(UTC) + timedelta(seconds=self.expires_in_s - early_s)


@dataclass(frozen=True)
class LeasedToken:
    """A token that is to be refreshed or revoked."""

    lease: Lease
    workspace_id: UUID
    provider_id: str
    status: str
    sealed_token: bytes
    failures: int


def read_grant(told: Mapping[str, Any], provider_type: str | None) -> Grant:
    """Return the grant in the answer of a token endpoint. Raises ValueError, whose text quotes
    nothing of the answer.
    """
    if provider_type == "slack" and isinstance(told.get("authed_user"), Mapping) and not told.get("access_token"):
        told = told["authed_user"]  # Slack puts a person's token there, and a bot's at the top
    access, refresh, seconds = told.get("access_token"), told.get("refresh_token"), told.get("expires_in")
    if not _is_token(access):
        raise ValueError("the answer holds no access token")
    if refresh is not None and not _is_token(refresh):
        raise ValueError("the refresh token is none")
    try:
        expires_in_s = None if seconds is None else min(max(float(seconds), 0.0), 10 * 365 * 86_400.0)
    except (TypeError, ValueError):
        raise ValueError("expires_in is no number") from None
    return Grant(str(access), refresh, split_scopes(told.get("scope")), expires_in_s)


def _is_token(value: object) -> bool:
    """Return True for one line of visible ASCII, since the token becomes a header."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= TOKEN_CHARS_MAX
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def split_scopes(text: object) -> list[str] | None:
    """Return the scopes of an answer. None means that the answer names no scopes: all requested ones were granted."""
    return text.replace(",", " ").split()[:SCOPES_MAX] if isinstance(text, str) and text.strip() else None


def sent_scopes(scopes: Iterable[str], provider_type: str | None) -> list[str]:
    """Return the scopes to request. Microsoft gives a refresh token only for the scope `offline_access`."""
    extra = ["offline_access"] if provider_type == "microsoft" else []
    return list(dict.fromkeys([*scopes, *extra]))
