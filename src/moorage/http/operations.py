"""Descriptions of operations for the OpenAPI document. They only describe: routes read bodies themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.responses import Response
from typing_extensions import TypedDict

from moorage.http.validation import ErrorItem

# Models of bodies that some operation reads, by the name of their schema. Filled while routes are declared.
_BODIES: dict[str, type[BaseModel]] = {}
_REF = "#/components/schemas/{model}"


class ErrorBody(TypedDict):
    detail: str


# By reference: otherwise FastAPI would make a validator of a model for each route and code, which takes a tenth of the
# start.
_ERROR = {
    "description": "Error",
    "content": {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}},
}


class PlatformErrorBody(TypedDict):
    detail: str | list[ErrorItem]
    error: str


def operation(
    *,
    body: type[BaseModel] | None = None,
    gives: Any = None,
    errors: tuple[int, ...] = (),
    status: int = 200,
    query: dict[str, Any] | None = None,
    streams: bool = False,
    text: bool = False,
    also: dict[int, Any] | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for a route decorator: schemas of the body and the answer, error codes, query
    parameters.

    `streams` and `text` say that the answer may also be an event stream, or plain text. `also` are further success
    statuses, each with its schema, or None for an empty answer.
    """
    success: dict[str, Any] = {"description": "Successful response"}
    if gives is not None:
        success["model"] = gives
    if streams or text:
        success["content"] = {"text/event-stream" if streams else "text/plain": {"schema": {"type": "string"}}}
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"$ref": _REF.format(model=body.__name__)}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        _BODIES[body.__name__] = body
    if query:
        extra["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    responses: dict[int | str, dict[str, Any]] = {status: success}
    for code, given in (also or {}).items():
        responses[code] = {"description": "Successful response"} | ({} if given is None else {"model": given})
    responses |= dict.fromkeys(errors, _ERROR)
    return {
        "openapi_extra": extra,
        "responses": responses,
        "response_model": None,
        "response_class": Response,  # otherwise FastAPI describes a JSON body for answers without one
        "status_code": status,
    }


def describe_operations(app: FastAPI, error_body: type) -> None:
    """Add schemas to the application's OpenAPI document: those of errors, and of bodies that routes read themselves."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
                (_BODIES[name], "validation") for name in sorted(_BODIES)
            ]
            _, definitions = models_json_schema(models, ref_template=_REF)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions.get("$defs", {}))
            error_schema = TypeAdapter(error_body).json_schema(ref_template=_REF)
            schemas.update(error_schema.pop("$defs", {}))
            schemas[ErrorBody.__name__] = error_schema
            app.openapi_schema = document
        return app.openapi_schema

    # FastAPI documents this as the way to extend the document.
    app.openapi = openapi  # type: ignore[method-assign]
