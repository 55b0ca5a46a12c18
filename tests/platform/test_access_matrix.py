"""Every operation of the platform and of a deployed agent with every credential that must not open it, over HTTP.

`rights.txt` names the right of each operation of the platform. An operation that is missing there fails the test;
`UPDATE_GOLDENS=1` adds it. Agents' operations are in `moorage.agents.rights`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from moorage.agents.rights import RIGHTS
from moorage.kernel.access import Scope, only_reads
from moorage.wiring.platform import mount_all
from tests.accounts.matrix import Guarded, guarded, unguarded
from tests.platform.callers import source
from tests.platform.serving import Platform, make_folder, moorage

pytest_plugins = "tests.platform.fixtures"
# An agent is deployed, which takes minutes where there is hardly any CPU time.
pytestmark = pytest.mark.timeout(600)

WRITTEN = Path(__file__).with_name("rights.txt")
# Operations that need no key: health, capabilities, and addresses that carry their own secret.
OPEN = {
    ("GET", "/ok"),
    ("GET", "/info"),
    ("GET", "/info/health"),
    ("GET", "/docs"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
    # The console: its pages contain no data, and signing in has its own tests.
    ("GET", "/"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("DELETE", "/login"),
    ("GET", "/o/{place:path}"),
    ("GET", "/assets/{name}"),
}


# The address of each is its secret. Each has its own tests.
SIGNED = {
    ("GET", "/attachments/{token}"),
    ("GET", "/feedback/tokens/{token}"),
    ("POST", "/feedback/tokens/{token}"),
    ("GET", "/auth/callback/{provider_id}"),
    ("GET", "/auth/setup/{provider_id}"),
    ("GET", "/v2/auth/callback/{provider_id}"),
    ("GET", "/v2/auth/setup/{provider_id}"),
    ("POST", "/integrations/{integration_id}/pushes"),
    ("POST", "/v2/integrations/{integration_id}/pushes"),
    # It checks its key itself; tests/platform/test_listeners.py tries it with other keys.
    ("WEBSOCKET", "/listeners/{listener_id}/tunnels"),
    ("WEBSOCKET", "/v2/listeners/{listener_id}/tunnels"),
    # They need a token of their own; tests/control/test_image_registry.py tries them with other tokens, and without
    # one.
    ("GET", "/v2/"),
    *(
        (method, f"{root}/images/{{deployment_id}}/{path}")
        for root in ("", "/v2")
        for method, path in (
            ("POST", "blobs/uploads/"),
            ("GET", "blobs/uploads/{upload_id}"),
            ("PATCH", "blobs/uploads/{upload_id}"),
            ("PUT", "blobs/uploads/{upload_id}"),
            ("GET", "blobs/{digest}"),
            ("GET", "manifests/{reference}"),
            ("PUT", "manifests/{reference}"),
        )
    ),
    ("PUT", "/uploads/{path:path}"),
    ("PUT", "/v2/uploads/{path:path}"),
}
OPEN_OF_AGENTS = {"GET /ok", "GET /info"}
# They need a bucket or an OAuth server; tests of exports and of OAuth tokens try them with keys of others.
ELSEWHERE = {"destination_id", "bulk_export_id", "agent_id", "auth_id", "connection_id", "token_id"}

Headers = Mapping[str, str]


class Credentials(NamedTuple):
    """Headers of requests. The headers in `bad` open nothing; those in `foreign` open another workspace."""

    bad: dict[str, Headers]
    foreign: Headers
    read_only: Headers


# --- what is tried ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app() -> FastAPI:
    made = FastAPI()
    mount_all(made)
    return made


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> list[Guarded]:
    """Return the platform's operations, each at all paths that serve it."""
    found = guarded(app)
    assert len(found) > 100  # otherwise the walk has missed the routers
    return found


@pytest.fixture(scope="module")
def owner(platform: Platform) -> Iterator[httpx.Client]:
    with platform.client() as client:
        yield client


