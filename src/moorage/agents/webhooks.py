"""Webhooks: the addresses that may be told how a run ended, and the worker's job that delivers to them.

A caller names an address, and this server, which may stand inside a private network, connects to it. The address is
therefore checked twice: before the run is accepted, so that the caller learns what is wrong, and before each attempt,
because the name may resolve differently by then. The attempt connects to the very address that was checked, under the
name's host header and certificate, so a name that changes in between (DNS rebinding) gains nothing. Redirects and
proxies are not followed.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from uuid import UUID

import httpx
import structlog

from moorage import __version__
from moorage.agents.langgraph_json import WebhookConfig, WebhookRules
from moorage.agents.records.webhooks import DeliveryStatus
from moorage.agents.store.webhooks import LeasedDelivery, WebhookStore
from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError, StartupError
from moorage.kernel.pinned_http import PinnedHttp
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

SLOTS = 20  # concurrent deliveries of one process
POLL_S = 1.0
_POST_S = 10.0
_CONNECT_S = 3.0  # to one of a host's addresses
_LOOKUP_S = 2.0  # while the caller of a new run waits
_DELAYS_S = (1, 10, 60, 300)  # after the first, second, ... failed attempt
_ATTEMPTS_MAX = len(_DELAYS_S) + 1
_KEEP_S = 24 * 3600

_VARIABLE = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_OUR_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class WebhookPolicy:
    """Rules for webhook addresses. Each refusal is an InvalidRequestError that says why."""

    def __init__(self, rules: WebhookRules, resolve: Resolve = resolve_name) -> None:
        self._rules = rules
        self._resolve = resolve

    async def check(self, url: str) -> None:
        """Check the address of a new run. A name need not resolve yet, only when the run ends."""
        try:
            async with asyncio.timeout(_LOOKUP_S):
                await self.resolved(url)
        except OSError as error:
            log.info("the host of a webhook does not resolve yet", error=type(error).__name__)

    async def resolved(self, url: str) -> tuple[httpx.URL, list[Address]]:
        """Return the URL and the addresses of its host, all of them allowed. Raises OSError when it has none."""
        parsed = self._parsed(url)
        try:
            addresses = await self._resolve(parsed.raw_host.decode())
        except UnicodeError:
            raise InvalidRequestError("Webhook is not a valid URL") from None
        for address in addresses:
            place = blocked_range(address)
            if place and not (place == "loopback" and not self._rules.disable_loopback):
                raise InvalidRequestError(f"Webhook host blocked: {place} IP range")
        return parsed, addresses

    def _parsed(self, url: str) -> httpx.URL:
        """Return the URL if it fits the rules that need no name look-up."""
        if len(url) > self._rules.max_url_length:
            raise InvalidRequestError(f"Webhook URL is longer than {self._rules.max_url_length} characters")
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise InvalidRequestError("Webhook is not a valid URL") from None
        if not parsed.scheme or not parsed.host:
            raise InvalidRequestError("Webhook must be an absolute URL")
        if self._rules.require_https and parsed.scheme != "https":
            raise InvalidRequestError("Webhook must use https")
        if parsed.scheme not in ("http", "https"):
            raise InvalidRequestError("Webhook must use http or https")
        port = parsed.port or {"http": 80, "https": 443}[parsed.scheme]
        if parsed.port == 0 or port > 65535:
            raise InvalidRequestError("Webhook is not a valid URL")
        if self._rules.allowed_ports and port not in self._rules.allowed_ports:
            raise InvalidRequestError(f"Webhook port not allowed: {port}")
        if self._rules.allowed_domains and not any(_is_of(parsed.host, name) for name in self._rules.allowed_domains):
            raise InvalidRequestError("Webhook host not allowed")
        return parsed


def _is_of(host: str, allowed: str) -> bool:
    """Return True if the host matches. `*.example.com` matches subdomains, but not example.com itself."""
    host, allowed = host.lower().rstrip("."), allowed.lower().rstrip(".")
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed


def webhook_headers(config: WebhookConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of every delivery, with `${{ env.X }}` filled in. Raises StartupError, which never names a
    value.
    """
    return {name: _header(name, value, config.env_prefix, environment) for name, value in config.headers.items()}


