"""Routes of `/deployments/{id}/revisions`."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.deployments import Deployment, DeploymentPatch
from moorage.control.records.revisions import Revision, RevisionsList
from moorage.control.records.states import RevisionStatus
from moorage.control.routes.deployments import Limit, Offset, Words
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import InvalidRequestError

router = APIRouter(prefix="/deployments/{deployment_id}/revisions", tags=["Deployments (v2)"])


def read_statuses(words: str | None) -> list[RevisionStatus] | None:
    """Parse statuses that are separated by commas. Raises InvalidRequestError for an unknown one."""
    try:
        return [RevisionStatus(word.strip()) for word in words.split(",") if word] if words else None
    except ValueError:
        raise InvalidRequestError(f"status: must be among {', '.join(RevisionStatus)}", "query", "status") from None


@router.get("", **operation(gives=RevisionsList, errors=(*REFUSED, 404, 422)))
async def list_revisions(
    request: Request,
    deployment_id: UUID,
    limit: Limit = 20,
    offset: Offset = 0,
    status: Words = None,
    remote_reconciled: bool | None = None,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the revisions of a deployment, newest first. None is reconciled remotely."""
    statuses = [] if remote_reconciled else read_statuses(status)
    return json_answer(await control(request).revisions.list(caller, deployment_id, statuses, limit, offset))


@router.post("", **operation(body=DeploymentPatch, gives=Revision, errors=(400, *REFUSED, 404, 409, 422)))
async def create_revision(
    request: Request, deployment_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Make a revision of a deployment, with changes if there are any, and return it."""
    patch = await read_json(request, DeploymentPatch)
    return json_answer(await control(request).deployments.create_revision(caller, deployment_id, patch))


@router.get("/{revision_id}", **operation(gives=Revision, errors=(*REFUSED, 404, 422)))
async def get_revision(
    request: Request, deployment_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """Return a revision with its state."""
    return json_answer(await control(request).revisions.get(caller, deployment_id, revision_id))


@router.post("/{revision_id}/redeploy", **operation(gives=Deployment, errors=(400, *REFUSED, 404, 422)))
async def redeploy_revision(
    request: Request, deployment_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Roll back: make a revision that uses the build of this one, if it still exists."""
    room = control(request)
    await room.revisions.redeploy(caller, deployment_id, revision_id)
    return json_answer(await room.deployments.get(caller, deployment_id))


@router.post("/{revision_id}/interrupt", **operation(gives=Revision, errors=(400, *REFUSED, 404, 422)))
async def interrupt_revision(
    request: Request, deployment_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """End a revision that is stuck, so that the next one in the queue continues."""
    return json_answer(await control(request).revisions.interrupt(caller, deployment_id, revision_id))
