"""Routes of `/auth/tokens` and `/auth/agents`: the tokens, and the agents that use them. No answer contains a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.oauth_tokens import (
    AgentConnectionListResponse,
    AgentConnectionResponse,
    CreateAgentConnectionRequest,
    OAuthTokenStatusResponse,
    OAuthTokenSummary,
    OAuthTokenUpdateRequest,
)
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_uuid
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import InvalidRequestError

router = APIRouter(prefix="/auth", tags=["Auth Service (v2)"])

_READ = Scope.OAUTH_TOKENS_READ
_USE = Scope.OAUTH_TOKENS_USE
_OF_EVERYBODY = Scope.OAUTH_PROVIDERS_MANAGE
_PROVIDER = {"provider_id": {"type": "string"}}
_NO_UUID = "must be a UUID"
AgentId = Annotated[str, Path(min_length=1, max_length=255)]


@router.get("/tokens", **operation(gives=list[OAuthTokenSummary], errors=(*REFUSED, 422), query=_PROVIDER))
async def list_oauth_tokens_for_user(request: Request, caller: Caller = needs(_READ)) -> Response:
    """List the caller's tokens, and those that the caller obtained for users, newest first."""
    return json_answer(await control(request).oauth_tokens.list(caller, request.query_params.get("provider_id")))


@router.delete("/tokens", **operation(gives=dict[str, str], errors=(*REFUSED, 422), query=_PROVIDER))
async def delete_oauth_tokens_for_user(request: Request, caller: Caller = needs(_USE)) -> Response:
    """Revoke all tokens of a provider that the caller has, or obtained for users."""
    provider_id = _provider(request)
    count = await control(request).oauth_tokens.revoke_all(caller, provider_id)
    return json_answer({"message": f"{count} tokens of {provider_id} revoked", "provider_id": provider_id})


@router.get("/tokens/exists", **operation(gives=OAuthTokenStatusResponse, errors=(*REFUSED, 422), query=_PROVIDER))
async def check_oauth_token_exists(request: Request, caller: Caller = needs(_READ)) -> Response:
    """Tell whether the caller has, or obtained, a token of the provider."""
    return json_answer({"has_token": await control(request).oauth_tokens.exists(caller, _provider(request))})


@router.get("/tokens/workspace/slack/exists", **operation(gives=OAuthTokenStatusResponse, errors=REFUSED))
async def check_workspace_slack_tokens_exist(request: Request, caller: Caller = needs(_READ)) -> Response:
    """Tell whether anybody in the workspace has a token of a Slack provider."""
    return json_answer({"has_token": await control(request).oauth_tokens.slack_exists(caller)})


@router.delete("/tokens/workspace/slack", **operation(gives=dict[str, str], errors=REFUSED))
async def revoke_all_slack_tokens_for_workspace(request: Request, caller: Caller = needs(_OF_EVERYBODY)) -> Response:
    """Revoke the tokens of Slack providers of everybody in the workspace."""
    count = await control(request).oauth_tokens.revoke_slack(caller)
    return json_answer({"message": f"{count} tokens of Slack revoked"})


@router.delete("/tokens/{token_id}", **operation(status=204, errors=(*REFUSED, 404, 422)))
async def delete_single_oauth_token(request: Request, token_id: UuidText, caller: Caller = needs(_USE)) -> Response:
    """Revoke a token. Its provider is told soon afterwards, if it has an endpoint for that."""
    await control(request).oauth_tokens.revoke(caller, read_uuid(token_id, _NO_UUID, "path", "token_id"))
    return empty_answer()


@router.patch(
    "/tokens/{token_id}/metadata",
    **operation(body=OAuthTokenUpdateRequest, gives=OAuthTokenSummary, errors=(*REFUSED, 404, 422)),
)
async def update_token_label(request: Request, token_id: UuidText, caller: Caller = needs(_USE)) -> Response:
    """Name the account that a token is for, or make the token the user's default."""
    new = await read_json(request, OAuthTokenUpdateRequest)
    found = read_uuid(token_id, _NO_UUID, "path", "token_id")
    return json_answer(await control(request).oauth_tokens.update(caller, found, new))


@router.get("/agents/{agent_id}/connections", **operation(gives=AgentConnectionListResponse, errors=(*REFUSED, 422)))
async def list_connections(request: Request, agent_id: AgentId, caller: Caller = needs(_READ)) -> Response:
    """List the tokens that an agent uses, newest connection first."""
    return json_answer(await control(request).oauth_tokens.connections(caller, agent_id))


@router.post(
    "/agents/{agent_id}/connections",
    **operation(
        body=CreateAgentConnectionRequest, gives=AgentConnectionResponse, errors=(*REFUSED, 404, 422), status=201
    ),
)
async def create_connection(request: Request, agent_id: AgentId, caller: Caller = needs(_USE)) -> Response:
    """Let an agent use this token of its user, and no others that are not connected."""
    new = await read_json(request, CreateAgentConnectionRequest)
    connection = await control(request).oauth_tokens.connect(caller, agent_id, new.oauth_token_id)
    return json_answer(connection, status=201)


@router.delete("/agents/{agent_id}/connections/{connection_id}", **operation(status=204, errors=(*REFUSED, 404, 422)))
async def remove_connection(
    request: Request, agent_id: AgentId, connection_id: UuidText, caller: Caller = needs(_USE)
) -> Response:
    """End an agent's use of a token; the token stays."""
    found = read_uuid(connection_id, _NO_UUID, "path", "connection_id")
    await control(request).oauth_tokens.disconnect(caller, agent_id, found)
    return empty_answer()


def _provider(request: Request) -> str:
    provider_id = request.query_params.get("provider_id")
    if not provider_id:
        raise InvalidRequestError("provider_id is required", "query", "provider_id")
    return provider_id
