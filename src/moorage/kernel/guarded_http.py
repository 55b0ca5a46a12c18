"""Requests to addresses that callers chose, such as the endpoints of an OAuth provider.

The host is looked up once, and each of its addresses is checked. The connection goes to a checked address under the
name's host header and certificate, so a name that changes in between (DNS rebinding) gains nothing. Redirects and
proxies are not followed, answers are bounded, and errors name only the host of a URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.errors import BadRequestError, RemoteError
from moorage.kernel.pinned_http import Answer, PinnedHttp

_TOTAL_S = 20.0
_CONNECT_S = 5.0
_ANSWER_BYTES_MAX = 1024 * 1024
# Answers must not be compressed, because their size is limited as they arrive.
_HEADERS = {"accept-encoding": "identity", "user-agent": "moorage"}


class GuardedHttp:
    """A client for untrusted addresses. `allow_private` opens addresses of this machine and its network, and plain http
    to them.
    """

    def __init__(self, *, allow_private: bool, resolve: Resolve = resolve_name) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._http = PinnedHttp(timeout_s=_TOTAL_S, connect_s=_CONNECT_S, answer_bytes_max=_ANSWER_BYTES_MAX)

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, content: bytes = b""
    ) -> Answer:
        """Return the answer, whatever its status.

        Raises BadRequestError for an address that must not be reached, and RemoteError when there is no valid answer.
        """
        parsed = _parsed(url)
        try:
            async with asyncio.timeout(_TOTAL_S):
                addresses = await self._addresses(parsed)
                return await self._http.send(method, parsed, addresses, {**_HEADERS, **(headers or {})}, content)
        except (httpx.TransportError, OSError) as error:  # a time-out is an OSError too
            raise RemoteError(f"{parsed.host} does not answer ({type(error).__name__})") from None

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        try:
            addresses = await self._resolve(url.raw_host.decode())
        except (OSError, UnicodeError):
            raise RemoteError(f"The host {url.host} cannot be found") from None
        places = sorted({place for address in addresses if (place := blocked_range(address))})
        if places and not self._allow_private:
            raise BadRequestError(f"The host {url.host} is in the {places[0]} IP range, which is not allowed")
        if url.scheme == "http" and not all(map(blocked_range, addresses)):
            raise BadRequestError(f"{url.host} must be asked by https")
        return addresses


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, UnicodeError, ValueError):
        parsed, port = httpx.URL(""), None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo or port == 0:
        raise BadRequestError("An address of the provider is not a valid http or https URL")
    return parsed
