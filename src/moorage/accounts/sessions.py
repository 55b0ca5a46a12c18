"""Signing in to the console: links that work once, and the session that a browser keeps as a cookie.

A session is sealed and names the API key that opened it. It may do what the key may, and ends when the key is revoked
or expires. A link is stored as the digest of its code and is removed by its first use.
"""

from __future__ import annotations

import base64
import secrets
import time
from uuid import UUID

from moorage.accounts.records import KeyToken, LoginLink, digest_of
from moorage.accounts.store import AccountStore
from moorage.kernel.access import Caller
from moorage.kernel.crypto import MasterKeys, UnsealError
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError

SESSION_LIFE_S = 7 * 86_400
LINK_LIFE_S = 3600
SESSION_PREFIX = "session:"

_PLACE = "console session"
_SESSION_CHARS_MAX = 1000
_ENDED = "The session has ended: sign in again"
_USED = "This link was used already or has expired. Sign in with an API key, or make another link: moorage console"


class Sessions:
    def __init__(self, store: AccountStore, master_keys: MasterKeys, origin: str) -> None:
        self._store = store
        self._master_keys = master_keys
        self._origin = origin

    def open(self, caller: Caller) -> str:
        """Return the value of the session cookie. Raises ForbiddenError for a caller without an API key."""
        return self._sealed(_key_of(caller))

    async def open_by_code(self, code: str) -> str:
        """Return the value of the session cookie, and remove the link. Raises UnauthenticatedError for a used or
        expired link.
        """
        key_id = await self._store.take_login_link(digest_of(code))
        if key_id is None:
            raise UnauthenticatedError(_USED)
        return self._sealed(key_id)

    async def link(self, caller: Caller) -> LoginLink:
        """Make a link that signs in once, for an hour. Raises ForbiddenError for a caller without an API key."""
        return await self.link_for_key(_key_of(caller))

    async def link_for_key(self, key_id: UUID) -> LoginLink:
        code = secrets.token_urlsafe(32)
        await self._store.insert_login_link(digest_of(code), key_id, LINK_LIFE_S)
        # After the #: browsers do not send that part to servers, so it appears in no log.
        return {"url": f"{self._origin}/login#{code}", "expires_in": LINK_LIFE_S}

    def read(self, session: str) -> KeyToken:
        """Return the key that the session stands for. Raises UnauthenticatedError for a session that was changed, has
        expired, or was sealed by another installation.
        """
        try:
            # A value that is too long is cut off here and then cannot be opened.
            sealed = base64.urlsafe_b64decode(session[:_SESSION_CHARS_MAX].removeprefix(SESSION_PREFIX))
            facts = decode(self._master_keys.open(sealed, _PLACE))
            key_id, left_s = UUID(facts["key"]), facts["until"] - time.time()
        except (UnsealError, ValueError) as error:
            raise UnauthenticatedError(_ENDED) from error
        if left_s <= 0:
            raise UnauthenticatedError(_ENDED)
        return KeyToken(key_id, None, left_s)

    def _sealed(self, key_id: UUID) -> str:
        facts = encode({"key": str(key_id), "until": int(time.time()) + SESSION_LIFE_S})
        return SESSION_PREFIX + base64.urlsafe_b64encode(self._master_keys.seal(facts, _PLACE)).decode()


def _key_of(caller: Caller) -> UUID:
    kind, _, key_id = caller.actor.partition(":")
    if kind != "key":
        raise ForbiddenError("The console is opened with an API key: tokens of an identity provider have none")
    return UUID(key_id)
