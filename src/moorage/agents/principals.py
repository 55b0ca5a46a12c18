"""Principals: the user on whose behalf a verb acts, and what a project's handlers allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pydantic import ValidationError

from moorage.agents.records.filters import EVERYTHING, Filter
from moorage.agents.records.users import User
from moorage.agents.records.words import JsonObject, Request
from moorage.kernel.errors import AuthHandlerError

Resource = Literal["assistants", "threads", "crons", "store"]

Asked = TypeVar("Asked", bound=Request)


class Handlers(Protocol):
    """The `on` handlers of a project."""

    async def decide(self, user: Any, resource: Resource, action: str, value: JsonObject) -> Filter: ...


@dataclass(frozen=True)
class Principal:
    """The sender of a request. In a project without `auth` there are no handlers, and everyone may do everything."""

    user: User | None = None
    handlers: Handlers | None = None
    # The object that handlers see as `ctx.user`, if it is not `user`.
    seen_as: Any = None

    async def may(self, resource: Resource, action: str, value: JsonObject) -> Filter:
        """Return the filter of rows that the operation may touch. The handler may change `value`, and callers must use
        the changed one.

        Raises the handler's own refusal, ForbiddenError when it returns False, and AuthHandlerError when it fails.
        """
        if self.handlers is None:
            return EVERYTHING
        return await self.handlers.decide(self.seen_as or self.user, resource, action, value)

    async def may_ask(self, resource: Resource, action: str, request: Asked, **more: Any) -> tuple[Asked, Filter]:
        """Ask the handler about a whole request, and return the request as the handler leaves it. The handler also sees
        `more`. Raises as `may`.
        """
        if self.handlers is None:
            return request, EVERYTHING
        value = {"metadata": {}, **request.model_dump(exclude_none=True), **more}
        seen = await self.may(resource, action, value)
        try:
            return type(request).model_validate(value), seen
        except ValidationError as error:
            raise AuthHandlerError(f"The handler of {resource}.{action} has made the request invalid") from error

    @property
    def identity(self) -> str | None:
        return None if self.user is None else self.user.identity


@dataclass(frozen=True)
class Sent:
    """Further parts of a request that reach its run: the request's id, and entries for the configuration."""

    request_id: str | None = None
    configurable: Mapping[str, str] = field(default_factory=dict)


ANYONE = Principal()
