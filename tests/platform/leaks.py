"""Text that no error of a platform may show: its secrets, addresses of its engines, paths of its host, tracebacks."""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from pathlib import Path

import httpx

import moorage
from tests.platform.serving import Platform

_WORDS = ("Traceback", "postgresql://", "http+unix:", "clickhouse.sock", ".s.PGSQL", "DB::Exception", "psycopg", "chdb")


def secrets_of(platform: Platform) -> dict[str, str]:
    """Return the texts that must not be shown, each under its name."""
    home = platform.home.resolve()
    files = ("secret-key", "postgres/password", "clickhouse/password")
    return {
        "the API key": platform.key,
        **{name: (home / name).read_text().strip() for name in files},
        "the home": str(home),
        "our code": str(Path(moorage.__file__).parent),
        "our libraries": site.getsitepackages()[0],
        "the user's home": os.path.expanduser("~/"),  # noqa: PTH111 - as text, as it would be shown
        **{word: word for word in _WORDS},
    }


def leaks_in(answer: httpx.Response, secrets: Mapping[str, str]) -> list[str]:
    """Return what an error shows of the secrets. Answers that are no errors may contain what their caller stored."""
    if answer.status_code < 400:
        return []
    shown = f"{answer.headers}\n{answer.text}"
    request = f"{answer.request.method} {answer.request.url.path}"
    return [
        f"{request}: {answer.status_code} shows {name}: {answer.text[:300]}"
        for name, secret in secrets.items()
        if secret in shown
    ]
