"""Crons: runs by the clock (`/runs/crons`), each on a thread of its own or on one thread (`/threads/{id}/runs/crons`)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.crons import Cron, CronCount, CronCreate, CronPatch, CronSearch, ThreadCronCreate
from moorage.agents.records.words import JsonObject
from moorage.agents.routes.rooms import agents, principal
from moorage.http.answers import empty_answer, json_answer, page_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_uuid

router = APIRouter(tags=["Crons"])

_NOT_A_CRON_ID = "Invalid cron ID: must be a UUID"
_NOT_A_THREAD_ID = "Invalid thread ID"


@router.post("/runs/crons", **operation(body=CronCreate, gives=Cron, errors=(400, 404, 422)))
async def create_cron(request: Request) -> Response:
    """Run an assistant by the clock, each time on a new thread."""
    return json_answer(
        await agents(request).crons.create(principal(request), None, await read_json(request, CronCreate))
    )


@router.post("/threads/{thread_id}/runs/crons", **operation(body=ThreadCronCreate, gives=Cron, errors=(400, 404, 422)))
async def create_thread_cron(request: Request, thread_id: UuidText) -> Response:
    """Run an assistant by the clock on a thread. The cron goes when the thread is deleted."""
    found = read_uuid(thread_id, _NOT_A_THREAD_ID)
    return json_answer(
        await agents(request).crons.create(principal(request), found, await read_json(request, ThreadCronCreate))
    )


@router.post("/runs/crons/search", **operation(body=CronSearch, gives=list[Cron | JsonObject], errors=(422,)))
async def search_crons(request: Request) -> Response:
    """List the crons that match, newest first by default."""
    search = await read_json(request, CronSearch)
    return page_answer(await agents(request).crons.search(principal(request), search), search.limit, search.offset)


@router.post("/runs/crons/count", **operation(body=CronCount, gives=int, errors=(422,)))
async def count_crons(request: Request) -> Response:
    """Count crons."""
    return json_answer(await agents(request).crons.count(principal(request), await read_json(request, CronCount)))


@router.get("/runs/crons/{cron_id}", **operation(gives=Cron, errors=(404, 422)))
async def get_cron(request: Request, cron_id: UuidText) -> Response:
    """Show a cron and when it fires next."""
    return json_answer(await agents(request).crons.get(principal(request), read_uuid(cron_id, _NOT_A_CRON_ID)))


@router.patch("/runs/crons/{cron_id}", **operation(body=CronPatch, gives=Cron, errors=(400, 404, 422)))
async def update_cron(request: Request, cron_id: UuidText) -> Response:
    """Change when a cron fires or what it runs, or switch it off and on."""
    found = read_uuid(cron_id, _NOT_A_CRON_ID)
    return json_answer(
        await agents(request).crons.update(principal(request), found, await read_json(request, CronPatch))
    )


@router.delete("/runs/crons/{cron_id}", **operation(errors=(404, 422), status=204))
async def delete_cron(request: Request, cron_id: UuidText) -> Response:
    """Delete a cron. Runs that it has started continue."""
    await agents(request).crons.delete(principal(request), read_uuid(cron_id, _NOT_A_CRON_ID))
    return empty_answer()
