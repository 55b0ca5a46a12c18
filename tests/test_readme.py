"""Claims of the README: each feature has a served operation or a test, and each missing feature is refused.

Whoever adds a row, or serves a missing operation, adds a line here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.main import get_command

from moorage.cli import app as command_line
from moorage.kernel import project_keys
from tests.http.test_missing import APPLICATIONS
from tests.serving import ROOT
from tests.test_docs import TABLES, commands

README = (ROOT / "README.md").read_text()
AGENTS, PLATFORM, CONTROL = "agent_server", "traces", "control_plane"

LIFE = (
    "tests/platform/test_life.py::"
    "test_it_outlives_a_restart_a_kill_and_the_loss_of_its_front_door_and_leaves_nothing_behind"
)

# By row of "What works today": operations as the served document names them, or tests by file and name.
OPERATIONS: dict[str, dict[str, list[str]]] = {
    "assistants": {
        AGENTS: [
            *("POST /assistants", "GET /assistants/{assistant_id}", "PATCH /assistants/{assistant_id}"),
            *("DELETE /assistants/{assistant_id}", "POST /assistants/search", "POST /assistants/count"),
            *("POST /assistants/{assistant_id}/versions", "GET /assistants/{assistant_id}/graph"),
            *("GET /assistants/{assistant_id}/schemas", "GET /assistants/{assistant_id}/subgraphs"),
        ]
    },
    "threads": {
        AGENTS: [
            *("POST /threads", "POST /threads/search", "POST /threads/count", "PATCH /threads/{thread_id}"),
            *("DELETE /threads/{thread_id}", "POST /threads/{thread_id}/copy", "GET /threads/{thread_id}/state"),
            *("GET /threads/{thread_id}/state/{checkpoint_id}", "POST /threads/{thread_id}/state"),
            *("GET /threads/{thread_id}/history", "POST /threads/{thread_id}/history"),
        ]
    },
    "runs": {
        AGENTS: [
            *("POST /threads/{thread_id}/runs", "POST /threads/{thread_id}/runs/stream", "POST /runs/batch"),
            *(
                "POST /threads/{thread_id}/runs/wait",
                "GET /threads/{thread_id}/runs",
                "POST /runs/stream",
                "POST /runs",
            ),
            *("GET /threads/{thread_id}/runs/{run_id}/join", "POST /threads/{thread_id}/runs/{run_id}/cancel"),
            *("GET /threads/{thread_id}/runs/{run_id}/stream", "POST /runs/wait"),
        ]
    },
    "long-term memory": {AGENTS: ["PUT /store/items", "GET /store/items", "POST /store/items/search"]},
    "threads, streamed": {
        AGENTS: [
            "POST /threads/{thread_id}/commands",
            "POST /threads/{thread_id}/stream/events",
            "GET /threads/{thread_id}/stream",
        ],
    },
    "crons": {AGENTS: ["POST /runs/crons", "POST /threads/{thread_id}/runs/crons", "POST /runs/crons/search"]},
    "the terminal": {AGENTS: ["POST /threads/prune", "POST /runs/cancel", "POST /threads/{thread_id}/runs/stream"]},
    "audit": {PLATFORM: ["GET /api/v1/audit-logs"]},
    "accounts": {
        PLATFORM: [
            *("POST /api/v1/workspaces", "POST /api/v1/api-key", "DELETE /api/v1/api-key/{api_key_id}"),
            "POST /api/v1/master-key/rotate",
        ]
    },
    "traces in": {
        PLATFORM: [
            *("POST /runs/multipart", "POST /runs/batch", "POST /runs", "PATCH /runs/{run_id}"),
            *("GET /attachments/{token}", "POST /api/v1/model-price-map"),
        ]
    },
    "traces read": {
        PLATFORM: [
            *("POST /api/v1/runs/query", "GET /api/v1/runs/{run_id}", "POST /api/v1/runs/stats"),
            *("POST /api/v1/runs/group", "POST /api/v1/feedback", "GET /api/v1/sessions", "POST /v2/runs/query"),
            *("POST /v2/traces/query", "POST /v2/threads/query"),
        ]
    },
    "deployments": {
        PLATFORM: [
            *("POST /v2/deployments", "PATCH /v2/deployments/{deployment_id}", "GET /v2/deployment-logs"),
            "POST /v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy",
        ]
    },
    "exports": {
        PLATFORM: [
            *("POST /api/v1/bulk-exports", "POST /api/v1/bulk-exports/destinations"),
            "POST /api/v1/bulk-exports/{bulk_export_id}/verify",
        ]
    },
}
TESTS: dict[str, list[str]] = {
    "graphs": [
        "tests/agents/test_graphs.py::test_every_form_of_a_graph_runs",
        "tests/agents/test_graphs.py::test_what_is_wrong_with_a_graph_is_told_and_the_others_are_served",
    ],
    "processes": [
        "tests/agents/test_processes.py::test_workers_share_one_address_and_one_that_dies_is_replaced",
        "tests/agents/test_processes.py::test_a_run_is_joined_streamed_and_cancelled_from_another_process",
    ],
    "operations": [
        "tests/agents/test_metrics.py::test_runs_at_work_those_that_wait_and_open_streams_are_shown",
        "tests/agents/test_expiry.py::test_expired_threads_go_or_keep_their_latest_state",
    ],
    "users": [
        "tests/agents/test_auth.py::test_a_user_sees_their_own_threads_and_nobody_elses",
        "tests/agents/test_auth.py::test_nobody_is_let_in_without_a_token",
    ],
    "own routes": [
        "tests/agents/test_own_routes.py::test_own_routes_have_their_lifespan_and_come_before_the_servers",
        "tests/agents/test_own_routes.py::test_own_middleware_is_around_the_servers_operations",
    ],
    "webhooks": [
        "tests/agents/test_webhooks.py::test_the_end_of_a_run_is_told_with_the_run_and_the_values_of_its_thread",
        "tests/agents/test_webhooks.py::test_a_receiver_that_does_not_take_it_is_told_again",
        "tests/agents/test_webhook_policy.py::test_a_webhook_against_the_policy_is_refused_and_nothing_happened",
    ],
    "what it survives": [
        "tests/agents/test_crashes.py::test_a_killed_run_goes_on_from_its_last_checkpoint_and_who_comes_back_sees_its_end",
        "tests/faults/test_faults.py::test_a_thread_never_runs_two_runs_at_once_whoever_is_killed",
    ],
    "platform": [
        "tests/platform/test_life.py::test_an_unattended_install_has_what_it_was_given_and_down_stops_what_a_killed_one_left",
        LIFE,
    ],
    "console": [
        "tests/console/test_console.py::test_a_failed_run_is_found_by_text_and_read_to_its_messages",
        "tests/console/test_playground.py::test_a_chat_goes_on_and_forks_from_an_earlier_checkpoint",
    ],
    "deployments": [
        "tests/platform/test_deployments.py::test_a_repository_becomes_an_agent_that_is_traced",
        "tests/platform/test_langgraph_deploy.py::test_a_folder_with_requirements_is_built_here_and_runs",
    ],
    "host names": [
        "tests/platform/test_deployments.py::test_an_agent_answers_at_its_own_host_name_whatever_happens_to_the_platform",
        "tests/embedded/test_front_tls.py::test_names_of_deployments_and_of_the_platform_get_certificates_and_no_others",
    ],
    "tokens of users": [
        "tests/control/test_oauth_sign_ins.py::test_the_official_client_works_unmodified",
        "tests/control/test_oauth_sign_ins.py::test_a_token_is_refreshed_before_it_ends",
    ],
    "git": [
        "tests/control/test_integrations.py::test_a_private_repository_is_cloned_with_the_token_and_not_without",
        "tests/control/test_push_events.py::test_a_signed_push_makes_the_branch_due_and_wakes_whoever_looks",
        "tests/control/test_commit_statuses.py::test_the_commit_of_a_revision_is_told_each_state_once",
        "tests/platform/test_deployments.py::test_a_push_is_live_without_a_command",
    ],
    "other machines": [
        "tests/platform/test_listeners.py::test_the_official_client_reaches_an_agent_on_another_machine_and_its_traces_come_here",
        "tests/platform/test_listeners.py::test_kills_of_the_listener_and_of_the_platform_leave_the_agent_running",
    ],
    "speed": ["tests/test_readme.py::test_figures_are_where_readme_says"],
}
# Rows of "not there yet": an operation that answers 501, or a key of langgraph.json with which nothing starts.
NOT_THERE: dict[str, tuple[str, str]] = {
    "OTLP": (PLATFORM, "POST /api/v1/otel/v1/traces"),
    "datasets": (PLATFORM, "GET /api/v1/datasets"),
    "share links": (PLATFORM, "PUT /api/v1/runs/1/share"),
    "MCP": (AGENTS, "POST /mcp"),
    "A2A": (AGENTS, "POST /a2a/1"),
}


def rows() -> list[str]:
    table = README.partition("## What works today")[2].partition("Not there yet:")[0]
    return [row for row in re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE) if row.strip("- ")]


def not_there() -> list[str]:
    sentence = re.search(r"Not there yet: (.*?)\. ", README)
    assert sentence, "README says what is not there yet"
    return re.split(r"[,;] | and ", sentence[1])


def test_every_row_has_its_proof_and_every_proof_its_row():
    assert set(rows()) == OPERATIONS.keys() | TESTS.keys()


@pytest.mark.parametrize("row", OPERATIONS)
def test_what_is_there_is_served(row):
    for name, wanted in OPERATIONS[row].items():
        app = APPLICATIONS[name]()
        paths = app.openapi()["paths"]
        served = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
        assert set(wanted) - served == set()
        assert [app.state.missing.find(*each.split(" ")) for each in wanted] == [None] * len(wanted)


@pytest.mark.parametrize("row", TESTS)
def test_what_is_there_is_tested(row):
    for proof in TESTS[row]:
        file, _, name = proof.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert name in {node.name for node in found}, proof


def test_what_is_not_there_is_what_readme_says():
    assert set(not_there()) == NOT_THERE.keys(), "serve it or say it; then take it out of both"


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_is_not_there_is_refused_in_words_that_name_it(name):
    where, what = NOT_THERE[name]
    if where == "langgraph.json":
        assert what in project_keys.NOT_SERVED  # with which no server starts: tests/agents/test_langgraph_json.py
        return
    app = APPLICATIONS[where]()
    method, path = what.split(" ")
    answer = TestClient(app, raise_server_exceptions=False).request(method, path)
    assert answer.status_code == 501
    assert any(missing in answer.json()["detail"] for missing in app.state.missing.names), answer.text


def test_every_command_that_readme_names_is_one():
    known = {words for words, _ in commands(get_command(command_line))}
    groups = {words.rpartition(" ")[0] for words in known}
    for words in re.findall(r"`moorage ([a-z -]+?)(?: -[a-z].*?)?`", README):
        assert f"moorage {words}" in known | groups, words


def test_every_variable_that_readme_names_is_a_setting():
    known = set()
    for settings in TABLES.values():
        for field in settings.model_fields.values():
            alias = field.validation_alias
            known |= {alias} if isinstance(alias, str) else set(map(str, getattr(alias, "choices", [])))
    known |= {"LANGSMITH_TRACING"}  # of the tracing SDKs alone
    assert set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", README)) - known == set()


def test_figures_are_where_readme_says():
    page = Path(ROOT / "docs" / "benchmarks.md").read_text()
    assert re.search(r"\| .*\d", page)
