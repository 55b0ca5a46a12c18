"""Addresses that callers name."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field


def _checked_url(url: str) -> str:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # raises for a port that is no number
    except ValueError:
        parsed = urlsplit("")
    if parsed.scheme not in ("http", "https") or not parsed.hostname or not url.isprintable() or " " in url:
        raise ValueError("must be an absolute http or https URL")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("must not hold a user name or password")
    return url


def _checked_ssh_url(url: str) -> str:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # as above
    except ValueError:
        parsed = urlsplit("")
    if parsed.scheme != "ssh" or not parsed.hostname or not url.isprintable() or " " in url:
        raise ValueError("must be an absolute ssh URL")
    if parsed.password is not None:
        raise ValueError("must not hold a password")
    return url


SshUrl = Annotated[str, Field(max_length=2048), AfterValidator(_checked_ssh_url)]
Url = Annotated[str, Field(max_length=2048), AfterValidator(_checked_url)]
