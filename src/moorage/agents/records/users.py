"""Users of a project, as its `authenticate` handler names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from moorage.agents.records.words import JsonObject
from moorage.kernel.encoding import decode, encode

_STANDARD = ("identity", "display_name", "is_authenticated", "permissions")


class User(dict[str, Any]):
    """A user as handlers and graphs see it. Every field is an attribute and a key: `user.identity`, `user["identity"]`.

    Implements `BaseUser` of langgraph-sdk.
    """

    @property
    def identity(self) -> str:
        return str(self["identity"])

    @property
    def display_name(self) -> str:
        return str(self["display_name"])

    @property
    def is_authenticated(self) -> bool:
        return bool(self["is_authenticated"])

    @property
    def permissions(self) -> Sequence[str]:
        return self["permissions"]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the user has no {name}")


def user_of(given: Any) -> User:
    """Return the user that a handler names by an id, a mapping, or an object with an `identity`.

    Raises TypeError or ValueError with the reason.
    """
    fields = _fields_of(given)
    identity = fields.get("identity")
    if identity is None or not str(identity):
        raise ValueError("the user has no identity")
    permissions = fields.get("permissions") or []
    if isinstance(permissions, str) or not all(isinstance(permission, str) for permission in permissions):
        raise TypeError("permissions of a user are a list of strings")
    fields |= {"identity": str(identity), "permissions": list(permissions)}
    fields["display_name"] = fields.get("display_name") or fields["identity"]
    fields["is_authenticated"] = fields.get("is_authenticated", True)
    return User(fields)


def _fields_of(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        return {"identity": given}
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "model_dump"):  # pydantic
        return dict(given.model_dump())
    if not hasattr(given, "identity"):
        raise TypeError(f"a user is a string, a mapping or an object with an identity, not {type(given).__name__}")
    names = (
        [field.name for field in dataclasses.fields(given)] if dataclasses.is_dataclass(given) else _public_names(given)
    )
    return {name: getattr(given, name) for name in (*names, *_STANDARD) if hasattr(given, name)}


def _public_names(given: Any) -> list[str]:
    return [name for name in getattr(given, "__dict__", {}) if not name.startswith("_")]


def stored(user: User) -> JsonObject:
    """Return the user as JSON for the row of a run, without fields that have no JSON form, such as a connection."""
    kept: JsonObject = {}
    for name, value in user.items():
        with suppress(TypeError):
            kept[name] = decode(encode(value))
    return kept
