"""Types of the URLs that callers send."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field


def _parsed(url: str, schemes: tuple[str, ...]) -> SplitResult:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # raises for a port that is not a number
    except ValueError:
        parsed = urlsplit("")
    if parsed.scheme not in schemes or not parsed.hostname or not url.isprintable() or " " in url:
        raise ValueError(f"must be an absolute {' or '.join(schemes)} URL")
    return parsed


def _checked_url(url: str) -> str:
    parsed = _parsed(url, ("http", "https"))
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("must not hold a user name or password")
    return url


def _checked_ssh_url(url: str) -> str:
    if _parsed(url, ("ssh",)).password is not None:
        raise ValueError("must not hold a password")
    return url


SshUrl = Annotated[str, Field(max_length=2048), AfterValidator(_checked_ssh_url)]
Url = Annotated[str, Field(max_length=2048), AfterValidator(_checked_url)]
