"""Signature version 4 of AWS, for the few requests that the bucket library does not make. Pure functions."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    """Credentials, with a repr that shows no values."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None


# Provides the credentials for each request; they may change from one to the next.
Lender = Callable[[], Awaitable[Credentials]]


def signed_headers(
    method: str,
    url: str,
    query: Mapping[str, str],
    body: bytes,
    *,
    credentials: Credentials,
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """Return the headers that sign a request with the credentials. `url` has no query, and its path is quoted."""
    parts, stamp = urlsplit(url), now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    payload = hashlib.sha256(body).hexdigest()
    headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    request = "\n".join(
        [
            method,
            parts.path or "/",
            "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items())),
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            names,
            payload,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_access_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    credential = f"{credentials.access_key_id}/{scope}"
    authorization = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": authorization}


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