def _header(name: str, value: str, prefix: str, environment: Mapping[str, str]) -> str:
    place = f"langgraph.json, webhooks.headers.{name}"

    def filled_in(found: re.Match[str]) -> str:
        if not found[1].startswith(prefix):
            raise StartupError(f"{place}: {found[1]} does not begin with {prefix}, the env_prefix of webhooks.")
        if found[1] not in environment:
            raise StartupError(f"{place}: the environment has no {found[1]}.")
        return environment[found[1]]

    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OUR_HEADERS:
        raise StartupError(f"{place}: this is not a header that can be set.")
    if "${{" in _VARIABLE.sub("", value):
        raise StartupError(f"{place}: only ${{{{ env.NAME }}}} is understood.")
    full = _VARIABLE.sub(filled_in, value)
    if not (full.isascii() and full.isprintable()):
        raise StartupError(f"{place}: the value is not printable ASCII text.")
    return full


class Deliveries:
    """The deliveries of the database as rows with leases, and their execution. Logs only the host of a URL."""

    def __init__(self, store: WebhookStore, policy: WebhookPolicy, headers: Mapping[str, str]) -> None:
        self._store = store
        self._policy = policy
        self._headers = headers
        self._http = PinnedHttp(timeout_s=_POST_S, connect_s=_CONNECT_S)

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedDelivery]:
        return await self._store.claim(worker, slots, lease_s)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        return await self._store.beat(leases, lease_s)

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        self._store.beat_from_thread(leases, lease_s)

    async def reap(self) -> int:
        await self._store.sweep(_KEEP_S)
        return await self._store.reap(_ATTEMPTS_MAX)

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self._store.hand_back(leases)

    async def execute(self, row: LeasedDelivery) -> bool:
        attempt = row.lease.attempt
        told = log.bind(run_id=str(row.run_id), host=_host_of(row.url), attempt=attempt)
        trouble = await self._trouble(row)
        if trouble is None:
            await self._store.move(row.lease, DeliveryStatus.DELIVERED)
            told.info("webhook delivered")
        elif attempt < _ATTEMPTS_MAX:
            await self._store.move(row.lease, DeliveryStatus.PENDING, _DELAYS_S[attempt - 1])
            told.warning("webhook not delivered", trouble=trouble, again_in_s=_DELAYS_S[attempt - 1])
        else:
            await self._store.move(row.lease, DeliveryStatus.FAILED)
            told.error("webhook given up", trouble=trouble)
        return False

    async def _trouble(self, row: LeasedDelivery) -> str | None:
        """Make one attempt. Returns the reason of its failure, or None if it was delivered."""
        try:
            async with asyncio.timeout(_POST_S):
                return await self._post(row)
        except InvalidRequestError as refusal:
            return str(refusal)
        except (httpx.TransportError, OSError) as error:
            return type(error).__name__  # the error's text may quote the request

    async def _post(self, row: LeasedDelivery) -> str | None:
        url, addresses = await self._policy.resolved(row.url)
        body = encode({**row.told, "webhook_sent_at": datetime.now(UTC)})
        plain = url.copy_with(username="", password="")
        status = (await self._http.send("POST", plain, addresses, _headers(url, self._headers), body)).status
        return None if 200 <= status < 300 else f"HTTP {status}"


def _headers(url: httpx.URL, given: Mapping[str, str]) -> httpx.Headers:
    headers = httpx.Headers({"Content-Type": "application/json", "User-Agent": f"moorage/{__version__}"})
    if url.userinfo:
        login = b64encode(f"{url.username}:{url.password}".encode()).decode()
        headers["Authorization"] = f"Basic {login}"
    headers.update(given)
    return headers


def _host_of(url: str) -> str:
    return httpx.URL(url).host
