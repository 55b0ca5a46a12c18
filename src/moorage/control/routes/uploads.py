"""Routes of uploads for `langgraph deploy`: an address for a source archive, and the upload itself."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.uploads import UploadUrl
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.kernel.access import Caller, Scope

router = APIRouter(tags=["Deployments (v2)"])

_EXPIRES_MAX = 2**40


@router.post("/deployments/{deployment_id}/upload-url", **operation(gives=UploadUrl, errors=(400, *REFUSED, 404, 422)))
async def create_upload_url(
    request: Request, deployment_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Make an address for the upload of one archive, good for an hour."""
    return json_answer(
        await control(request).uploads.create_url(caller, deployment_id), headers={"Cache-Control": "no-store"}
    )


@router.put("/uploads/{path:path}", **operation(errors=(400, 403, 404, 409, 413, 422, 503)))
async def receive_upload(
    request: Request,
    path: str,
    expires: Annotated[int, Query(ge=0, le=_EXPIRES_MAX)],
    signature: Annotated[str, Query(max_length=128)],
) -> Response:
    """Receive the file for an `upload_url`. The signature is the only credential that it needs."""
    announced = request.headers.get("content-length", "")
    size_bytes = int(announced) if announced.isdigit() else None
    await control(request).uploads.receive(path, expires, signature, size_bytes, request.stream())
    return empty_answer(200)
