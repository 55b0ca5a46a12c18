"""Probe whether a multipart upload to S3 may be aborted."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import quote

import httpx

from moorage.kernel.aws_signature import Lender, signed_headers

_TIMEOUT_S = 5
_UPLOAD_ID = re.compile(r"<UploadId>([^<]{1,1024})</UploadId>")


async def may_abort(base: str, region: str, lend: Lender, via: str | None, key: str) -> bool | None:
    """Begin a multipart upload and abort it. The library aborts uploads too, but never reports whether that worked."""
    url = f"{base}/{quote(key, safe='/-_.~')}"

    async def ask(method: str, query: dict[str, str]) -> httpx.Response:
        headers = signed_headers(
            method, url, query, b"", credentials=await lend(), region=region, service="s3", now=datetime.now(UTC)
        )
        return await client.request(method, url, params=query, headers=headers)

    async with httpx.AsyncClient(timeout=_TIMEOUT_S, proxy=via) as client:
        try:
            begun = await ask("POST", {"uploads": ""})
            upload_id = _UPLOAD_ID.search(begun.text)
            if not begun.is_success or upload_id is None:
                return None
            aborted = await ask("DELETE", {"uploadId": upload_id[1]})
        except httpx.HTTPError:
            return None
    return aborted.is_success if aborted.is_success or aborted.status_code in {401, 403} else None
