"""Requests to addresses that callers chose, such as the endpoints of an OAuth provider.

The host is looked up once, each of its addresses is checked, and the connection goes to an address that was checked, under
the name's host header and certificate: a name that changes in between (DNS rebinding) gains nothing. Redirects and proxies
are not followed, answers are bounded, and nothing but the host of a URL is put into errors.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import httpx

from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.errors import BadRequestError, RemoteError

_TOTAL_S = 20.0
_CONNECT_S = 5.0
_ANSWER_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes


class GuardedHttp:
    """`allow_private` opens addresses of this machine and its network, and plain http to them."""

    def __init__(self, *, allow_private: bool, resolve: Resolve = resolve_name) -> None:
        self._allow_private = allow_private
        self._resolve = resolve

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, content: bytes = b""
    ) -> Answer:
        """Return the answer, whatever its status.

        Raises BadRequestError for an address that may not be asked, and RemoteError when there is no sound answer.
        """
        parsed = _parsed(url)
        try:
            async with asyncio.timeout(_TOTAL_S):
                addresses = await self._addresses(parsed)
                return await self._first_answer(method, parsed, addresses, headers or {}, content)
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

    async def _first_answer(
        self, method: str, url: httpx.URL, addresses: list[Address], headers: Mapping[str, str], content: bytes
    ) -> Answer:
        for address in addresses[:-1]:
            try:
                return await self._answer_to(_request(method, url, address, headers, content))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._answer_to(_request(method, url, addresses[-1], headers, content))

    async def _answer_to(self, request: httpx.Request) -> Answer:
        """By a transport of its own instead of a client: that follows no redirect and uses no proxy."""
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                content = bytearray()
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > _ANSWER_BYTES_MAX:
                        raise RemoteError(f"{request.headers['host']} answers more than {_ANSWER_BYTES_MAX} bytes")
            finally:
                await response.aclose()
            return Answer(response.status_code, dict(response.headers), bytes(content))

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, UnicodeError, ValueError):
        parsed, port = httpx.URL(""), None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo or port == 0:
        raise BadRequestError("An address of the provider is not a valid http or https URL")
    return parsed


def _request(method: str, url: httpx.URL, address: Address, given: Mapping[str, str], content: bytes) -> httpx.Request:
    """To the address, in the name of the URL's host. A compressed answer is not asked for: its size is bounded as it comes."""
    headers = {"accept-encoding": "identity", "user-agent": "moorage", **given, "host": url.netloc.decode()}
    extensions = {
        "sni_hostname": url.raw_host.decode(),
        "timeout": httpx.Timeout(_TOTAL_S, connect=_CONNECT_S).as_dict(),
    }
    to = url.copy_with(host=str(address), fragment=None)
    return httpx.Request(method, to, headers=headers, content=content, extensions=extensions)
