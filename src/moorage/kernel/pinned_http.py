"""HTTP requests to addresses that were checked before, in the name of a URL's host.

Code that lets a caller choose a URL looks up its host, refuses forbidden addresses, and sends the request to one of the
others with this client. The host header and the certificate are those of the host. The name is not looked up again, so
a name that has changed since (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import httpx

from moorage.kernel.addresses import Address
from moorage.kernel.errors import RemoteError


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes


class PinnedHttp:
    """A client that follows no redirects, ignores proxies of the environment, and logs no URL. It reads at most
    `answer_bytes_max` bytes of an answer; with 0 it does not read the body.
    """

    def __init__(self, *, timeout_s: float, connect_s: float, answer_bytes_max: int = 0) -> None:
        self._timeout = httpx.Timeout(timeout_s, connect=connect_s).as_dict()
        self._answer_bytes_max = answer_bytes_max

    async def send(
        self, method: str, url: httpx.URL, addresses: Sequence[Address], headers: Mapping[str, str], content: bytes
    ) -> Answer:
        """Send the request to the first of the addresses that accepts a connection. `url` holds no user and no
        password.

        Raises httpx.TransportError, and RemoteError for an answer that is too large.
        """
        for address in addresses[:-1]:
            try:
                return await self._answer_to(self._request(method, url, address, headers, content))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._answer_to(self._request(method, url, addresses[-1], headers, content))

    def _request(
        self, method: str, url: httpx.URL, address: Address, headers: Mapping[str, str], content: bytes
    ) -> httpx.Request:
        to = url.copy_with(host=str(address), fragment=None)
        extensions = {"sni_hostname": url.raw_host.decode(), "timeout": self._timeout}
        named = httpx.Headers(headers)
        named["Host"] = url.netloc.decode()
        return httpx.Request(method, to, headers=named, content=content, extensions=extensions)

    async def _answer_to(self, request: httpx.Request) -> Answer:
        # The transport lives for one request: a kept connection would be shared by all names of its address.
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                content = await self._body(request, response) if self._answer_bytes_max else b""
            finally:
                await response.aclose()
            return Answer(response.status_code, dict(response.headers), content)

    async def _body(self, request: httpx.Request, response: httpx.Response) -> bytes:
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > self._answer_bytes_max:
                raise RemoteError(f"{request.headers['host']} answers more than {self._answer_bytes_max} bytes")
        return bytes(content)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()
