"""Operations that are not served: found in the tables by method and path, and never a served one."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from moorage.agents.routes import missing
from moorage.http.answers import AGENT_ERRORS, PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.missing import Missing
from moorage.http.request_limits import RequestLimits
from moorage.wiring.agent_application import mount_all as mount_agents
from moorage.wiring.platform import MISSING, mount_all
from tests.accounts.matrix import operations
from tests.serving import ROOT

CONTRACTS = ROOT / os.environ.get("MOORAGE_CONTRACTS", "../shared/contracts")


def agents() -> FastAPI:
    made = Missing((missing.NOT_SERVED, [""]))
    app = make_application(title="agents", limits=RequestLimits(1), cors_origins=[], errors=AGENT_ERRORS, missing=made)
    mount_agents(app)
    return app


def platform() -> FastAPI:
    app = make_application(
        title="platform", limits=RequestLimits(1), cors_origins=[], errors=PLATFORM_ERRORS, missing=MISSING
    )
    mount_all(app)
    return app


APPLICATIONS = {"agent_server": cache(agents), "control_plane": cache(platform), "traces": cache(platform)}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("POST /a/b", "some"),
        ("POST /a/b/", "some"),
        ("GET /a/b", None),
        ("POST /a/b/c", None),
        ("PATCH /x/one/y", "others"),
        ("PATCH /x/y", None),
        ("PATCH /x/one/two/y", None),
        ("GET /all", "all"),
        ("PUT /all/of/it", "all"),
        ("PUT /allofit", None),
        ("GET /below/all/1", "all"),
    ],
)
def test_an_operation_is_found_by_method_and_path(operation, name):
    tables = {"some": ("POST /a/b",), "others": ("* /x/{id}/y",), "all": ("* /all/**",)}
    assert Missing((tables, ["", "/below"])).find(*operation.split()) == name


def paths_of(app: FastAPI) -> set[tuple[str, str]]:
    """Return method and path of served operations, with x for each parameter."""
    found = {(asked.method, re.sub(r"\{[^}]*\}", "x", asked.path)) for asked in operations(app)}
    assert len(found) > 40  # otherwise the walk has missed the routers
    return found


@pytest.mark.parametrize("name", APPLICATIONS)
def test_no_table_holds_what_is_served(name):
    app = APPLICATIONS[name]()
    found = {(*asked, app.state.missing.find(*asked)) for asked in paths_of(app) if app.state.missing.find(*asked)}
    assert found == set(), "remove the lines of these operations from NOT_SERVED: they are served now"


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_operation_of_the_contract_is_served_or_in_a_table(name):
    file = CONTRACTS / f"{name}.json"
    app = APPLICATIONS[name]()
    document: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else app.openapi()
    client = TestClient(app, raise_server_exceptions=False)
    served = {(method, path.rstrip("/")) for method, path in paths_of(app)}
    for path, item in document["paths"].items():
        concrete = re.sub(r"\{[^}]*\}", "x", path)
        for method in {"get", "post", "put", "patch", "delete"} & item.keys():
            if (method.upper(), concrete.rstrip("/")) not in served:
                answer = client.request(method, concrete)
                assert answer.status_code == 501, (method, path)
                assert answer.json().keys() == ({"detail"} if name == "agent_server" else {"detail", "error"})


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("POST /otel/v1/traces", "OTLP"),
        ("POST /api/v1/otel/v1/traces", "OTLP"),
        ("GET /annotation-queues", "annotation queues"),
        ("GET /repos/", "prompts"),
        ("GET /commits/-/prompt/latest", "prompts"),
        ("POST /api/v1/platform/datasets/1/examples", "datasets"),
        ("PUT /api/v1/runs/1/share", "share links"),
        ("GET /v2/integrations/github/installations/1/repositories", "GitHub integrations"),
    ],
)
def test_what_clients_of_the_platform_ask_for_is_named(operation, name):
    method, path = operation.split()
    answer = TestClient(platform()).request(method, path)
    assert (answer.status_code, answer.json()) == (
        501,
        {"detail": f"This version of moorage does not serve {name} yet", "error": "not_served"},
    )


def test_what_nobody_knows_stays_404():
    assert TestClient(platform()).get("/nowhere").status_code == 404
    assert TestClient(agents()).get("/nowhere").status_code == 404
