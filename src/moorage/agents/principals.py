"""Principals: on whose behalf a verb acts, and what a project's handlers let them do."""

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
    """Whoever sent a request. Without handlers, when a project has no `auth`, everyone may do everything."""

    user: User | None = None
    handlers: Handlers | None = None
    # What handlers see as `ctx.user` when that is not `user`.
    seen_as: Any = None

    async def may(self, resource: Resource, action: str, value: JsonObject) -> Filter:
        """Return the filter of rows that the operation may touch. The handler may change `value`; callers must use the
        changed one.

        Raises what the handler raises to refuse, ForbiddenError when it returns False, and AuthHandlerError when it fails.
        """
        if self.handlers is None:
            return EVERYTHING
        return await self.handlers.decide(self.seen_as or self.user, resource, action, value)

    async def may_ask(self, resource: Resource, action: str, request: Asked, **more: Any) -> tuple[Asked, Filter]:
        """Ask about a whole request, and return it as the handler leaves it. `more` is shown to the handler. Raises as
        `may`.
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
    """Further parts of a request that reach its run: its id, and headers for the configuration."""

    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


ANYONE = Principal()
BY_CLOCK = Sent()
