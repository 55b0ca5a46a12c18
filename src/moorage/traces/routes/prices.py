"""`/model-price-map`: what models cost."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_uuid
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.prices import ModelPrice, ModelPriceCreate
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(prefix="/model-price-map", tags=["model-price-map"])

_NOT_A_UUID = "Invalid id: must be a UUID"


@router.get("", **operation(gives=list[ModelPrice], errors=(401, 403)))
async def list_prices(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List the workspace's own prices, and the shipped ones that apply where it has none."""
    return json_answer(await traces(request).prices.list(caller))


@router.post("", **operation(body=ModelPriceCreate, gives=ModelPrice, errors=(401, 403, 422)))
async def create_price(request: Request, caller: Caller = needs(Scope.PRICES_MANAGE)) -> Response:
    """Set a price of a model. It applies to runs that arrive from now on."""
    return json_answer(await traces(request).prices.write(caller, await read_json(request, ModelPriceCreate)))


@router.put("/{id}", **operation(body=ModelPriceCreate, gives=ModelPrice, errors=(400, 401, 403, 404, 422)))
async def update_price(request: Request, id: UuidText, caller: Caller = needs(Scope.PRICES_MANAGE)) -> Response:  # noqa: A002 - the name of the wire
    """Replace a price of a model."""
    new = await read_json(request, ModelPriceCreate)
    return json_answer(await traces(request).prices.write(caller, new, read_uuid(id, _NOT_A_UUID, "path", "id")))


@router.delete("/{id}", **operation(gives=dict[str, str], errors=(400, 401, 403, 404, 422)))
async def delete_price(request: Request, id: UuidText, caller: Caller = needs(Scope.PRICES_MANAGE)) -> Response:  # noqa: A002 - the name of the wire
    """Delete a price of a model."""
    await traces(request).prices.delete(caller, read_uuid(id, _NOT_A_UUID, "path", "id"))
    return json_answer({"message": "Model price deleted"})