@pytest.fixture(scope="module")
def credentials(platform: Platform, owner: httpx.Client) -> Credentials:
    expires_at = datetime.now(UTC) + timedelta(seconds=2)
    expired = made_key(owner, expires_at=expires_at.isoformat())["key"]
    revoked = made_key(owner)
    with httpx.Client(base_url=platform.url, headers={"X-Api-Key": revoked["key"]}) as client:
        token = client.post("/api/v1/auth/token", json={}).json()["access_token"]
    assert owner.delete(f"/api/v1/api-key/{revoked['id']}").status_code == 200
    other = owner.post("/api/v1/workspaces", json={"display_name": "other"}).json()
    read_only = made_key(owner, read_only=True)
    assert read_only["read_only"]
    time.sleep(max(0.0, (expires_at - datetime.now(UTC)).total_seconds()) + 0.1)
    bad = {
        "none": {},
        "unknown": {"X-Api-Key": "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789"},
        "expired": {"X-Api-Key": expired},
        "revoked": {"X-Api-Key": revoked["key"]},
        "token of a revoked key": {"Authorization": f"Bearer {token}"},
        "token signed by nobody": {"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0."},
    }
    return Credentials(bad, {"X-Api-Key": other["api_key"]}, {"X-Api-Key": read_only["key"]})


def made_key(owner: httpx.Client, scopes: Iterable[str] | None = None, **more: Any) -> dict[str, Any]:
    wanted = {"description": "matrix", "scopes": sorted(scopes) if scopes else None, **more}
    answer = owner.post("/api/v1/api-key", json=wanted)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def answers(url: str, asked: Iterable[tuple[str, str]], headers: Headers) -> dict[tuple[str, str], httpx.Response]:
    """Send many requests at a time, and return the answer for each method and path. Of a stream that stays open, only
    the beginning is read.
    """

    async def ask_all() -> dict[tuple[str, str], httpx.Response]:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            slots = asyncio.Semaphore(12)

            async def ask(method: str, path: str) -> httpx.Response:
                async with slots, client.stream(method, path) as answer:
                    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                        await answer.aread()
                    return answer

            pairs = list(asked)
            return dict(zip(pairs, await asyncio.gather(*(ask(*pair) for pair in pairs)), strict=True))

    return asyncio.run(ask_all())


def statuses(
    platform: Platform, operations: list[Guarded], headers: Headers, wanted: Callable[[httpx.Response], bool]
) -> dict[str, int]:
    """Return the statuses of the operations whose answer is not the wanted one."""
    paths = {(operation.method, operation.url): operation for operation in operations}
    found = answers(platform.url, paths, headers)
    return {
        f"{paths[pair].method} {paths[pair].path}": answer.status_code
        for pair, answer in found.items()
        if not wanted(answer)
    }


# --- nothing is forgotten ---------------------------------------------------------------------------------------------


def test_what_asks_for_no_key_is_written_down(app: FastAPI) -> None:
    prefixes = ("/api/v1", "/api/v2", "/v2", "/api-host")
    found = set()
    for method, path in unguarded(app):
        prefix = next((prefix for prefix in prefixes if path.startswith(f"{prefix}/")), "")
        found.add((method, path.removeprefix(prefix)))
    assert found == OPEN | SIGNED


def test_the_right_of_each_operation_is_written_down(app: FastAPI) -> None:
    """A change of a right is then seen, and a new operation gets its right on purpose."""
    served = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    found = [f"{each.method} {each.path} {each.scope or 'any'}" for each in guarded(app) if shown(each) in served]
    text = "".join(f"{line}\n" for line in sorted(found))
    if os.environ.get("UPDATE_GOLDENS") == "1":
        WRITTEN.write_text(text)
    assert text == WRITTEN.read_text(), "read the difference, then run with UPDATE_GOLDENS=1"


def test_the_walk_meets_every_operation_that_the_platform_tells_of(
    owner: httpx.Client, operations: list[Guarded]
) -> None:
    met = {shown(operation) for operation in operations}
    prefixed = {(method, prefix + path) for method, path in OPEN | SIGNED for prefix in ("", "/api/v1", "/v2")}
    met |= {(method, path.replace(":path", "")) for method, path in prefixed}
    document = owner.get("/openapi.json").json()
    assert not {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    } - met  # fmt: skip


def shown(operation: Guarded) -> tuple[str, str]:
    """Return method and path as the document writes them."""
    return operation.method, operation.path.replace(":path", "")


# --- the platform -----------------------------------------------------------------------------------------------------


