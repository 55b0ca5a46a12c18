"""The completion webhook: a signed request that reports the end of an export.

The signature follows Standard Webhooks: HMAC-SHA256 of "<id>.<timestamp>.<body>", in base64, in `webhook-signature`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from datetime import UTC, datetime
from uuid import UUID

import httpx

from moorage.exports.records.exports import SEALED_WEBHOOK_SECRET, Export
from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError
from moorage.kernel.pinned_http import PinnedHttp

_POST_S = 10.0
_CONNECT_S = 3.0
_LOOKUP_S = 3.0
# Fields of an export that the webhook sends: those of its answer, except fields that only concern the caller.
_TOLD = (
    "id",
    "tenant_id",
    "bulk_export_destination_id",
    "session_id",
    "all_experiments",
    "start_time",
    "end_time",
    "status",
    "error",
    "manifest",
    "source_bulk_export_id",
    "created_at",
    "finished_at",
)


class Webhooks:
    """Sender of webhooks to addresses of callers. `allow_private` also allows the installation's own network."""

    def __init__(self, keys: MasterKeys, *, allow_private: bool, resolve: Resolve = resolve_name) -> None:
        self._keys = keys
        self._allow_private = allow_private
        self._resolve = resolve
        self._http = PinnedHttp(timeout_s=_POST_S, connect_s=_CONNECT_S)

    async def check(self, url: str) -> None:
        """Check an address. Raises InvalidRequestError if it is not allowed. The host name need not exist yet."""
        try:
            async with asyncio.timeout(_LOOKUP_S):
                await self._addresses(url)
        except OSError:
            return

    def seal(self, secret: str, export_id: UUID) -> bytes:
        """Encrypt the secret that signs the webhook of an export."""
        return self._keys.seal(secret.encode(), SEALED_WEBHOOK_SECRET.place(export_id))

    def reseal(self, sealed: bytes, schedule_id: UUID, export_id: UUID) -> bytes:
        """Seal a schedule's secret again for an export: a sealed value only opens in the place it was sealed for."""
        return self.seal(self._opened(sealed, schedule_id), export_id)

    async def tell(self, url: str, sealed: bytes, export: Export) -> str | None:
        """Try to deliver once; returns the error, or None when it was delivered."""
        secret = self._opened(sealed, export["id"])
        try:
            async with asyncio.timeout(_POST_S):
                return await self._post(url, secret, export)
        except InvalidRequestError as refusal:
            return str(refusal)
        except (httpx.TransportError, OSError) as error:
            return type(error).__name__  # the error's text may quote the request

    def _opened(self, sealed: bytes, export_id: UUID) -> str:
        return self._keys.open(sealed, SEALED_WEBHOOK_SECRET.place(export_id)).decode()

    async def _post(self, url: str, secret: str, export: Export) -> str | None:
        parsed, addresses = await self._addresses(url)
        body = encode({"type": "bulk_export.ended", "data": {name: export[name] for name in _TOLD}})  # type: ignore[literal-required]
        headers = {
            "content-type": "application/json",
            "user-agent": "moorage",
            **signature_headers(secret, f"export_{export['id']}", datetime.now(UTC), body),
        }
        plain = parsed.copy_with(username="", password="")
        status = (await self._http.send("POST", plain, addresses, headers, body)).status
        return None if 200 <= status < 300 else f"HTTP {status}"

    async def _addresses(self, url: str) -> tuple[httpx.URL, list[Address]]:
        """Return the URL and its host's addresses, all of them allowed. Raises InvalidRequestError, and OSError if
        there are none.
        """
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise InvalidRequestError("webhook.url is not a valid URL") from None
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise InvalidRequestError("webhook.url must begin with https:// or http://")
        try:
            addresses = await self._resolve(parsed.raw_host.decode())
        except UnicodeError:
            raise InvalidRequestError("webhook.url is not a valid URL") from None
        places = {place for address in addresses if (place := blocked_range(address))}
        if places and not self._allow_private:
            raise InvalidRequestError(
                f"webhook.url leads to a {min(places)} address, which this installation does not tell"
            )
        return parsed, addresses


def signature_headers(secret: str, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    stamp = str(int(at.timestamp()))
    signed = f"{message_id}.{stamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(_key_of(secret), signed, "sha256")).decode()
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": f"v1,{signature}"}


def _key_of(secret: str) -> bytes:
    """Return the key of a secret: base64 follows `whsec_`, as libraries write it; any other text is the key itself."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            pass
    return secret.encode()
