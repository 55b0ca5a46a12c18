"""`/bulk-exports`: destinations, exports, their runs. Paths and fields are those that clients know.

What moorage adds: `DELETE` of a destination, its `permissions`, `dry_run`, `changed_since` and `webhook` of an export, and
`/verify`.
"""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from moorage.exports.records.destinations import Destination, DestinationCreate, DestinationUpdate
from moorage.exports.records.exports import Estimate, Export, ExportCreate, ExportUpdate
from moorage.exports.records.runs import ExportRun
from moorage.exports.room import ExportRoom
from moorage.exports.verify import Verification
from moorage.http.access import needs
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_number, read_uuid
from moorage.http.sse import JsonWhenReady
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.encoding import encode
from moorage.kernel.errors import ForbiddenError, InvalidRequestError

router = APIRouter(prefix="/bulk-exports", tags=["bulk-exports"])

_PAGE_MAX = 1000
_PAGE_QUERY = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _PAGE_MAX, "default": _PAGE_MAX},
    "offset": {"type": "integer", "minimum": 0, "default": 0},
}
_REFUSED = (401, 403)
# Arguments of `read_uuid`: the error for a wrong id, and the id's place in the request.
_DESTINATION_ID = ("Invalid destination id: must be a UUID", "path", "destination_id")
_EXPORT_ID = ("Invalid bulk export id: must be a UUID", "path", "bulk_export_id")
_SCHEDULE_ID = ("Invalid source_bulk_export_id: must be a UUID", "query", "source_bulk_export_id")


def _paid(scope: Scope) -> Any:
    """Require a scope, and a plan of the workspace that includes bulk export."""

    async def caller(admitted: Caller = needs(scope)) -> Caller:
        if admitted.plan is Plan.DEVELOPER:
            raise ForbiddenError("Bulk export needs the Plus or Enterprise plan")
        return admitted

    caller.scope = scope  # type: ignore[attr-defined] # read by the test that walks every route with every scope
    return Depends(caller)


_READS = _paid(Scope.BULK_EXPORTS_READ)
_MANAGES = _paid(Scope.BULK_EXPORTS_MANAGE)


def _room(request: Request) -> ExportRoom:
    return cast(ExportRoom, request.app.state.exports)


def _page(request: Request) -> dict[str, int]:
    return {
        "limit": read_number(request, "limit", _PAGE_MAX, 1, _PAGE_MAX),
        "offset": read_number(request, "offset", 0, 0, 2**31),
    }


# --- destinations -----------------------------------------------------------------------------------------------------


@router.post("/destinations", **operation(body=DestinationCreate, gives=Destination, errors=(*_REFUSED, 400, 422)))
async def create_destination(request: Request, caller: Caller = _MANAGES) -> Response:
    """Make a destination. A small file is written there first; a 400 says why that failed."""
    new = await read_json(request, DestinationCreate)
    return json_answer(await _room(request).destinations.create(caller, new))


@router.get("/destinations", **operation(gives=list[Destination], errors=(*_REFUSED, 422), query=_PAGE_QUERY))
async def list_destinations(request: Request, caller: Caller = _READS) -> Response:
    """List the destinations of the workspace, without their credentials."""
    return json_answer(await _room(request).destinations.list(caller, **_page(request)))


@router.get("/destinations/{destination_id}", **operation(gives=Destination, errors=(*_REFUSED, 404, 422)))
async def get_destination(request: Request, destination_id: UuidText, caller: Caller = _READS) -> Response:
    """Return a destination, without its credentials."""
    found = read_uuid(destination_id, *_DESTINATION_ID)
    return json_answer(await _room(request).destinations.get(caller, found))


@router.patch(
    "/destinations/{destination_id}",
    **operation(body=DestinationUpdate, gives=Destination, errors=(*_REFUSED, 400, 404, 422)),
)
async def patch_destination(request: Request, destination_id: UuidText, caller: Caller = _MANAGES) -> Response:
    """Change the credentials of a destination. They are tested first."""
    found = read_uuid(destination_id, *_DESTINATION_ID)
    patch = await read_json(request, DestinationUpdate)
    return json_answer(await _room(request).destinations.update(caller, found, patch))