def test_no_operation_opens_for_a_bad_credential(
    platform: Platform, operations: list[Guarded], credentials: Credentials
) -> None:
    wrong = {
        name: statuses(platform, operations, headers, lambda answer: answer.status_code == 401)
        for name, headers in credentials.bad.items()
    }
    assert not any(wrong.values()), wrong


def test_no_operation_opens_for_a_key_of_another_workspace(
    platform: Platform, operations: list[Guarded], credentials: Credentials
) -> None:
    headers = {**credentials.foreign, "X-Tenant-Id": str(platform.workspace_id)}
    assert not statuses(
        platform,
        operations,
        headers,
        lambda answer: answer.status_code == 403 and "requires workspace specification" in answer.text,
    )


def test_a_read_only_key_changes_nothing_and_reads_everything(
    platform: Platform, operations: list[Guarded], credentials: Credentials
) -> None:
    reading = [each for each in operations if each.scope is None or only_reads(each.scope)]
    reading = [each for each in reading if each.scope is not Scope.SECRETS_READ]
    changing = [each for each in operations if each.scope is not None and not only_reads(each.scope)]
    assert {each.method for each in reading} <= {"GET", "POST"}
    assert not statuses(platform, changing, credentials.read_only, lambda answer: answer.status_code == 403)
    assert not statuses(platform, reading, credentials.read_only, lambda answer: answer.status_code not in {401, 403})


def test_no_operation_opens_without_its_scope(
    platform: Platform, owner: httpx.Client, operations: list[Guarded]
) -> None:
    for scope in sorted({each.scope for each in operations if each.scope}):
        key = made_key(owner, set(Scope) - {scope})["key"]
        asking = [operation for operation in operations if operation.scope is scope]
        wrong = statuses(
            platform,
            asking,
            {"X-Api-Key": key},
            lambda answer, scope=scope: answer.status_code == 403 and f"scope {scope}" in answer.text,
        )
        assert not wrong, scope


def test_the_key_of_a_workspace_rules_no_installation(
    platform: Platform, operations: list[Guarded], credentials: Credentials
) -> None:
    ruling = [operation for operation in operations if operation.scope is Scope.OPERATOR]
    assert {"/metrics", "/workspaces", "/master-key/rotate"} <= {operation.path for operation in ruling}
    assert not statuses(platform, ruling, credentials.foreign, lambda answer: answer.status_code == 403)


def test_no_answer_of_a_random_id_is_a_crash(owner: httpx.Client, operations: list[Guarded]) -> None:
    """Nothing has these ids, and the requests have no body: a refusal or an empty answer, never a 500."""
    harmless = [operation for operation in operations if operation.method == "GET" or "{" in operation.path]
    paths = [(operation.method, operation.url) for operation in harmless]
    for (method, path), answer in answers(str(owner.base_url), paths, owner.headers).items():
        assert answer.status_code < 500, (method, path, answer.text)
        assert answer.status_code != 200 or method == "GET", (method, path, answer.text)


# --- what belongs to another workspace --------------------------------------------------------------------------------

# For operations that read their body before they look for the object.
STOLEN: dict[str, Any] = {
    "description": "stolen",
    "name": "stolen",
    "display_name": "stolen",
    "score": 0,
    "outputs": {"stolen": True},
    "source_revision_config": {},
    "feedback_key": "stolen",
    "aggregation_type": "avg",
    "formula_parts": [{"part_type": "weighted_key", "weight": 1, "key": "stolen"}],
    "match_pattern": "stolen",
    "prompt_cost": 9,
    "completion_cost": 9,
}
# Accepted before the run is looked for, since clients may send it before the run is known. Nothing of it may be seen.
LATER = {("PATCH", "/runs/{run_id}")}


