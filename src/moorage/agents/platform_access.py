"""Access to a deployed agent: callers need a key or token of its workspace with the right. The platform decides.

The platform's answer about a credential is cached for five minutes, or less: the agent follows the platform's feed of
revoked keys, and checks itself whether a credential has expired. While the feed is broken, each credential is checked
again every second. While the platform is away, credentials that it accepted when last reached stay valid for a while,
unless they expire or are known to be revoked. A refusal is cached for seconds. Credentials are cached by their SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import httpx
import structlog

from moorage.kernel.access import Scope, may_use_agent
from moorage.kernel.encoding import decode
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError, UnavailableError

log = structlog.get_logger(__name__)

OFFLINE_S = 15 * 60.0
_FRESH_S = 300.0
_FRESH_WITHOUT_FEED_S = 1.0
_REFUSED_S = 5.0
_ASK_S = 5.0
# After a question that the platform did not answer, it is not asked again about known credentials for this long.
_PAUSE_S = 5.0
_WAIT_S = 10  # how long the platform holds a request for the feed open
_AGAIN_S = 0.5
_REMEMBERED_MAX = 10_000
_CREDENTIAL_CHARS_MAX = 8192

_MISSING = "No API key: send one of the deployment's workspace as X-Api-Key, or a token as Authorization: Bearer"
_FOREIGN = "This key does not open this deployment: use a key of its workspace"
_UNKNOWN = "Invalid API key: the platform does not know it, or it was revoked or has expired"
_REVOKED = "Invalid API key: it was revoked. Use another one"
_EXPIRED = "Invalid API key: it has expired. Use another one"


@dataclass(frozen=True)
class Deployed:
    """The deployment of this agent. `api_key` is the agent's own. `offline_s` limits how long known credentials stay
    valid without the platform.
    """

    platform_url: str
    workspace_id: str
    deployment: str
    api_key: str
    offline_s: float = OFFLINE_S


@dataclass(frozen=True)
class _Answer:
    """The platform's answer about a credential. `at` is monotonic time, `expires_at` wall clock time."""

    refusal: UnauthenticatedError | ForbiddenError | None
    at: float
    actor: str = ""
    scopes: frozenset[str] = frozenset()
    expires_at: float = float("inf")


