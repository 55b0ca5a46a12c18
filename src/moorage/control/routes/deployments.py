"""`/deployments`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from moorage.control.records.deployments import (
    Deployment,
    DeploymentCreate,
    DeploymentFilter,
    DeploymentPatch,
    DeploymentsList,
    DeploymentType,
    FreeCount,
)
from moorage.control.records.states import DeploymentStatus
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json, read_uuid
from moorage.kernel.access import Caller, Scope

router = APIRouter(prefix="/deployments", tags=["Deployments (v2)"])

Limit = Annotated[int, Query(ge=1, le=100)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Words = Annotated[str | None, Query(max_length=4000)]
_IDS_MAX = 100


class Deleted(TypedDict):
    """The outcome for one deployment. `detail` is the reason if it failed."""

    id: UUID
    deleted: bool
    detail: str | None


class DeletedList(TypedDict):
    results: list[Deleted]


@router.get("", **operation(gives=DeploymentsList, errors=(*REFUSED, 422)))
async def list_deployments(
    request: Request,
    limit: Limit = 20,
    offset: Offset = 0,
    name: Words = None,
    name_contains: Words = None,
    status: DeploymentStatus | None = None,
    remote_reconciled: bool | None = None,
    tag_value_ids: Words = None,
    image_version: Words = None,
    deployment_type: DeploymentType | None = None,
    deployment_ids: Words = None,
    agent_id: Words = None,
    agent_environment: Words = None,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the deployments of the workspace, newest first. No deployment has tags, image versions or agent ids here, or is
    reconciled remotely: a search for one of these gives an empty list.
    """
    ids = [
        read_uuid(word.strip(), "deployment_ids: must be UUIDs", "query", "deployment_ids")
        for word in (deployment_ids or "").split(",")
        if word
    ]
    if tag_value_ids or image_version or agent_id or agent_environment or remote_reconciled:
        ids, deployment_ids = [], "none"
    wanted = DeploymentFilter(
        name=name or None,
        name_contains=name_contains or None,
        status=status,
        deployment_type=deployment_type,
        ids=ids if deployment_ids else None,
    )
    return json_answer(await control(request).deployments.list(caller, wanted, limit, offset))


@router.post("", **operation(body=DeploymentCreate, gives=Deployment, status=201, errors=(400, *REFUSED, 409, 422)))
async def create_deployment(request: Request, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)) -> Response:
    """Make a deployment with its first revision, unless an upload or an image is to follow."""
    new = await read_json(request, DeploymentCreate)
    return json_answer(await control(request).deployments.create(caller, new), 201)


@router.delete("", **operation(gives=DeletedList, errors=(*REFUSED, 404, 422), also={207: DeletedList}))
async def delete_deployments(
    request: Request,
    deployment_ids: Annotated[list[UUID], Query(min_length=1, max_length=_IDS_MAX)],
    caller: Caller = needs(Scope.DEPLOYMENTS_WRITE),
) -> Response:
    """Delete several deployments. 207 if some of them did not exist, 404 if none did."""
    missing = await control(request).deployments.delete_many(caller, deployment_ids)
    results: list[Deleted] = [
        {
            "id": deployment_id,
            "deleted": deployment_id not in missing,
            "detail": f"Deployment ID {deployment_id} not found." if deployment_id in missing else None,
        }
        for deployment_id in dict.fromkeys(deployment_ids)
    ]
    return json_answer({"results": results}, 207 if missing else 200)


# These routes must come before those that take an id.
@router.get("/free-count", **operation(gives=FreeCount, errors=REFUSED))
async def count_free_deployments(request: Request, caller: Caller = needs(Scope.DEPLOYMENTS_READ)) -> Response:
    """Count the deployments of the free types in the workspace."""
    return json_answer({"count": await control(request).deployments.count_free(caller)})


@router.get("/{deployment_id}", **operation(gives=Deployment, errors=(*REFUSED, 404, 422)))
async def get_deployment(
    request: Request, deployment_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """Return a deployment, without the values of its secrets."""
    return json_answer(await control(request).deployments.get(caller, deployment_id))


@router.patch(
    "/{deployment_id}", **operation(body=DeploymentPatch, gives=Deployment, errors=(400, *REFUSED, 404, 409, 422))
)
async def patch_deployment(
    request: Request, deployment_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Change a deployment. A change of source, secrets or resources makes a revision; other changes are only stored."""
    patch = await read_json(request, DeploymentPatch)
    return json_answer(await control(request).deployments.update(caller, deployment_id, patch))


@router.delete("/{deployment_id}", **operation(status=204, errors=(*REFUSED, 404, 422)))
async def delete_deployment(
    request: Request,
    deployment_id: UUID,
    delete_tracing_project: bool = False,
    caller: Caller = needs(Scope.DEPLOYMENTS_WRITE),
) -> Response:
    """Delete a deployment. Callers no longer find it; its agent, database and files are removed soon after."""
    await control(request).deployments.delete(caller, deployment_id, deletes_project=delete_tracing_project)
    return empty_answer()
