"""Who may use a deployed agent: whoever brings a key of its workspace, which the platform is asked about.

A yes counts for five minutes without asking again, and for a day when the platform is away, so that agents outlive it. A no
counts for seconds. Keys are remembered by their SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass

import httpx
import structlog

from moorage.kernel.encoding import decode
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError, UnavailableError

log = structlog.get_logger(__name__)

_FRESH_S = 300.0
_LASTING_S = 24 * 3600.0
_REFUSED_S = 5.0
_ASK_S = 5.0
_REMEMBERED_MAX = 10_000
_CREDENTIAL_CHARS_MAX = 8192
# What a key must hold to use the agents of its workspace.
_SCOPE = "deployments:read"

_MISSING = "No API key: send one of the deployment's workspace as X-Api-Key, or a token as Authorization: Bearer"
_FOREIGN = "This key does not open this deployment: use a key of its workspace"
_WEAK = f"This key may not use deployments: it lacks the scope {_SCOPE}"


@dataclass(frozen=True)
class _Answer:
    refusal: UnauthenticatedError | ForbiddenError | None
    at: float


class PlatformAccess:
    """Asks the platform at `url` about callers of an agent that belongs to the workspace `workspace_id`."""

    def __init__(self, url: str, workspace_id: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        # Not by way of a proxy: it would be shown the keys.
        self._client = httpx.AsyncClient(base_url=url, timeout=_ASK_S, transport=transport, trust_env=False)
        self._workspace_id = workspace_id
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}

    async def close(self) -> None:
        await self._client.aclose()

    async def admit(self, api_key: str | None, bearer: str | None) -> None:
        """Raises UnauthenticatedError, ForbiddenError; UnavailableError for a key that is not known yet while the platform
        is away.
        """
        credential = (api_key or bearer or "").strip()
        if not credential or len(credential) > _CREDENTIAL_CHARS_MAX:
            raise UnauthenticatedError(_MISSING)
        digest = hashlib.sha256(credential.encode()).digest()
        answer = self._answers.get(digest)
        if answer is None or not _is_fresh(answer):
            answer = await self._asked(credential, digest, answer)
        if answer.refusal is not None:
            raise type(answer.refusal)(str(answer.refusal))  # a new one: each keeps its own traceback

    async def _asked(self, credential: str, digest: bytes, known: _Answer | None) -> _Answer:
        """One question at a time for each key, however many requests bring it."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(credential))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        try:
            answer = await asyncio.shield(asking)
        except UnavailableError:
            if known is not None and known.refusal is None and time.monotonic() - known.at < _LASTING_S:
                return known
            raise
        self._remember(digest, answer)
        return answer

    async def _ask(self, credential: str) -> _Answer:
        headers = {"X-Api-Key": credential, "X-Tenant-Id": self._workspace_id}
        try:
            answer = await self._client.get("/api/v1/auth", headers=headers)
        except (httpx.HTTPError, UnicodeError, ValueError) as error:
            log.warning("the platform does not answer who calls", error=type(error).__name__)
            raise _away() from None
        if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            return _Answer(_refusal(answer.status_code), time.monotonic())
        if answer.status_code != httpx.codes.OK:
            log.warning("the platform does not say who calls", status=answer.status_code)
            raise _away()
        return _Answer(self._judged(decode(answer.content)), time.monotonic())

    def _judged(self, caller: dict[str, object]) -> ForbiddenError | None:
        scopes = caller.get("scopes")
        if caller.get("workspace_id") != self._workspace_id:
            return ForbiddenError(_FOREIGN)
        return None if isinstance(scopes, list) and _SCOPE in scopes else ForbiddenError(_WEAK)

    def _remember(self, digest: bytes, answer: _Answer) -> None:
        self._answers[digest] = answer
        self._answers.move_to_end(digest)
        if len(self._answers) > _REMEMBERED_MAX:
            self._answers.popitem(last=False)


def _is_fresh(answer: _Answer) -> bool:
    return time.monotonic() - answer.at < (_FRESH_S if answer.refusal is None else _REFUSED_S)


def _refusal(status: int) -> UnauthenticatedError | ForbiddenError:
    unknown = UnauthenticatedError("Invalid API key: the platform does not know it, or it was revoked or has expired")
    return unknown if status == httpx.codes.UNAUTHORIZED else ForbiddenError(_FOREIGN)


def _away() -> UnavailableError:
    return UnavailableError("The platform, which knows the API keys, does not answer; try again in a moment")