@pytest.fixture(scope="module")
def things(platform: Platform, owner: httpx.Client, deployment: dict[str, Any]) -> dict[str, str]:
    """Return ids of the first workspace's objects, by the parameters that name them in paths."""
    project = made(owner, "/api/v1/sessions", {"name": f"mine-{uuid4().hex[:8]}"})["id"]
    run_id, start, thread = str(uuid4()), datetime.now(UTC), f"thread-{uuid4().hex[:8]}"
    run = {
        "id": run_id, "trace_id": run_id, "dotted_order": f"{start:%Y%m%dT%H%M%S%fZ}{run_id}", "name": "mine",
        "run_type": "chain", "inputs": {"mine": 1}, "start_time": start.isoformat(), "session_id": project,
        "extra": {"metadata": {"thread_id": thread}},
    }  # fmt: skip
    assert owner.post("/runs", json=run).status_code == 202
    part = {"part_type": "weighted_key", "weight": 1.5, "key": "good"}
    formula = {"feedback_key": "sum", "aggregation_type": "sum", "formula_parts": [part], "session_id": project}
    provider = {
        "provider_id": f"provider-{uuid4().hex[:8]}", "name": "mine", "client_id": "mine",
        "auth_url": "https://example.com/a", "token_url": "https://example.com/t",
    }  # fmt: skip
    integration = {
        "kind": "gitea", "name": f"mine-{uuid4().hex[:8]}", "token": "mine", "base_url": "https://git.example.test",
    }  # fmt: skip
    listener = {"compute_type": "machine", "compute_id": f"mine-{uuid4().hex[:8]}", "compute_config": {}}
    price = {"name": "mine", "match_pattern": "mine", "prompt_cost": 1, "completion_cost": 1}
    return {
        "session_id": project,
        "run_id": run_id,
        "trace_id": run_id,
        "thread_id": thread,
        "feedback_id": made(owner, "/feedback", {"run_id": run_id, "key": "good", "score": 1})["id"],
        "formula_id": made(owner, "/feedback/formulas", formula)["id"],
        "id": made(owner, "/api/v1/model-price-map", price)["id"],
        "workspace_id": str(platform.workspace_id),
        "api_key_id": made_key(owner)["id"],
        "deployment_id": deployment["id"],
        "project_id": deployment["id"],
        "revision_id": deployment["latest_revision_id"],
        "provider_id": made(owner, "/v2/auth/providers", provider)["provider_id"],
        "integration_id": made(owner, "/v2/integrations", integration)["id"],
        "listener_id": made(owner, "/v2/listeners", listener)["id"],
    }


