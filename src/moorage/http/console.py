"""The console's files, built by `scripts/console` into the package. Every page is `index.html`; its script reads the
address.

Files below `/assets` have a hash of their content in their name, so browsers may cache them for ever.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

import moorage
from moorage.kernel.errors import NotFoundError

BUILD = Path(moorage.__file__).parent / "console"
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
    "style-src 'self' 'unsafe-inline'; "  # widths of bars are inline styles
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_PAGE = _SAFE | {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Frame-Options": "DENY"}
_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
# Encodings made at build time, with the file's ending.
_ENCODINGS = {"br": ".br", "gzip": ".gz"}
PATHS = ("/", "/login")
PREFIXES = ("/o/", "/assets/")

_NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>moorage</title></head><body>
<h1>moorage runs; its console is not built</h1>
<p>In a clone of the repository, <code>scripts/console</code> builds it; then load this page again. Packages carry it.</p>
<p>The API works without it: <a href="/docs">its operations</a>.</p>
</body></html>
"""

router = APIRouter(include_in_schema=False)


def is_console(path: str) -> bool:
    return path in PATHS or path.startswith(PREFIXES)


@router.get("/")
@router.get("/login")
@router.get("/o/{place:path}")
async def page() -> Response:
    """Show no difference between what exists and what does not: that is for the API to say."""
    file = BUILD / "index.html"
    content = file.read_bytes() if file.is_file() else _NOT_BUILT.encode()
    return Response(content, headers=_PAGE, media_type="text/html")


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    accepted = {word.partition(";")[0].strip() for word in request.headers.get("accept-encoding", "").split(",")}
    for encoding, ending in _ENCODINGS.items():
        if encoding in accepted and (content := _content(f"{name}{ending}")) is not None:
            return _answer(name, content, {"Content-Encoding": encoding})
    content = _content(name)
    if content is None:
        raise NotFoundError(f"The console has no file {name[:100]!r}")
    return _answer(name, content, {})


def _answer(name: str, content: bytes, headers: dict[str, str]) -> Response:
    kind = _TYPES.get(Path(name).suffix, "application/octet-stream")
    return Response(content, headers=_SAFE | _FOR_GOOD | {"Vary": "Accept-Encoding"} | headers, media_type=kind)


@cache
def _read(path: Path, written_ns: int) -> bytes:
    return path.read_bytes()


def _content(name: str) -> bytes | None:
    path = BUILD / "assets" / name
    if not _NAME.fullmatch(name) or not path.is_file():
        return None
    return _read(path, path.stat().st_mtime_ns)
