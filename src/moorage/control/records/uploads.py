"""Uploads: the address at which a caller may put one tarball, and its signature."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from typing_extensions import TypedDict


class UploadUrl(TypedDict):
    """The answer for an upload. Clients PUT the archive to `upload_url` with `upload_headers`, then PATCH the
    deployment with `object_path`.
    """

    upload_url: str
    object_path: str
    upload_headers: dict[str, str]


def upload_signature(key: bytes, path: str, expires_at: int, bytes_max: int) -> str:
    """Return the signature that allows a PUT of at most this many bytes to this path until the given time."""
    return hmac.digest(key, f"PUT\n{path}\n{expires_at}\n{bytes_max}".encode(), "sha256").hex()


def is_signed(keys: Iterable[bytes], path: str, expires_at: int, bytes_max: int, signature: str) -> bool:
    given = signature.encode()
    expected = (upload_signature(key, path, expires_at, bytes_max).encode() for key in keys)
    return any(hmac.compare_digest(signed, given) for signed in expected)
