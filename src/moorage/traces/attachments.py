"""Attachments of trace runs: files that clients send with a run. They are stored in the bucket, and the run has their
keys.

Clients fetch them without their API key, so their URLs are signed and expire. Attachments are untrusted and share an
origin with the console, so they are always served as downloads and never rendered.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from typing_extensions import TypedDict

from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import ForbiddenError, InvalidRequestError, NotFoundError

URL_LASTS_S = 3600
NAME_CHARS_MAX = 500
_UPLOADS_AT_ONCE = 8
_MIME_TYPE = re.compile(r"[a-zA-Z0-9][\w.+-]{0,80}/[a-zA-Z0-9][\w.+-]{0,80}")
_ANY_TYPE = "application/octet-stream"
_FOLDER = "attachments"


class StoredAttachment(TypedDict):
    """Facts of one attachment, as stored by name in the column `attachments`."""

    mime_type: str
    size_bytes: int
    key: str


@dataclass(frozen=True)
class SentAttachment:
    run_id: str
    name: str
    mime_type: str
    data: bytes


class Attachments:
    def __init__(self, *, bucket: Bucket, signing_keys: Mapping[str, bytes]) -> None:
        """`signing_keys`: by name, the newest first. Older keys only verify URLs that they have signed."""
        self._bucket = bucket
        self._keys = dict(signing_keys)
        self._slots = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    async def put(
        self, workspace_id: UUID, trace_id: str, sent: Sequence[SentAttachment]
    ) -> dict[str, StoredAttachment]:
        """Store attachments durably; returns their facts by name for the run. Idempotent."""

        async def put_one(attachment: SentAttachment) -> StoredAttachment:
            key = _key(workspace_id, trace_id, attachment)
            async with self._slots:
                await self._bucket.put(key, attachment.data)
            return {"mime_type": attachment.mime_type, "size_bytes": len(attachment.data), "key": key}

        stored = await asyncio.gather(*map(put_one, sent))
        return {attachment.name: facts for attachment, facts in zip(sent, stored, strict=True)}

    def url(self, key: str, mime_type: str) -> str:
        """Return a URL, relative to the API's address, at which anyone may fetch the attachment for the next hour."""
        name, secret = next(iter(self._keys.items()))
        claim = base64.urlsafe_b64encode(encode([key, mime_type, int(time.time()) + URL_LASTS_S])).rstrip(b"=").decode()
        return f"/attachments/{claim}.{name}.{_signature(secret, claim)}"

    async def open(self, token: str) -> tuple[str, AsyncIterator[bytes]]:
        """Open the attachment that the last segment of a signed URL names; returns its MIME type and its bytes.

        Raises ForbiddenError and NotFoundError.
        """
        key, mime_type = self._verified(token)
        if await self._bucket.head(key) is None:
            raise NotFoundError("This attachment was deleted")
        return mime_type, self._bucket.stream(key)

    def _verified(self, token: str) -> tuple[str, str]:
        claim, _, signed = token.partition(".")
        name, _, signature = signed.partition(".")
        secret = self._keys.get(name)
        if secret is None or not hmac.compare_digest(_signature(secret, claim).encode(), signature.encode()):
            raise ForbiddenError("This address of an attachment is not one of ours")
        key, mime_type, expires_at = decode(base64.urlsafe_b64decode(claim + "=" * (-len(claim) % 4)))
        if expires_at < time.time():
            raise ForbiddenError("This address of an attachment has expired; read the run again for another")
        return key, mime_type

    async def delete_trace(self, workspace_id: UUID, trace_id: UUID) -> None:
        """Remove all attachments of the trace. May be repeated."""
        prefix = f"{_FOLDER}/{workspace_id}/{trace_id}/"
        await self._bucket.delete([found.key async for found in self._bucket.list(prefix)])


def read_attachment(run_id: str, name: str, content_type: str, data: bytes) -> SentAttachment:
    """Read an attachment as it was sent. Raises InvalidRequestError for a name that clients could not have sent."""
    if not name or len(name) > NAME_CHARS_MAX or "." in name or not name.isprintable():
        raise InvalidRequestError("The name of an attachment has no dot, and at most 500 printable characters")
    try:
        canonical = str(UUID(run_id))
    except ValueError:
        raise InvalidRequestError("An attachment is named attachment.<run id>.<name>, with a UUID") from None
    mime_type = content_type.partition(";")[0].strip()
    return SentAttachment(canonical, name, mime_type if _MIME_TYPE.fullmatch(mime_type) else _ANY_TYPE, data)


def _key(workspace_id: UUID, trace_id: str, attachment: SentAttachment) -> str:
    # A name may contain any characters, a key may not.
    digest = hashlib.sha256(attachment.name.encode()).hexdigest()[:32]
    return f"{_FOLDER}/{workspace_id}/{trace_id}/{attachment.run_id}/{digest}"


def _signature(secret: bytes, claim: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(secret, claim.encode(), "sha256")).rstrip(b"=").decode()