def made(owner: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = owner.post(path, json=body)
    assert answer.status_code in {200, 201}, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_belongs_to_another_workspace_is_answered_as_what_is_not_there(
    platform: Platform,
    owner: httpx.Client,
    credentials: Credentials,
    operations: list[Guarded],
    things: dict[str, str],
) -> None:
    """Sends real ids and invented ones: the answers must be equal, and the objects unchanged afterwards."""
    named = [operation for operation in operations if parameters(operation) - ELSEWHERE]
    named = [operation for operation in named if not parameters(operation) & ELSEWHERE]
    assert set.union(*(parameters(operation) for operation in named)) == set(things)
    before = read_all(owner, named, things)
    assert len([answer for answer in before.values() if answer.status_code == 200]) > 20
    nothing = {name: invented(value) for name, value in things.items()}
    with httpx.Client(base_url=platform.url, headers=credentials.foreign, timeout=60) as foreign:
        for operation in named:
            answer = asked(foreign, operation, things)
            expected = asked(foreign, operation, nothing)
            assert answer.status_code == expected.status_code, (operation, answer.text)
            assert without(answer.text, things) == without(expected.text, nothing), operation
            accepted = (operation.method, re.sub(r"^/api/v[12]|^/v[12]", "", operation.path)) in LATER
            assert operation.method == "GET" or accepted or answer.status_code >= 400, (operation, answer.text)
    after = read_all(owner, named, things)
    for path, answer in before.items():
        assert after[path].status_code == answer.status_code, path
        assert "stolen" not in after[path].text, path


def parameters(operation: Guarded) -> set[str]:
    return {name.removesuffix(":path") for name in re.findall(r"\{([^}]*)\}", operation.path)}


def filled(operation: Guarded, ids: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: ids[found[1]], operation.path)


def asked(client: httpx.Client, operation: Guarded, ids: Mapping[str, str]) -> httpx.Response:
    body = None if operation.method in {"GET", "DELETE"} else STOLEN
    return client.request(operation.method, filled(operation, ids), json=body)


def invented(value: str) -> str:
    """Return an id of the same kind that no object has."""
    return str(uuid4()) if re.fullmatch(r"[0-9a-f-]{36}", value) else f"invented-{uuid4().hex[:8]}"


def without(text: str, ids: Mapping[str, str]) -> str:
    for value in ids.values():
        text = text.replace(value, "ID")
    return text


def read_all(owner: httpx.Client, operations: list[Guarded], ids: Mapping[str, str]) -> dict[Any, httpx.Response]:
    reading = [("GET", filled(operation, ids)) for operation in operations if operation.method == "GET"]
    return dict(answers(str(owner.base_url), reading, owner.headers))


# --- a deployed agent -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployment(platform: Platform, owner: httpx.Client) -> Iterator[dict[str, Any]]:
    with make_folder() as folder:
        (folder / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}')
        (folder / "agent.py").write_text(source(1))
        told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
        code, _, errors = moorage("deploy", folder, "--name", "matrix", "--no-wait", "-o", "json", **told)
        assert code == 0, errors
        [found] = owner.get("/v2/deployments", params={"name_contains": "matrix"}).json()["resources"]
        give_up_at = time.monotonic() + 500
        path = f"/v2/deployments/{found['id']}/revisions/{found['latest_revision_id']}"
        while (revision := owner.get(path).json())["status"] != "DEPLOYED":
            assert "FAILED" not in revision["status"], revision
            assert time.monotonic() < give_up_at, revision
            time.sleep(0.2)
        yield found
        owner.delete(f"/v2/deployments/{found['id']}")


@pytest.fixture(scope="module")
def agent(platform: Platform, deployment: dict[str, Any]) -> str:
    """Deploy an agent, and return its address."""
    return f"{platform.url}/d/matrix"


@pytest.fixture(scope="module")
def served(owner: httpx.Client, agent: str) -> dict[tuple[str, str], str]:
    """Return method and path of each operation that the agent documents and that needs a key, with its line in the
    table.
    """
    document = owner.get(f"{agent}/openapi.json").json()
    told = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert len(told) > 40
    unknown = told - OPEN_OF_AGENTS - set(RIGHTS)
    assert not unknown, "write them into moorage/agents/rights.py"
    return {asked_of(line): line for line in sorted(told - OPEN_OF_AGENTS)}


def asked_of(line: str) -> tuple[str, str]:
    method, path = line.split()
    return method, re.sub(r"\{[^}]*\}", lambda _: str(uuid4()), path)


def test_no_operation_of_an_agent_opens_for_a_bad_or_a_foreign_credential(
    agent: str, served: dict[tuple[str, str], str], credentials: Credentials
) -> None:
    tried = {name: (headers, 401) for name, headers in credentials.bad.items()} | {
        "foreign": (credentials.foreign, 403)
    }
    for name, (headers, status) in tried.items():
        found = answers(f"{agent}/", ((method, path[1:]) for method, path in served), headers)
        wrong = {pair: answer.status_code for pair, answer in found.items() if answer.status_code != status}
        assert not wrong, name


@pytest.mark.parametrize(
    ("scopes", "opens"),
    [
        ({Scope.AGENTS_READ}, {Scope.AGENTS_READ}),
        ({Scope.AGENTS_INVOKE}, {Scope.AGENTS_INVOKE}),
        ({"agents:read:matrix"}, {Scope.AGENTS_READ}),
        ({"agents:invoke:matrix"}, {Scope.AGENTS_INVOKE}),
        ({"agents:read:other", "agents:invoke:other"}, set()),
        (set(Scope) - {Scope.AGENTS_READ, Scope.AGENTS_INVOKE}, set()),
    ],
    ids=["read", "invoke", "read this", "invoke this", "another", "everything else"],
)
def test_each_operation_of_an_agent_opens_for_its_right_alone(
    owner: httpx.Client,
    agent: str,
    served: dict[tuple[str, str], str],
    scopes: set[str],
    opens: set[Scope],
) -> None:
    headers = {"X-Api-Key": made_key(owner, scopes)["key"]}
    relative = {(method, path[1:]): line for (method, path), line in served.items()}
    for pair, answer in answers(f"{agent}/", relative, headers).items():
        right = RIGHTS[relative[pair]]
        assert (answer.status_code != 403) is (right in opens), relative[pair]
        assert answer.status_code != 401, relative[pair]
