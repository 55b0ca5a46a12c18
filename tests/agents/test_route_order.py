"""The order in which routes are matched: the busiest first, and no route takes another one's requests."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from moorage.wiring.agent_application import _BUSIEST, mount_all
from tests.agents.test_auth_matrix import known


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = FastAPI()
    mount_all(app)

    @app.middleware("http")
    async def tell_route(request, call_next):
        try:
            return await call_next(request)
        finally:
            app.state.told.append(getattr(request.scope.get("route"), "path", ""))

    return app


# Pages of a bare FastAPI, which come before all others.
PAGES = {"/docs", "/docs/oauth2-redirect", "/openapi.json", "/redoc"}
OPERATIONS = [(method, path) for method, path in known() if path not in PAGES]


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value)
def test_each_operation_answers_at_its_own_path(app: FastAPI, method: str, path: str) -> None:
    told = app.state.told = []
    with TestClient(app, raise_server_exceptions=False) as client:
        client.request(method, re.sub(r"\{\w+\}", "00000000-0000-4000-8000-000000000000", path))
    assert told == [path]


def test_the_busiest_operations_are_there() -> None:
    assert set(_BUSIEST) <= {f"{method} {path}" for method, path in known()}
