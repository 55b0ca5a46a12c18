"""Routes of integrations: `/v1/integrations` for GitHub alone, as clients know it, and moorage's own `/v2/integrations`
for all forges.
"""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.integrations import (
    Branch,
    GithubIntegration,
    GithubRepository,
    Integration,
    IntegrationCreate,
    IntegrationCreated,
    RepositoryName,
)
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_body, read_json
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError

v1_router = APIRouter(prefix="/integrations", tags=["Integrations (v1)"])
v2_router = APIRouter(prefix="/integrations", tags=["Integrations (v2)"])

_READ = Scope.DEPLOYMENTS_READ
_WRITE = Scope.DEPLOYMENTS_WRITE
_OF_FORGE = (*REFUSED, 400, 404, 422, 502)
_PUSH_BYTES_MAX = 5 * 2**20
_REPOSITORY = TypeAdapter(RepositoryName)


@v1_router.get("/github/install", **operation(gives=list[GithubIntegration], errors=REFUSED))
async def list_github_integrations(request: Request, caller: Caller = needs(_READ)) -> Response:
    """List the integrations of GitHub, newest first."""
    return json_answer(await control(request).integrations.list_github(caller))


@v1_router.get("/github/{integration_id}/repos", **operation(gives=list[GithubRepository], errors=_OF_FORGE))
async def list_github_repositories(request: Request, integration_id: UUID, caller: Caller = needs(_READ)) -> Response:
    """List the repositories that an integration of GitHub reaches."""
    return json_answer(await control(request).integrations.repositories(caller, integration_id, of_github=True))


@v1_router.get("/forge/github/install", **operation(gives=list[GithubIntegration], errors=REFUSED))
async def list_forge_github_integrations(request: Request, caller: Caller = needs(_READ)) -> Response:
    """List the integrations of GitHub, newest first: this installation has one kind of them."""
    return await list_github_integrations(request, caller)


@v1_router.get("/forge/github/{integration_id}/repos", **operation(gives=list[GithubRepository], errors=_OF_FORGE))
async def list_forge_github_repositories(
    request: Request, integration_id: UUID, caller: Caller = needs(_READ)
) -> Response:
    """List the repositories that an integration of GitHub reaches."""
    return await list_github_repositories(request, integration_id, caller)


@v2_router.get("", **operation(gives=list[Integration], errors=REFUSED))
async def list_integrations(request: Request, caller: Caller = needs(_READ)) -> Response:
    """List the integrations of the workspace, newest first."""
    return json_answer(await control(request).integrations.list(caller))


@v2_router.post(
    "", **operation(body=IntegrationCreate, gives=IntegrationCreated, errors=(*REFUSED, 409, 422), status=201)
)
async def create_integration(request: Request, caller: Caller = needs(_WRITE)) -> Response:
    """Make an integration of a forge. Its token is stored encrypted and never given out."""
    new = await read_json(request, IntegrationCreate)
    answer = json_answer(await control(request).integrations.create(caller, new), status=201)
    answer.headers["cache-control"] = "no-store"  # the answer contains the secret of the webhook
    return answer


@v2_router.get("/{integration_id}", **operation(gives=Integration, errors=(*REFUSED, 404, 422)))
async def get_integration(request: Request, integration_id: UUID, caller: Caller = needs(_READ)) -> Response:
    """Read an integration."""
    return json_answer(await control(request).integrations.get(caller, integration_id))


@v2_router.delete("/{integration_id}", **operation(gives=dict[str, str], errors=(*REFUSED, 404, 422)))
async def delete_integration(request: Request, integration_id: UUID, caller: Caller = needs(_WRITE)) -> Response:
    """Delete an integration. Deployments that name it fetch their repository without credentials from then on."""
    await control(request).integrations.delete(caller, integration_id)
    return json_answer({"message": f"Integration {integration_id} deleted", "id": str(integration_id)})


@v2_router.get("/{integration_id}/repositories", **operation(gives=list[GithubRepository], errors=_OF_FORGE))
async def list_repositories(request: Request, integration_id: UUID, caller: Caller = needs(_READ)) -> Response:
    """List the repositories that an integration reaches."""
    return json_answer(await control(request).integrations.repositories(caller, integration_id))


@v2_router.get(
    "/{integration_id}/branches",
    **operation(
        gives=list[Branch], errors=_OF_FORGE, query={"repository": {"type": "string", "example": "owner/name"}}
    ),
)
async def list_branches(request: Request, integration_id: UUID, caller: Caller = needs(_READ)) -> Response:
    """List the branches of a repository such as `owner/name`, each with its newest commit."""
    try:
        repository = _REPOSITORY.validate_python(request.query_params.get("repository"))
    except ValidationError:
        raise InvalidRequestError("repository must name one, such as owner/name", "query", "repository") from None
    return json_answer(await control(request).integrations.branches(caller, integration_id, repository))


@v2_router.post("/{integration_id}/pushes", **operation(gives=dict[str, int], errors=(400, 401, 413, 422)))
async def take_push(request: Request, integration_id: UUID) -> Response:
    """Take a webhook of the forge, signed with the integration's `webhook_secret`: the branches that deployments follow in the
    pushed repository are looked at at once.
    """
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > _PUSH_BYTES_MAX:
        raise BodyTooLargeError(f"A webhook needs a content-length, of at most {_PUSH_BYTES_MAX} bytes")
    body = bytes(await read_body(request))
    return json_answer(
        {"deployments": await control(request).integrations.take_push(integration_id, request.headers, body)}
    )
