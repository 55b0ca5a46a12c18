"""The right that each operation of an agent server needs."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from moorage.agents.rights import RIGHTS, right_for
from moorage.kernel.access import Scope
from moorage.wiring.agent_application import mount_all
from tests.accounts.matrix import operations

OPEN = {"GET /", "GET /ok", "GET /info", "GET /docs", "GET /docs/oauth2-redirect", "GET /redoc", "GET /openapi.json"}


def test_every_operation_that_an_agent_serves_is_in_the_table():
    app = FastAPI()
    mount_all(app)
    served = {f"{operation.method} {operation.path}" for operation in operations(app)}
    assert len(served) > 40
    assert served - OPEN <= set(RIGHTS)


@pytest.mark.parametrize("told", RIGHTS)
def test_no_operation_is_taken_for_another(told):
    method, path = told.split()
    assert right_for(method, path) is RIGHTS[told]
    assert right_for(method, f"/agents{path}", mount_prefix="/agents") is RIGHTS[told]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/mine"),
        ("DELETE", "/threads/x/state"),
        ("GET", "/threads/x/state/y/z"),
        ("GET", "/threads//state/../x"),
        ("get", "/threads/x"),
        ("WEBSOCKET", "/threads/x/stream"),
        ("GET", "/threads/x\nGET /threads/x"),
    ],
)
def test_an_operation_that_the_table_does_not_know_needs_the_right_to_invoke(method, path):
    assert right_for(method, path) is Scope.AGENTS_INVOKE


@pytest.mark.parametrize("query", [b"cancel_on_disconnect=true", b"a=1&cancel%5Fon_disconnect=TRUE", b"cancel_on_disconnect=0&cancel_on_disconnect=1"])  # fmt: skip
@pytest.mark.parametrize("last", ["join", "stream"])
def test_to_end_a_run_by_leaving_it_is_no_reading(last, query):
    path = f"/threads/x/runs/y/{last}"
    assert right_for("GET", path, query) is Scope.AGENTS_INVOKE
    assert right_for("GET", path, b"cancel_on_disconnect=false&stream_mode=values") is Scope.AGENTS_READ
