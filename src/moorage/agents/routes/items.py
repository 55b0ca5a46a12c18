"""The long-term store (`/store`): items below namespaces, found by address, by fields and by meaning."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.items import FoundItems, Item, ItemDelete, ItemPut, ItemSearch, Namespaces, NamespaceSearch
from moorage.agents.routes.rooms import agents, principal
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_flag, read_json

router = APIRouter(prefix="/store", tags=["Store"])

_ADDRESS = {
    "key": {"type": "string"},
    "namespace": {"type": "string", "description": "Labels with dots between them."},
    "refresh_ttl": {"type": "boolean"},
}


@router.put("/items", **operation(body=ItemPut, errors=(400, 422, 502), status=204))
async def put_item(request: Request) -> Response:
    """Store an item, or replace the one of its namespace and key."""
    await agents(request).items.put(principal(request), await read_json(request, ItemPut))
    return empty_answer()


@router.get("/items", **operation(gives=Item | None, errors=(400, 422), query=_ADDRESS))
async def get_item(request: Request) -> Response:
    """Show an item; null when there is none."""
    key, namespace = request.query_params.get("key"), request.query_params.get("namespace") or ""
    if not key:
        # This failure has `error`, as in the reference API; all others have `detail`.
        return json_answer({"error": "Key is required", "detail": "Key is required"}, 400)
    refresh = read_flag(request, "refresh_ttl") if "refresh_ttl" in request.query_params else None
    labels = tuple(namespace.split(".")) if namespace else ()
    return json_answer(await agents(request).items.get(principal(request), labels, key, refresh=refresh))


@router.delete("/items", **operation(body=ItemDelete, errors=(400, 422), status=204))
async def delete_item(request: Request) -> Response:
    """Delete an item. Succeeds also if there is no such item."""
    await agents(request).items.delete(principal(request), await read_json(request, ItemDelete))
    return empty_answer()


@router.post("/items/search", **operation(body=ItemSearch, gives=FoundItems, errors=(422, 502)))
async def search_items(request: Request) -> Response:
    """Search the items below a namespace, by their fields or by meaning."""
    return json_answer(
        {"items": await agents(request).items.search(principal(request), await read_json(request, ItemSearch))}
    )


@router.post("/namespaces", **operation(body=NamespaceSearch, gives=Namespaces, errors=(422,)))
async def list_namespaces(request: Request) -> Response:
    """List the namespaces that hold items."""
    return json_answer(
        {
            "namespaces": await agents(request).items.namespaces(
                principal(request), await read_json(request, NamespaceSearch)
            )
        }
    )
