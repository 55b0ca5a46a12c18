"""A project's part of the OpenAPI document: operations of its own application, and its authentication schemes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp


def extend_document(app: FastAPI, own: ASGIApp | None, security: Mapping[str, Any]) -> None:
    """Make the document of `app` describe both applications.

    The documents of the project's application itself are no longer served, since they would hide this one.
    """
    describe = app.openapi
    if isinstance(own, FastAPI):
        pages = {own.openapi_url, own.docs_url, own.redoc_url, own.swagger_ui_oauth2_redirect_url}
        own.router.routes[:] = [route for route in own.router.routes if getattr(route, "path", None) not in pages]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = describe()
            if isinstance(own, FastAPI):
                _add_operations(document, own.openapi())
            _add_security(document, security)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_operations(document: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Add the project's operations. They replace the server's, just as the project's routes do."""
    for path, operations in own.get("paths", {}).items():
        document["paths"][path] = {**document["paths"].get(path, {}), **operations}
    for kind, parts in own.get("components", {}).items():
        document["components"][kind] = {**document["components"].get(kind, {}), **parts}


def _add_security(document: dict[str, Any], security: Mapping[str, Any]) -> None:
    if schemes := security.get("securitySchemes"):
        document["components"].setdefault("securitySchemes", {}).update(schemes)
    if requirements := security.get("security"):
        document["security"] = requirements
    for path, methods in security.get("paths", {}).items():
        for method, requirements in methods.items():
            if operation := document["paths"].get(path, {}).get(method.lower()):
                operation["security"] = requirements