@router.delete("/destinations/{destination_id}", **operation(errors=(*_REFUSED, 404, 422), status=204))
async def delete_destination(request: Request, destination_id: UuidText, caller: Caller = _MANAGES) -> Response:
    """Delete a destination. Exports to it that are under way fail; files that they have written stay."""
    await _room(request).destinations.delete(caller, read_uuid(destination_id, *_DESTINATION_ID))
    return empty_answer()


# --- exports ----------------------------------------------------------------------------------------------------------


@router.post("", **operation(body=ExportCreate, gives=Export | Estimate, errors=(*_REFUSED, 404, 422)))
async def create_export(request: Request, caller: Caller = _MANAGES) -> Response:
    """Start an export of a project's runs to a bucket, or a schedule of exports."""
    new = await read_json(request, ExportCreate)
    return json_answer(await _room(request).exports.create(caller, new), headers={"Cache-Control": "no-store"})


@router.get("", **operation(gives=list[Export], errors=(*_REFUSED, 422), query=_PAGE_QUERY))
async def list_exports(request: Request, caller: Caller = _READS) -> Response:
    """List the exports of the workspace, newest first."""
    return json_answer(await _room(request).exports.list(caller, **_page(request)))


@router.get(
    "/runs",
    **operation(
        gives=list[ExportRun],
        errors=(*_REFUSED, 404, 422),
        query={"source_bulk_export_id": {"type": "string", "format": "uuid"}, **_PAGE_QUERY},
    ),
)
async def list_runs_of_schedule(request: Request, caller: Caller = _READS) -> Response:
    """List the runs of all exports that a scheduled export has started."""
    given = request.query_params.get("source_bulk_export_id")
    if given is None:
        raise InvalidRequestError("source_bulk_export_id is required", "query", "source_bulk_export_id")
    source = read_uuid(given, *_SCHEDULE_ID)
    return json_answer(await _room(request).runs.list_of_schedule(caller, source, **_page(request)))


@router.get("/{bulk_export_id}", **operation(gives=Export, errors=(*_REFUSED, 404, 422)))
async def get_export(request: Request, bulk_export_id: UuidText, caller: Caller = _READS) -> Response:
    """Return an export with its state."""
    return json_answer(await _room(request).exports.get(caller, read_uuid(bulk_export_id, *_EXPORT_ID)))


@router.patch("/{bulk_export_id}", **operation(body=ExportUpdate, gives=Export, errors=(*_REFUSED, 400, 404, 422)))
async def cancel_export(request: Request, bulk_export_id: UuidText, caller: Caller = _MANAGES) -> Response:
    """Cancel an export: no other change is possible."""
    found = read_uuid(bulk_export_id, *_EXPORT_ID)
    await read_json(request, ExportUpdate)
    return json_answer(await _room(request).exports.cancel(caller, found))


@router.get(
    "/{bulk_export_id}/runs", **operation(gives=list[ExportRun], errors=(*_REFUSED, 404, 422), query=_PAGE_QUERY)
)
async def list_runs(request: Request, bulk_export_id: UuidText, caller: Caller = _READS) -> Response:
    """List the runs of an export, earliest day first."""
    found = read_uuid(bulk_export_id, *_EXPORT_ID)
    return json_answer(await _room(request).runs.list(caller, found, **_page(request)))


@router.get("/{bulk_export_id}/runs/{run_id}", **operation(gives=ExportRun, errors=(*_REFUSED, 404, 422)))
async def get_run(request: Request, bulk_export_id: UuidText, run_id: UuidText, caller: Caller = _READS) -> Response:
    """Return one part of an export with its state and files."""
    export_id = read_uuid(bulk_export_id, *_EXPORT_ID)
    found = read_uuid(run_id, "Invalid run id: must be a UUID", "path", "run_id")
    return json_answer(await _room(request).runs.get(caller, export_id, found))


@router.post("/{bulk_export_id}/verify", **operation(gives=Verification, errors=(*_REFUSED, 400, 404, 422)))
async def verify_export(request: Request, bulk_export_id: UuidText, caller: Caller = _READS) -> Response:
    """Read every file of an export back and compare it with the manifest. A newline every few seconds keeps the
    connection open meanwhile.
    """
    verifier = _room(request).verifier
    export = await verifier.check(caller, read_uuid(bulk_export_id, *_EXPORT_ID))

    async def body() -> bytes:
        return encode(await verifier.verify(caller, export))

    return JsonWhenReady(body())
