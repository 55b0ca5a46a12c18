"""Users whose tokens a caller may use.

A person who signs in with a bearer token acts only for themselves. An API key belongs to a program that serves users:
the program names the user, and the tokens that it obtains for that user count as its own.
"""

from __future__ import annotations

from moorage.control.store.oauth_tokens import Seer
from moorage.kernel.access import Caller
from moorage.kernel.errors import ForbiddenError

_PERSON = "user:"
_KEY = "key:"


def own_user(caller: Caller) -> str:
    """Return the user that the caller is. Raises ForbiddenError for a person whose name looks like a key's name."""
    if not caller.actor.startswith(_PERSON):
        return caller.actor
    subject = caller.actor.removeprefix(_PERSON)
    if subject.startswith(_KEY):
        raise ForbiddenError("A user whose name begins with key: owns no tokens here")
    return subject


def acting_user(caller: Caller, named: str | None) -> str:
    """Return the user that a token is for. Raises ForbiddenError when the caller may not act for the named user."""
    own = own_user(caller)
    if named is None or named == own:
        return own
    if caller.actor.startswith(_PERSON):
        raise ForbiddenError("A person uses their own tokens only: leave user_id out, or use an API key")
    if named.startswith(_KEY):
        raise ForbiddenError("user_id must not be the name of an API key")
    return named


def is_own(caller: Caller, user_id: str, actor: str) -> bool:
    return user_id == own_user(caller) or actor == caller.actor


def seer(caller: Caller) -> Seer:
    return Seer(caller.workspace_id, own_user(caller), caller.actor)