class PlatformAccess:
    """Admission of callers by the platform. It follows the feed of revoked keys between `start` and `close`."""

    def __init__(self, deployed: Deployed, transport: httpx.AsyncBaseTransport | None = None) -> None:
        # Use no proxy: it would see the keys.
        self._client = httpx.AsyncClient(
            base_url=deployed.platform_url, timeout=_ASK_S, transport=transport, trust_env=False
        )
        self._deployed = deployed
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}
        self._pause_until = 0.0
        self._revoked: OrderedDict[str, None] = OrderedDict()  # actors; ids of keys are never used again
        self._cursor = ""
        self._feed_works = False
        self._heard_at = float("-inf")
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        await self._client.aclose()

    async def admit(self, api_key: str | None, bearer: str | None, right: Scope = Scope.AGENTS_INVOKE) -> None:
        """Admit a caller.

        Raises UnauthenticatedError or ForbiddenError; UnavailableError for an unknown credential while the platform is
        away.
        """
        credential = (api_key or bearer or "").strip()
        if not credential or len(credential) > _CREDENTIAL_CHARS_MAX:
            raise UnauthenticatedError(_MISSING)
        digest = hashlib.sha256(credential.encode()).digest()
        answer = self._answers.get(digest)
        if answer is None or not self._is_fresh(answer):
            answer = await self._asked(credential, digest, answer)
        self._check(answer, right)

    def _check(self, answer: _Answer, right: Scope) -> None:
        if answer.refusal is not None:
            raise type(answer.refusal)(str(answer.refusal))  # a new instance, since each keeps its own traceback
        if answer.actor in self._revoked:
            raise UnauthenticatedError(_REVOKED)
        if answer.expires_at <= time.time():
            raise UnauthenticatedError(_EXPIRED)
        if not may_use_agent(answer.scopes, right, self._deployed.deployment):
            raise ForbiddenError(
                f"This key may not do that: it lacks the scope {right}, or {right}:{self._deployed.deployment} for this "
                "deployment. Use a key that has it"
            )

    def _is_fresh(self, answer: _Answer) -> bool:
        age_s = time.monotonic() - answer.at
        if answer.refusal is not None:
            return age_s < _REFUSED_S
        return age_s < (_FRESH_S if self._feed_works else _FRESH_WITHOUT_FEED_S)

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _asked(self, credential: str, digest: bytes, known: _Answer | None) -> _Answer:
        """Ask the platform. Concurrent requests with the same credential share one question."""
        if known is not None and time.monotonic() < self._pause_until and self._lasts(known):
            return known
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(credential))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        try:
            answer = await asyncio.shield(asking)
        except UnavailableError:
            self._pause_until = time.monotonic() + _PAUSE_S
            if known is not None and self._lasts(known):
                return known
            raise
        self._remember(digest, answer)
        return answer

    def _lasts(self, known: _Answer) -> bool:
        """Return True if an accepted credential is still valid while the platform is away. Up to the time of the last
        contact the feed reported every revocation.
        """
        return known.refusal is None and (time.monotonic() - max(known.at, self._heard_at) < self._deployed.offline_s)

    async def _ask(self, credential: str) -> _Answer:
        headers = {"X-Api-Key": credential, "X-Tenant-Id": self._deployed.workspace_id}
        asked_at = time.monotonic()
        try:
            answer = await self._client.get("/api/v1/auth", headers=headers)
        except (httpx.HTTPError, UnicodeError, ValueError) as error:
            _raise_away("the platform does not answer who calls", error=type(error).__name__)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return _Answer(UnauthenticatedError(_UNKNOWN), asked_at)
        if answer.status_code == httpx.codes.FORBIDDEN:
            return _Answer(ForbiddenError(_FOREIGN), asked_at)
        if answer.status_code != httpx.codes.OK:
            _raise_away("the platform does not say who calls", status=answer.status_code)
        caller = decode(answer.content)
        if caller["workspace_id"] != self._deployed.workspace_id:
            return _Answer(ForbiddenError(_FOREIGN), asked_at)
        return _Answer(None, asked_at, caller["actor"], frozenset(caller["scopes"]), _end_of(caller))

    def _remember(self, digest: bytes, answer: _Answer) -> None:
        self._answers[digest] = answer
        self._answers.move_to_end(digest)
        if len(self._answers) > _REMEMBERED_MAX:
            self._answers.popitem(last=False)

    # --- the feed of revoked keys -------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_feed()
                self._pause_until = 0.0
            except Exception as error:  # any kind: the feed of revocations must never stop
                if self._feed_works:
                    log.warning("the platform does not tell which keys were revoked", error=type(error).__name__)
                self._feed_works = False
                await asyncio.sleep(_AGAIN_S)

    async def _read_feed(self) -> None:
        """Read one page. Cached answers older than the first page are checked again within a second, as usual."""
        asked_at = time.monotonic()
        answer = await self._client.get(
            "/api/v1/auth/revocations",
            params={"after": self._cursor, "wait_seconds": _WAIT_S if self._feed_works else 0},
            headers={"X-Api-Key": self._deployed.api_key, "X-Tenant-Id": self._deployed.workspace_id},
            timeout=_WAIT_S + _ASK_S,
        )
        if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
            self._cursor = ""  # the cursor belongs to another platform
        answer.raise_for_status()
        page = decode(answer.content)
        for key_id in page["key_ids"]:
            self._revoked[f"key:{key_id}"] = None
        while len(self._revoked) > _REMEMBERED_MAX:
            self._revoked.popitem(last=False)
        self._cursor, self._feed_works, self._heard_at = page["cursor"], True, asked_at


def _end_of(caller: dict[str, Any]) -> float:
    told = caller.get("expires_at")
    return datetime.fromisoformat(told).timestamp() if told else float("inf")


def _raise_away(event: str, **facts: object) -> NoReturn:
    log.warning(event, **facts)
    raise UnavailableError("The platform, which knows the API keys, does not answer; try again in a moment") from None
