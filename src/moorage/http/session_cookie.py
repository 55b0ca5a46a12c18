"""The session of a browser: its cookie, and which requests may use it."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from moorage.kernel.errors import ForbiddenError

COOKIE = "moorage_session"


def session_of(request: Request) -> str | None:
    """Return the browser's session, if there is one. Raises ForbiddenError for a change requested by another site."""
    session = request.cookies.get(COOKIE)
    if session and request.method not in {"GET", "HEAD", "OPTIONS"}:
        check_same_origin(request)
    return session


def check_same_origin(request: Request) -> None:
    """Raise ForbiddenError for another origin. Other ports of this host share its cookies, but count as other origins
    here.
    """
    told = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_same = bool(origin) and urlsplit(origin or "").netloc == request.headers.get("host")
    if told not in {None, "same-origin"} or not is_same:
        raise ForbiddenError("A browser's session makes changes only from the pages of this server; send an API key")


def keep_session(answer: Response, session: str, life_s: int, *, is_https: bool) -> None:
    answer.set_cookie(COOKIE, session, max_age=life_s, path="/", secure=is_https, httponly=True, samesite="lax")


def forget_session(answer: Response) -> None:
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
