"""The registry of pushed images, by the distribution specification: the requests of `docker push`, `podman push` and a
pull.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md. Paths are below `/v2/`, since clients know no
other place.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moorage.control.image_registry import ImageRegistry
from moorage.control.records.pushed_images import USERNAME, PushToken, repository_of
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import EMPTY, json_answer
from moorage.http.operations import operation
from moorage.http.request_limits import cost_of
from moorage.http.requests import read_body
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import InvalidRequestError, MoorageError, UnauthenticatedError

_CODES = {400: "MANIFEST_INVALID", 401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 413: "SIZE_INVALID"}
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="moorage"', "Docker-Distribution-Api-Version": "registry/2.0"}
_ERRORS = (400, *REFUSED, 404, 413, 422, 503)
_RANGE = re.compile(r"(?:bytes )?(\d{1,18})-\d{1,18}")


class _RegistryRoute(APIRoute):
    """A route whose errors have the body that clients of registries read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except MoorageError as error:
                said = {"errors": [{"code": _CODES.get(error.status, "UNSUPPORTED"), "message": error.detail}]}
                challenge = _CHALLENGE if isinstance(error, UnauthenticatedError) else {}
                return json_answer(said, status=error.status, headers={**(error.headers or {}), **challenge})

        return answer


router = APIRouter(tags=["Images (v2)"])
registry_router = APIRouter(tags=["Images (v2)"], route_class=_RegistryRoute)


def _token(request: Request) -> str | None:
    """Return the token that the client logged in with."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return None
    return password if scheme.lower() == "basic" and user == USERNAME else None


def _registry(request: Request, deployment_id: UUID) -> ImageRegistry:
    """Return the registry, for a client that may use the images of this deployment."""
    registry = control(request).image_registry
    registry.check(_token(request), deployment_id)
    return registry


Registry = Annotated[ImageRegistry, Depends(_registry)]


@router.post("/deployments/{deployment_id}/push-token", **operation(gives=PushToken, errors=(400, *REFUSED, 404, 422)))
async def create_push_token(
    request: Request, deployment_id: UUID, caller: Caller = needs(Scope.DEPLOYMENTS_WRITE)
) -> Response:
    """Make a login to the platform's registry, good for an hour, for the images of one deployment."""
    made = await control(request).image_registry.create_token(caller, deployment_id)
    return json_answer(made, headers={"Cache-Control": "no-store"})


@registry_router.get("/", **operation(errors=REFUSED))
async def check_push_token(request: Request) -> Response:
    """Tell a registry client that this is a registry, and whether its login is good."""
    control(request).image_registry.check(_token(request), None)
    return json_answer({}, headers={"Docker-Distribution-Api-Version": "registry/2.0"})


@registry_router.post("/images/{deployment_id}/blobs/uploads/", **operation(status=202, errors=(*_ERRORS, 429)))
async def begin_blob(deployment_id: UUID, registry: Registry) -> Response:
    """Begin the upload of a part of an image."""
    return _progress(deployment_id, await registry.begin(deployment_id), 0)


@registry_router.get("/images/{deployment_id}/blobs/uploads/{upload_id}", **operation(status=204, errors=_ERRORS))
async def read_blob_progress(deployment_id: UUID, upload_id: UUID, registry: Registry) -> Response:
    """Return how many bytes of an upload have arrived."""
    return _progress(deployment_id, upload_id, await registry.size_of(deployment_id, upload_id), status=204)


@registry_router.patch("/images/{deployment_id}/blobs/uploads/{upload_id}", **operation(status=202, errors=_ERRORS))
async def append_to_blob(request: Request, deployment_id: UUID, upload_id: UUID, registry: Registry) -> Response:
    """Add bytes to an upload."""
    begins_at = _begins_at(request)
    size_bytes = await registry.append(deployment_id, upload_id, request.stream(), begins_at)
    return _progress(deployment_id, upload_id, size_bytes)


@registry_router.put("/images/{deployment_id}/blobs/uploads/{upload_id}", **operation(status=201, errors=_ERRORS))
async def finish_blob(
    request: Request,
    deployment_id: UUID,
    upload_id: UUID,
    registry: Registry,
    digest: Annotated[str, Query(max_length=128)],
) -> Response:
    """End an upload, with its last bytes if there are any. The content must have this digest."""
    await registry.append(deployment_id, upload_id, request.stream(), _begins_at(request))
    await registry.finish(deployment_id, upload_id, digest)
    return _made(f"/v2/{repository_of(deployment_id)}/blobs/{digest}", digest)


@registry_router.head("/images/{deployment_id}/blobs/{digest}", include_in_schema=False)
@registry_router.get("/images/{deployment_id}/blobs/{digest}", **operation(errors=(*REFUSED, 404, 422)))
async def read_blob(request: Request, deployment_id: UUID, digest: str, registry: Registry) -> Response:
    """Return a part of an image."""
    blob = await registry.blob(deployment_id, digest)
    headers = {"Docker-Content-Digest": digest, "Content-Length": str(blob.size_bytes)}
    if request.method == "HEAD":
        return Response(headers=headers)
    return StreamingResponse(registry.stream(blob), headers=headers, media_type="application/octet-stream")


@registry_router.put("/images/{deployment_id}/manifests/{reference}", **operation(status=201, errors=_ERRORS))
async def put_manifest(request: Request, deployment_id: UUID, reference: str, registry: Registry) -> Response:
    """Store the list of an image's parts under a tag or its digest. All parts must have been pushed before."""
    body = bytes(await read_body(request))
    await cost_of(request).take_json(body)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    digest = await registry.put_manifest(deployment_id, reference, media_type, body)
    return _made(f"/v2/{repository_of(deployment_id)}/manifests/{digest}", digest)


@registry_router.head("/images/{deployment_id}/manifests/{reference}", include_in_schema=False)
@registry_router.get("/images/{deployment_id}/manifests/{reference}", **operation(errors=(*REFUSED, 404, 422)))
async def read_manifest(deployment_id: UUID, reference: str, registry: Registry) -> Response:
    """Return the list of an image's parts, by tag or digest."""
    manifest = await registry.manifest(deployment_id, reference)
    return Response(manifest.body, headers={"Docker-Content-Digest": manifest.digest}, media_type=manifest.media_type)


def _begins_at(request: Request) -> int | None:
    """Return the position at which a piece begins in its blob, or None when the client does not say."""
    told = request.headers.get("content-range")
    if told is None:
        return None
    if not (found := _RANGE.fullmatch(told)):
        raise InvalidRequestError("Content-Range of an upload has the form first-last", "header", "content-range")
    return int(found[1])


def _progress(deployment_id: UUID, upload_id: UUID, size_bytes: int, status: int = 202) -> Response:
    headers = {
        "Location": f"/v2/{repository_of(deployment_id)}/blobs/uploads/{upload_id}",
        "Range": f"0-{max(0, size_bytes - 1)}",
        "Docker-Upload-UUID": str(upload_id),
    }
    return Response(EMPTY, status, headers)


def _made(location: str, digest: str) -> Response:
    return Response(EMPTY, 201, {"Location": location, "Docker-Content-Digest": digest})
