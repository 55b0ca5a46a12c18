"""The reading routes on a real trace store, with a key that is the id of its workspace.

A test module uses them with `pytest_plugins = "tests.traces.reading_fixtures"`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI

from moorage.http.answers import PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.request_limits import RequestLimits
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError
from moorage.traces.reading import Reading
from moorage.traces.routes import runs, runs_v2
from moorage.traces.statistics import Statistics
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.threads import TraceThreads

pytest_plugins = "tests.traces.fixtures"


class KeyIsWorkspace:
    """An access that accepts every workspace: its key is its id. The key `<id>-none` has no rights."""

    async def admit(self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope) -> Caller:
        if api_key is None:
            raise UnauthenticatedError("An API key is needed")
        if api_key.endswith("-none"):
            raise ForbiddenError(f"The key does not hold {scope}")
        return Caller(UUID(api_key), Plan.PLUS, frozenset(Scope), "test")


@pytest.fixture
def workspace() -> UUID:
    return uuid4()


@pytest.fixture
def application(clickhouse: ClickHouse) -> FastAPI:
    app = make_application(title="reads", limits=RequestLimits(2**20), cors_origins=["*"], errors=PLATFORM_ERRORS)
    feedback = FeedbackStore(clickhouse)
    app.state.access = KeyIsWorkspace()
    app.state.traces = SimpleNamespace(
        reading=Reading(clickhouse, feedback),
        statistics=Statistics(clickhouse, feedback),
        threads=TraceThreads(clickhouse, feedback),
        attachments=SimpleNamespace(url=lambda key, mime_type: f"/attachments/{key}"),
    )
    for prefix in ("/api/v1", ""):
        app.include_router(runs.router, prefix=prefix)
    for prefix in ("/v2", "/api/v2"):
        app.include_router(runs_v2.router, prefix=prefix)
    return app


@pytest.fixture
async def reading_api(application: FastAPI, workspace: UUID) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    headers = {"X-Api-Key": str(workspace)}
    async with httpx.AsyncClient(transport=transport, base_url="http://moorage.test", headers=headers) as client:
        yield client
