"""`/docs` and `/openapi.json`: the operations of an application, shown by Swagger UI.

The files of Swagger UI come from a package and are served here, so the page works without the internet. Its
Content-Security-Policy lets the browser load nothing from other origins.
"""

from __future__ import annotations

from html import escape
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.http.answers import json_answer
from moorage.kernel.errors import NotFoundError

POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; "  # Swagger UI sets styles on its elements
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon-32x32.png": "image/png"}
_START_FILE = "start.js"
ROUTES = ("/openapi.json", "/docs", "/docs/{file}")
PATHS = ("/openapi.json", "/docs", *(f"/docs/{file}" for file in (_START_FILE, *_ASSETS)))

# Addresses are relative: a deployed agent is served below /d/<name>, which it does not know.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# "Try it out" must call operations next to this page, not at the root of the origin.
_START = """const base = location.pathname.slice(0, -"/docs".length);
fetch("openapi.json").then((answer) => answer.json()).then((spec) => {
  spec.servers = [{ url: base || "/" }];
  SwaggerUIBundle({ spec, dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
});
"""


router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return json_answer(request.app.openapi())


@router.get("/docs", tags=["System"], response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """Show the operations of this server, for people."""
    page = _PAGE.format(title=escape(request.app.title))
    return Response(page, headers=_SAFE | {"Content-Security-Policy": POLICY}, media_type="text/html")


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(file: str) -> Response:
    return Response(_content(file), headers=_SAFE, media_type=_ASSETS.get(file, "text/javascript"))


def _content(file: str) -> bytes:
    """Return the file's content. Raises NotFoundError for any other file of the package."""
    if file == _START_FILE:
        return _START.encode()
    if file not in _ASSETS:
        raise NotFoundError(f"The documentation has no file {file[:100]!r}")
    return resources.files("fastapi_swagger.resources").joinpath(file).read_bytes()
