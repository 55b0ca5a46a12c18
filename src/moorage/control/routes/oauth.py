"""Routes of `/auth/providers`: the OAuth providers from which agents obtain tokens."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.oauth import (
    MCPOAuthProviderCreateRequest,
    OAuthProvider,
    OAuthProviderCreate,
    OAuthProviderUpdate,
    ProviderId,
)
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope

router = APIRouter(prefix="/auth/providers", tags=["Auth Service (v2)"])

_READ = Scope.OAUTH_PROVIDERS_READ
_MANAGE = Scope.OAUTH_PROVIDERS_MANAGE


@router.post(
    "/mcp-discover",
    **operation(body=MCPOAuthProviderCreateRequest, gives=OAuthProvider, errors=(*REFUSED, 400, 409, 422, 502)),
)
async def create_mcp_oauth_provider(request: Request, caller: Caller = needs(_MANAGE)) -> Response:
    """Find the authorization server of an MCP server and register a client there."""
    asked = await read_json(request, MCPOAuthProviderCreateRequest)
    return json_answer(await control(request).discovery.create(caller, asked))


@router.get("", **operation(gives=list[OAuthProvider], errors=REFUSED))
async def list_oauth_providers(request: Request, caller: Caller = needs(_READ)) -> Response:
    """List the OAuth providers of the workspace, newest first."""
    return json_answer(await control(request).oauth_providers.list(caller))


@router.post("", **operation(body=OAuthProviderCreate, gives=OAuthProvider, errors=(*REFUSED, 409, 422)))
async def create_oauth_provider(request: Request, caller: Caller = needs(_MANAGE)) -> Response:
    """Make an OAuth provider. Its client secret is stored encrypted and never given out."""
    new = await read_json(request, OAuthProviderCreate)
    return json_answer(await control(request).oauth_providers.create(caller, new))


@router.get("/{provider_id}", **operation(gives=OAuthProvider, errors=(*REFUSED, 404, 422)))
async def get_oauth_provider(request: Request, provider_id: ProviderId, caller: Caller = needs(_READ)) -> Response:
    """Read an OAuth provider."""
    return json_answer(await control(request).oauth_providers.get(caller, provider_id))


@router.patch("/{provider_id}", **operation(body=OAuthProviderUpdate, gives=OAuthProvider, errors=(*REFUSED, 404, 422)))
async def update_oauth_provider(request: Request, provider_id: ProviderId, caller: Caller = needs(_MANAGE)) -> Response:
    """Change an OAuth provider. Sign-ins that are under way must be started again."""
    new = await read_json(request, OAuthProviderUpdate)
    return json_answer(await control(request).oauth_providers.update(caller, provider_id, new))


@router.delete("/{provider_id}", **operation(gives=dict[str, str], errors=(*REFUSED, 404, 422)))
async def delete_oauth_provider(request: Request, provider_id: ProviderId, caller: Caller = needs(_MANAGE)) -> Response:
    """Delete an OAuth provider with the tokens that it gave."""
    await control(request).oauth_providers.delete(caller, provider_id)
    return json_answer({"message": f"OAuth provider {provider_id} deleted", "provider_id": provider_id})
