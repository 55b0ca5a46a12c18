"""Trace runs in: `/runs/multipart`, `/runs/batch`, `/runs`; and attachments out.

Bodies are read as they come, without a model: this is the way that carries all the traffic. Errors have the body that the
tracing clients print: `{"error": ..., "details": ...}`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from typing_extensions import TypedDict

from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.request_limits import cost_of
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BodyTooLargeError, MoorageError
from moorage.traces.records.run_rows import SentRun
from moorage.traces.routes.rooms import traces
from moorage.traces.sent_body import JSON_BYTES_MAX, split_batch, split_single, unpack

router = APIRouter()

WIRE_BYTES_MAX = 64 * 2**20
UNPACKED_BYTES_MAX = 256 * 2**20
_RETRY_AFTER_S = "2"
# Attachments are untrusted, so browsers must not render them at the console's origin.
_DOWNLOAD_HEADERS = {
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=3600",
}
_REFUSALS_SHOWN = 10
_REASONS = {
    400: "Bad request",
    408: "Request timeout",
    413: "Request too large",
    422: "Unprocessable entity",
    429: "Too many requests",
    503: "Unavailable",
}


class Accepted(TypedDict):
    message: str


class IngestError(TypedDict):
    error: str
    details: str


class SentRunBody(BaseModel):
    """A run, as `POST /runs` takes it. Unknown fields are ignored, and a null says nothing."""

    id: str
    name: str | None = None
    run_type: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    trace_id: str | None = None
    parent_run_id: str | None = None
    dotted_order: str | None = None
    session_id: str | None = None
    session_name: str | None = None
    inputs: dict[str, object] | None = None
    outputs: dict[str, object] | None = None
    events: list[dict[str, object]] | None = None
    extra: dict[str, object] | None = None
    serialized: dict[str, object] | None = None
    error: str | None = None
    tags: list[str] | None = None
    reference_example_id: str | None = None
    # Accepted and ignored: the status follows from error and end time, and attachments come as separate parts.
    status: str | None = None
    input_attachments: dict[str, object] | None = None
    output_attachments: dict[str, object] | None = None


class SentBatchBody(BaseModel):
    post: list[SentRunBody] | None = None
    patch: list[SentRunBody] | None = None


_PARTS = {"schema": {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}}


def _ingest_operation(body: type[BaseModel] | None = None) -> dict[str, Any]:
    described = operation(body=body, gives=Accepted, status=202, errors=(401, 403))
    described["responses"] |= {code: {"model": IngestError, "description": text} for code, text in _REASONS.items()}
    if body is None:
        described["openapi_extra"]["requestBody"] = {"required": True, "content": {"multipart/form-data": _PARTS}}
    return {**described, "tags": ["runs"]}


@router.post("/runs/multipart", **_ingest_operation())
async def ingest_multipart(request: Request, caller: Caller = needs(Scope.RUNS_WRITE, audited=False)) -> Response:
    """Runs, feedback and attachments as `multipart/form-data`; parts are named `post.<run id>`, `patch.<run id>`,
    `<either>.<field>`, `feedback.<id>` and `attachment.<run id>.<name>`. The body may be compressed by gzip or zstd.
    """
    pieces, content_type = _pieces(request, UNPACKED_BYTES_MAX), request.headers.get("content-type", "")
    writing = traces(request).ingest.write_multipart(caller, pieces, content_type, cost_of(request))
    return await _answer(writing, "Runs and feedback ingested")


@router.post("/runs/batch", **_ingest_operation(SentBatchBody))
async def ingest_batch(request: Request, caller: Caller = needs(Scope.RUNS_WRITE, audited=False)) -> Response:
    """Store new runs and updates of runs. What is acknowledged is durable."""
    return await _write_json(request, caller, split_batch, "Runs batch ingested")


@router.post("/runs", **_ingest_operation(SentRunBody))
async def create_run(request: Request, caller: Caller = needs(Scope.RUNS_WRITE, audited=False)) -> Response:
    """Store a run. What is acknowledged is durable."""
    return await _write_json(request, caller, split_single, "Run created")


@router.patch("/runs/{run_id}", **_ingest_operation(SentRunBody))
async def update_run(
    request: Request, run_id: str, caller: Caller = needs(Scope.RUNS_WRITE, audited=False)
) -> Response:
    """Update a run; fields that are absent or null stay. The run may arrive later than its update."""
    return await _write_json(request, caller, partial(split_single, run_id=run_id), "Run updated")


@router.get("/attachments/{token}", tags=["runs"], **operation(errors=(403, 404)))
async def get_attachment(request: Request, token: str) -> Response:
    """Return a file that came with a run. The address is signed, as `s3_urls` of the run shows it, and needs no key."""
    mime_type, pieces = await traces(request).attachments.open(token)
    return StreamingResponse(pieces, headers=_DOWNLOAD_HEADERS, media_type=mime_type)


async def _write_json(
    request: Request, caller: Caller, split: Callable[[bytes], Sequence[SentRun]], message: str
) -> Response:
    pieces = _pieces(request, JSON_BYTES_MAX)
    return await _answer(traces(request).ingest.write_json(caller, pieces, split, cost_of(request)), message)


async def _pieces(request: Request, unpacked_bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the unpacked body while it arrives, and take its cost. Raises BodyTooLargeError, for an announced size
    before anything is read.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > WIRE_BYTES_MAX:
        raise BodyTooLargeError(f"The request body is larger than the limit of {WIRE_BYTES_MAX} bytes")
    cost, encoding = cost_of(request), request.headers.get("content-encoding", "")
    limits = {"wire_bytes_max": WIRE_BYTES_MAX, "unpacked_bytes_max": unpacked_bytes_max}
    async for piece in unpack(request.stream(), encoding, **limits):
        cost.take(len(piece))
        yield piece


async def _answer(writing: Awaitable[Sequence[MoorageError]], message: str) -> Response:
    try:
        refused = await writing
    except MoorageError as error:
        headers = {**(error.headers or {}), **({"Retry-After": _RETRY_AFTER_S} if error.status in {429, 503} else {})}
        body = {"error": f"{_REASONS.get(error.status, 'Failed')}: {error}", "details": str(error)}
        return json_answer(body, error.status, headers)
    if not refused:
        return json_answer({"message": message}, 202)
    status = 400 if all(error.status == 400 for error in refused) else 422
    shown = [str(error) for error in refused[:_REFUSALS_SHOWN]]
    if len(refused) > len(shown):
        shown.append(f"and {len(refused) - len(shown)} more")
    text = f"{_REASONS[status]}: {len(refused)} of the runs were refused, the others are stored"
    return json_answer({"error": f"{text}: {shown[0]}", "details": "; ".join(shown)}, status)
