"""OAuth providers, at which agents obtain tokens on behalf of their users."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel, ConfigDict, StringConstraints
from typing_extensions import TypedDict

from moorage.control.records.urls import Url
from moorage.kernel.crypto import SealedColumn

SEALED_CLIENT_SECRET = SealedColumn("oauth_providers", "id", "sealed_client_secret")

# No control characters: it becomes part of paths.
ProviderId = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
ClientId = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
ClientSecret = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ProviderType = Literal["microsoft", "salesforce", "slack"]
TokenEndpointAuthMethod = Literal["none", "client_secret_basic", "client_secret_post"]


class OAuthProviderCreate(BaseModel):
    model_config = ConfigDict(extra="ignore")

    provider_id: ProviderId
    name: Name
    client_id: ClientId
    client_secret: ClientSecret | None = None
    auth_url: Url
    token_url: Url
    uses_pkce: bool = False
    code_challenge_method: Literal["S256", "plain"] = "S256"
    provider_type: ProviderType | None = None
    token_endpoint_auth_method: TokenEndpointAuthMethod = "client_secret_post"  # noqa: S105 - a word of the wire
    revocation_url: Url | None = None


class OAuthProviderUpdate(BaseModel):
    """A change of a provider. Absent and null fields stay as they are."""

    model_config = ConfigDict(extra="ignore")

    name: Name | None = None
    client_id: ClientId | None = None
    client_secret: ClientSecret | None = None
    auth_url: Url | None = None
    token_url: Url | None = None
    uses_pkce: bool | None = None
    code_challenge_method: Literal["S256", "plain"] | None = None
    provider_type: ProviderType | None = None
    token_endpoint_auth_method: TokenEndpointAuthMethod | None = None
    revocation_url: Url | None = None


class MCPOAuthProviderCreateRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    provider_id: ProviderId
    name: Name
    mcp_server_url: Url


class Discovered(NamedTuple):
    """The discovered endpoints and issuer of a provider."""

    mcp_server_url: str
    issuer: str


class OAuthProvider(TypedDict):
    """A provider, without its client secret, which no answer contains. `organization_id` is the workspace."""

    id: UUID
    organization_id: UUID
    provider_id: str
    name: str
    client_id: str
    auth_url: str
    token_url: str
    uses_pkce: bool
    code_challenge_method: str | None
    provider_type: str | None
    mcp_server_url: str | None
    token_endpoint_auth_method: str
    is_dynamic_client: bool
    revocation_url: str | None
    created_at: datetime
    updated_at: datetime
