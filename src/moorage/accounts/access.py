"""Authentication: turns the credentials of a request into a caller in one workspace, or into an error that says what to
do.

Ingest authenticates thousands of requests a second, so results are cached for a few seconds by the SHA-256 of the
credential. A revocation ends a cached result sooner (`revocations.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from moorage.accounts.records import (
    KEY_CHARS_MAX,
    KEY_CHARS_MIN,
    KeyToken,
    Member,
    StoredKey,
    WrongWorkspaceError,
    actor_of_key,
    digest_of,
    has_passed,
)
from moorage.accounts.sessions import SESSION_PREFIX, Sessions
from moorage.accounts.store import AccountStore
from moorage.accounts.tokens import Tokens, UserToken
from moorage.kernel.access import Plan, Scope, covers, known_scopes
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError
from moorage.kernel.memory import Memory

_MISSING = "No API key: send it as X-Api-Key, or a token as Authorization: Bearer"
_UNKNOWN = "Invalid API key: it is not known here. Check that it is whole, and for this installation"
_REVOKED = "Invalid API key: it was revoked. Use another one"
_EXPIRED = "Invalid API key: it has expired. Use another one"
_NO_WORKSPACE = "The bearer token opens no workspace of this installation; its claims must name one by its id"

# Sizes of the caches. Refusals have a cache of their own, so that invented keys cannot push out good ones.
_ADMITTED_MAX = 10_000
_REFUSED_MAX = 1_000
_REFUSED_S = 2.0
_NEVER = datetime.max.replace(tzinfo=UTC)

# The workspaces that one credential opens: the caller by the workspace's id as text.
_Doors = Mapping[str, Member]


class Access:
    """Authentication of requests. `http/access.py` calls it before every operation."""

    def __init__(
        self,
        store: AccountStore,
        tokens: Tokens,
        sessions: Sessions,
        *,
        revoked: Callable[[], Collection[str]] = frozenset,
        remember_s: float = 5.0,
    ) -> None:
        """Make the object. `revoked` returns actors of recently revoked keys, whose cached results may be stale."""
        self._store = store
        self._tokens = tokens
        self._sessions = sessions
        self._revoked = revoked
        self._remember_s = remember_s
        self._admitted = Memory[bytes, _Doors](_ADMITTED_MAX)
        self._refused = Memory[bytes, str](_REFUSED_MAX)

    async def admit(
        self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope | None
    ) -> Member:
        """Return the caller in the workspace that `tenant_id` names, or in the only one that the credential opens.

        An API key takes precedence over a bearer token; either header may carry either. Raises UnauthenticatedError
        (401) without a good credential, WrongWorkspaceError (403) when it does not open that workspace, ForbiddenError
        (403) without the scope, UnavailableError (503) when the credential cannot be looked up.
        """
        credential = (api_key or bearer or "").strip()
        if not credential:
            raise UnauthenticatedError(_MISSING)
        digest = digest_of(credential)
        doors = self._admitted.recall(digest)
        if doors is None:
            doors = await self._look_up(credential, digest)
        caller = _choose(doors, tenant_id)
        if caller.actor in self._revoked():
            raise UnauthenticatedError(_REVOKED)
        if scope is not None and scope not in caller.scopes:
            raise ForbiddenError(f"This key may not do that: it lacks the scope {scope}. Use a key that has it")
        return caller

    async def _look_up(self, credential: str, digest: bytes) -> _Doors:
        refusal = self._refused.recall(digest)
        if refusal is not None:
            raise UnauthenticatedError(refusal)
        try:
            doors = await self._identify(credential, digest)
        except UnauthenticatedError as error:
            self._refused.keep(digest, str(error), _REFUSED_S)
            raise
        self._admitted.keep(digest, doors, min(_seconds_left(doors), self._remember_s))
        return doors

    async def _identify(self, credential: str, digest: bytes) -> _Doors:
        if credential.startswith(SESSION_PREFIX):
            return await self._by_key_token(self._sessions.read(credential))
        if credential.count(".") != 2:
            return await self._by_key(credential, digest)
        token = await self._tokens.read(credential)
        if isinstance(token, KeyToken):
            return await self._by_key_token(token)
        return await self._by_user_token(token)

    async def _by_key(self, credential: str, digest: bytes) -> _Doors:
        possible = KEY_CHARS_MIN <= len(credential) <= KEY_CHARS_MAX
        key = _valid(await self._store.find_key_by_digest(digest) if possible else None)
        return _doors_of_key(key, known_scopes(key["scopes"]), key["expires_at"])

    async def _by_key_token(self, token: KeyToken) -> _Doors:
        """Admit a token as its key. The token ends with the key and never has more rights."""
        key = _valid(await self._store.find_key_by_id(token.key_id))
        held = known_scopes(key["scopes"])
        scopes = held if token.scopes is None else frozenset(scope for scope in token.scopes if covers(held, scope))
        return _doors_of_key(key, scopes, min(_in(token.expires_in_s), key["expires_at"] or _NEVER))

    async def _by_user_token(self, token: UserToken) -> _Doors:
        workspaces = await self._store.read_workspaces(token.workspace_ids)
        if not workspaces:
            raise ForbiddenError(_NO_WORKSPACE)
        plans = {workspace["id"]: Plan(workspace["plan"]) for workspace in workspaces}
        return _doors(plans, token.scopes, f"user:{token.subject}", _in(token.expires_in_s))


def _valid(key: StoredKey | None) -> StoredKey:
    if key is None:
        raise UnauthenticatedError(_UNKNOWN)
    if key["revoked_at"]:
        raise UnauthenticatedError(_REVOKED)
    if has_passed(key["expires_at"]):
        raise UnauthenticatedError(_EXPIRED)
    return key


def _seconds_left(doors: _Doors) -> float:
    expires_at = next(iter(doors.values())).expires_at
    return (expires_at.timestamp() - time.time()) if expires_at else float("inf")


def _in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _doors_of_key(key: StoredKey, scopes: frozenset[str], expires_at: datetime | None) -> _Doors:
    return _doors({key["workspace_id"]: Plan(key["plan"])}, scopes, actor_of_key(key["id"]), expires_at)


def _doors(plans: Mapping[UUID, Plan], scopes: frozenset[str], actor: str, expires_at: datetime | None) -> _Doors:
    everywhere = tuple(plans)
    return {
        str(workspace_id): Member(workspace_id, plan, scopes, actor, everywhere, expires_at)
        for workspace_id, plan in plans.items()
    }


def _choose(doors: _Doors, tenant_id: str | None) -> Member:
    if not tenant_id or not tenant_id.strip():
        if len(doors) == 1:
            return next(iter(doors.values()))
        raise WrongWorkspaceError(
            f"This token opens several workspaces and requires workspace specification: set X-Tenant-Id "
            f"(LANGSMITH_WORKSPACE_ID) to one of {_listed(doors)}"
        )
    caller = doors.get(tenant_id) or doors.get(_canonical(tenant_id))
    if caller is None:
        raise WrongWorkspaceError(
            "This key is for another workspace than X-Tenant-Id names. It requires workspace specification by its own "
            "id, or none: correct or remove LANGSMITH_WORKSPACE_ID, or use a key of that workspace"
        )
    return caller


def _canonical(tenant_id: str) -> str:
    try:
        return str(UUID(tenant_id.strip()))
    except ValueError:
        return ""


def _listed(ids: Iterable[str]) -> str:
    shown = sorted(ids)
    return ", ".join(shown[:10]) + (", …" if len(shown) > 10 else "")
