"""Routes of `/v1/projects`: deployments under their first name. Current clients read logs here."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.deployments import DeploymentFilter
from moorage.control.records.logs import LogKind, LogPage, LogQuery
from moorage.control.records.projects import (
    Project,
    ProjectRevision,
    ProjectRevisionCreate,
    shown_project,
    shown_project_revision,
)
from moorage.control.routes.deployments import Limit, Offset, Words
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope

router = APIRouter(prefix="/projects", tags=["Projects (v1)"])

_ERRORS = (*REFUSED, 404, 422)


@router.get("", **operation(gives=list[Project], errors=(*REFUSED, 422)))
async def list_projects(
    request: Request,
    limit: Limit = 20,
    offset: Offset = 0,
    name_contains: Words = None,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the deployments of the workspace."""
    wanted = DeploymentFilter(name_contains=name_contains or None)
    found = await control(request).deployments.list(caller, wanted, limit, offset)
    return json_answer([shown_project(deployment) for deployment in found["resources"]])


@router.get("/{project_id}", **operation(gives=Project, errors=_ERRORS))
async def get_project(request: Request, project_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)) -> Response:
    """Return a deployment."""
    return json_answer(shown_project(await control(request).deployments.get(caller, project_id)))


@router.delete("/{project_id}", **operation(gives=Project, errors=_ERRORS))
async def delete_project(
    request: Request, project_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Delete a deployment with its processes, files and database."""
    room = control(request)
    deployment = await room.deployments.get(caller, project_id)
    await room.deployments.delete(caller, project_id, deletes_project=False)
    return json_answer(shown_project(deployment))


@router.get("/{project_id}/revisions", **operation(gives=list[ProjectRevision], errors=_ERRORS))
async def list_project_revisions(
    request: Request,
    project_id: UUID,
    limit: Limit = 20,
    offset: Offset = 0,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the revisions of a deployment, the newest first."""
    found = await control(request).revisions.list(caller, project_id, None, limit, offset)
    return json_answer([shown_project_revision(revision) for revision in found["resources"]])


@router.post("/{project_id}/revisions", **operation(body=ProjectRevisionCreate, gives=Project, errors=(400, *_ERRORS)))
async def create_project_revision(
    request: Request, project_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Make a revision of a deployment."""
    new, room = await read_json(request, ProjectRevisionCreate), control(request)
    await room.deployments.create_revision(caller, project_id, new.patch())
    return json_answer(shown_project(await room.deployments.get(caller, project_id)))


@router.get("/{project_id}/revisions/{revision_id}", **operation(gives=ProjectRevision, errors=_ERRORS))
async def get_project_revision(
    request: Request, project_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """Return a revision with its state."""
    return json_answer(shown_project_revision(await control(request).revisions.get(caller, project_id, revision_id)))


@router.post(
    "/{project_id}/revisions/{revision_id}/interrupt", **operation(gives=ProjectRevision, errors=(400, *_ERRORS))
)
async def interrupt_project_revision(
    request: Request, project_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """End a revision that is being built or deployed."""
    ended = await control(request).revisions.interrupt(caller, project_id, revision_id)
    return json_answer(shown_project_revision(ended))


@router.post(
    "/{project_id}/revisions/{revision_id}/build_logs", **operation(body=LogQuery, gives=LogPage, errors=_ERRORS)
)
async def list_build_logs(
    request: Request, project_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """Return lines that the build of a revision has written."""
    wanted = await read_json(request, LogQuery)
    return json_answer(await control(request).logs.page(caller, project_id, revision_id, LogKind.BUILD, wanted))


@router.post(
    "/{project_id}/revisions/{revision_id}/deploy_logs", **operation(body=LogQuery, gives=LogPage, errors=_ERRORS)
)
async def list_revision_deploy_logs(
    request: Request, project_id: UUID, revision_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """Return lines that the processes of a revision have written."""
    wanted = await read_json(request, LogQuery)
    return json_answer(await control(request).logs.page(caller, project_id, revision_id, LogKind.DEPLOY, wanted))


@router.post("/{project_id}/deploy_logs", **operation(body=LogQuery, gives=LogPage, errors=_ERRORS))
async def list_deploy_logs(
    request: Request, project_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_READ)
) -> Response:
    """List log lines of all revisions."""
    wanted = await read_json(request, LogQuery)
    return json_answer(await control(request).logs.page(caller, project_id, None, LogKind.DEPLOY, wanted))
