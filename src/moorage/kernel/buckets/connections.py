"""Connections to stores over HTTP: address, time-outs and retries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

_CONNECT_S = 5
_REQUEST_S = 60


def root_of(endpoint_url: str, bucket: str) -> str:
    """Return the address without the bucket, which the library adds itself."""
    parts = urlsplit(endpoint_url)
    path = parts.path.strip("/")
    if path.rpartition("/")[2] == bucket:
        path = path.rpartition("/")[0]
    return f"{parts.scheme}://{parts.netloc}/{path}".rstrip("/")


def client_options(endpoint: str, patience_s: float, via: str | None) -> Any:
    return {
        **({"proxy_url": via} if via else {}),
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=min(_REQUEST_S, patience_s)),
        "user_agent": "moorage",
    }


def patience(patience_s: float) -> Any:
    backoff = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2}
    return {"max_retries": 100, "retry_timeout": timedelta(seconds=patience_s), "backoff": backoff}
