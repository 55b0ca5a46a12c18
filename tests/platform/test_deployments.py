"""From a git repository to a running agent, through a real `moorage up`: the flow that users have."""

from __future__ import annotations

import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest
from joserfc.jwk import RSAKey

from tests.control.forge_server import TOKEN, App, forge_server
from tests.control.repositories import commit, git_server, make_repository
from tests.control.ssh_server import ssh_server
from tests.embedded.test_front_tls import made_pair
from tests.platform.callers import Callers, source
from tests.platform.callers import version as answered_version
from tests.platform.guides import paste, snippet
from tests.platform.serving import Platform, make_folder, make_platform, moorage
from tests.serving import free_port
from tests.waiting import wait_until

# An agent's first start compiles everything that it imports: seconds of CPU time, or minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)
ENDED = {"DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"}
FILES = {
    "langgraph.json": json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], "env": ".env"}),
    "agent.py": source(1),
}
# One repository with several agents and their common code.
MONOREPO = {
    "apps/agent/langgraph.json": json.dumps(
        {"graphs": {"agent": "./agent.py:graph"}, "dependencies": [".", "../../libs/shared"]}
    ),
    "apps/agent/agent.py": source(2)
    .replace("import asyncio", "import asyncio, shared")
    .replace(": 2}", ": shared.TWO}"),
    "libs/shared/pyproject.toml": '[project]\nname = "shared-by-agents"\nversion = "1"\n[tool.setuptools]\npackages = ["shared"]',
    "libs/shared/shared/__init__.py": "TWO = 2",
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        make_repository(made / "repos" / "agent", FILES)
        yield made


@pytest.fixture(scope="module")
def git(folder: Path) -> Iterator[str]:
    with git_server(folder / "repos") as url:
        yield f"{url}/agent/.git"


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    settings = {
        "MOORAGE_GIT_PROTOCOLS": "http,https,ssh",
        "MOORAGE_GIT_PRIVATE_ADDRESSES": "true",
        "MOORAGE_EXPORT_PRIVATE_ENDPOINTS": "true",  # the API of a forge
    }
    settings |= {"MOORAGE_AGENT_START_SECONDS": "240", "MOORAGE_GIT_POLL_SECONDS": "1"}
    certificate, key = made_pair(folder / "pair", "*.example.test")
    settings |= {"MOORAGE_TLS_CERTIFICATE": str(certificate), "MOORAGE_TLS_KEY": str(key)}
    settings |= {"MOORAGE_HTTPS_PORT": str(free_port())}
    with make_platform(folder / "home", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def api(platform: Platform) -> Iterator[httpx.Client]:
    with platform.client() as client:
        yield client


@pytest.fixture(scope="module")
def deployment(api: httpx.Client, git: str) -> dict[str, Any]:
    """Deploy the repository, once for the module."""
    body = {
        "name": "agent",
        "source": "github",
        "source_config": {"repo_url": git, "deployment_type": "dev", "build_on_push": False},
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
        "secrets": [],
    }
    answer = api.post("/v2/deployments", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    ended = until_ended(api, made["id"], made["latest_revision_id"])
    assert ended["status"] == "DEPLOYED", ended["status_message"]
    return made


def until_ended(api: httpx.Client, deployment_id: str, revision_id: str, bound_s: float = 300) -> dict[str, Any]:
    give_up_at = time.monotonic() + bound_s
    while True:
        found = api.get(f"/v2/deployments/{deployment_id}/revisions/{revision_id}").json()
        if found["status"] in ENDED:
            return found
        assert time.monotonic() < give_up_at, f"it is still {found['status']}"
        time.sleep(0.1)


def lasted_s(revision: dict[str, Any]) -> float:
    """Return the time from the request to the end, from the times that the API shows."""
    began_at, ended_at = (datetime.fromisoformat(revision[name]) for name in ("created_at", "updated_at"))
    return (ended_at - began_at).total_seconds()


def version(api: httpx.Client, deployment: dict[str, Any], wait_s: float = 0) -> int:
    return answered_version(api, deployment["source_config"]["custom_url"], wait_s)


def test_a_repository_becomes_an_agent_that_is_traced(api: httpx.Client, deployment: dict[str, Any]) -> None:
    assert version(api, deployment) == 1
    wait_until(lambda: "agent" in {project["name"] for project in api.get("/api/v1/sessions").json()})


def test_keys_of_the_workspace_open_it_and_nothing_else(api: httpx.Client, deployment: dict[str, Any]) -> None:
    url = deployment["source_config"]["custom_url"]
    assert httpx.post(f"{url}/threads", json={}).status_code == 401
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": "lsv2_pt_invented"}).status_code == 401
    assert httpx.get(f"{url}/ok").status_code == 200
    weak = api.post("/api/v1/api-key", json={"description": "weak", "scopes": ["runs:read"]}).json()["key"]
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": weak}).status_code == 403
    other = api.post("/api/v1/workspaces", json={"display_name": "another"}).json()["api_key"]
    assert httpx.post(f"{url}/threads", json={}, headers={"X-Api-Key": other}).status_code == 403
    # It is refused before its body is read, and the answer must not be lost because of that.
    long = {"metadata": {"text": "x" * 2_000_000}}
    for body in ({}, {}, {}, long, long, long):
        assert httpx.post(f"{url}/threads", json=body).status_code == 401
    bearer = api.post("/api/v1/auth/token", json={}).json()["access_token"]
    assert httpx.post(f"{url}/threads", json={}, headers={"Authorization": f"Bearer {bearer}"}).status_code == 200


def test_calling_an_agent_is_a_right_of_its_own(api: httpx.Client, deployment: dict[str, Any]) -> None:
    url, name = deployment["source_config"]["custom_url"], deployment["name"]
    run = {"assistant_id": "agent", "input": {}}

    def statuses(*scopes: str) -> tuple[int, int]:
        """Return the statuses of a run and of a look at the threads, with a key of these scopes."""
        made = api.post("/api/v1/api-key", json={"description": "caller", "scopes": scopes})
        headers = {"X-Api-Key": made.json()["key"]}
        called = httpx.post(f"{url}/runs/wait", json=run, headers=headers, timeout=60)
        return called.status_code, httpx.post(f"{url}/threads/search", json={}, headers=headers).status_code

    assert statuses("deployments:read", "deployments:write") == (403, 403)
    assert statuses("agents:invoke") == (200, 403)
    assert statuses("agents:read") == (403, 200)
    assert statuses(f"agents:invoke:{name}", f"agents:read:{name}") == (200, 200)
    assert statuses("agents:invoke:another", "agents:read:another") == (403, 403)


def test_a_revoked_key_and_its_tokens_end_on_a_deployed_agent_within_two_seconds(
    api: httpx.Client, deployment: dict[str, Any]
) -> None:
    url = deployment["source_config"]["custom_url"]
    made = api.post("/api/v1/api-key", json={"description": "short-lived"}).json()
    with httpx.Client(base_url=api.base_url, headers={"X-Api-Key": made["key"]}) as theirs:
        token = theirs.post("/api/v1/auth/token", json={}).json()["access_token"]
    credentials = [{"X-Api-Key": made["key"]}, {"Authorization": f"Bearer {token}"}]
    with httpx.Client() as client:

        def look(headers: dict[str, str]) -> int:
            return client.post(f"{url}/threads/search", json={}, headers=headers).status_code

        time.sleep(1.1)  # past the time after which an agent asks again even without a feed
        assert [look(headers) for headers in credentials] == [200, 200]
        assert api.delete(f"/api/v1/api-key/{made['id']}").status_code == 200
        wait_until(lambda: [look(headers) for headers in credentials] == [401, 401], bound_s=2)


def test_the_next_revision_and_the_way_back_lose_no_request_and_no_stream(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any], folder: Path
) -> None:
    url = deployment["source_config"]["custom_url"]
    with Callers(platform, url).at_work() as callers:
        commit(folder / "repos" / "agent", MONOREPO)
        patch = {"source_revision_config": {"langgraph_config_path": "apps/agent/langgraph.json"}}
        second = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
        ended = until_ended(api, deployment["id"], second)
        assert ended["status"] == "DEPLOYED", ended["status_message"]
        # The first revision still has streams to end, and takes no more runs, though it looks into the same queue.
        for _ in range(3):
            thread = api.post(f"{url}/threads", json={}).json()["thread_id"]
            run = api.post(f"{url}/threads/{thread}/runs", json={"assistant_id": "agent", "input": {}}).json()
            assert api.get(f"{url}/threads/{thread}/runs/{run['run_id']}/join").json()["version"] == 2
        first = deployment["latest_revision_id"]
        again = api.post(f"/v2/deployments/{deployment['id']}/revisions/{first}/redeploy").json()
        assert until_ended(api, deployment["id"], again["latest_revision_id"])["status"] == "DEPLOYED"
        assert version(api, deployment) == 1
        served = len(callers.streams)
        wait_until(lambda: len(callers.streams) >= served + 3)
    assert callers.failures == []
    assert set(callers.answers) == {1, 2}


def test_more_workers_are_a_new_revision_and_the_death_of_one_loses_no_run(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    url = deployment["source_config"]["custom_url"]
    patch = {"source_config": {"resource_spec": {"min_scale": 2}}}
    patched = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()
    assert patched["source_config"]["resource_spec"]["max_scale"] == 2
    ended = until_ended(api, deployment["id"], patched["latest_revision_id"])
    assert ended["status"] == "DEPLOYED", ended["status_message"]
    wait_until(lambda: len(workers(platform)) == 2, 240)

    def run(seconds: float) -> tuple[str, str]:
        thread = api.post(f"{url}/threads", json={}).json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"wait_s": seconds}}
        made = api.post(f"{url}/threads/{thread}/runs", json=body).json()
        return f"{url}/threads/{thread}", f"{url}/threads/{thread}/runs/{made['run_id']}"

    def pid() -> int:
        body = {"assistant_id": "agent", "input": {"wait_s": 0.1}}
        return api.post(f"{url}/runs/wait", json=body).json()["pid"]

    wait_until(lambda: len({pid() for _ in range(8)}) == 2, 240)
    # Each request reaches any worker, since the front door keeps no connections: most of these requests reach a worker
    # that does not execute the run.
    long = [run(300)[1] for _ in range(6)]
    assert {api.get(place).json()["status"] for place in long} == {"running"}
    for place in long:
        with api.stream("GET", f"{place}/stream", timeout=60) as joined:
            assert api.post(f"{place}/cancel", params={"wait": "true"}).status_code == 200
            joined.read()
        assert api.get(place).json()["status"] == "interrupted"
    runs = [run(3) for _ in range(8)]
    os.kill(workers(platform)[0].pid, signal.SIGKILL)
    answers = [
        (api.get(f"{place}/join", timeout=120).json(), api.get(thread).json()["status"]) for thread, place in runs
    ]
    assert {(answer["version"], status) for answer, status in answers} == {(1, "idle")}
    wait_until(lambda: len(workers(platform)) == 2, 240)
    # Their parent is the agent's own process: if it ends, the agent has ended, and is restarted.
    old = workers(platform)
    old[0].parent().kill()
    wait_until(lambda: len(workers(platform)) == 2 and not any(worker.is_running() for worker in old), 240)
    assert version(api, deployment) == 1
    assert api.get(f"/v2/deployments/{deployment['id']}/revisions/{ended['id']}").json()["status_message"] is None


def agent_processes(platform: Platform) -> list[psutil.Process]:
    mark = f"{platform.home}/agents/"
    found = psutil.process_iter(["cmdline", "ppid"])
    return [process for process in found if mark in " ".join(process.info["cmdline"] or ()) and is_server(process)]


def is_server(process: psutil.Process) -> bool:
    return "serve" in process.info["cmdline"] and "bwrap" not in process.info["cmdline"][0]


def workers(platform: Platform) -> list[psutil.Process]:
    """Return the workers that another process has started."""
    found = {process.pid: process for process in agent_processes(platform)}
    return [process for process in found.values() if process.info["ppid"] in found]


def test_a_revision_that_cannot_be_says_why_and_changes_nothing(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any], folder: Path
) -> None:
    before = version(api, deployment)
    commit(folder / "repos" / "agent", {"agent.py": "import nowhere_to_be_found\n"})
    patch = {"source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"}}
    with Callers(platform, deployment["source_config"]["custom_url"]).at_work(asking=1, streaming=1) as callers:
        broken = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
        ended = until_ended(api, deployment["id"], broken)
    assert ended["status"] == "DEPLOY_FAILED"
    cause, line, log = ended["status_message"].splitlines()
    assert cause.startswith("The agent ended at its start: Graph 'agent' (./agent.py:graph) cannot be loaded")
    assert cause.endswith("No module named 'nowhere_to_be_found'")
    assert line.strip() == "agent.py, line 1: import nowhere_to_be_found"
    assert log == f"The whole log: moorage logs {deployment['name']} --revision {ended['number']}"
    assert (callers.failures, set(callers.answers)) == ([], {before})
    # It is reported within a minute; on a machine without spare CPU time, within the time that a working deployment
    # took.
    good = api.get(f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}").json()
    assert lasted_s(ended) < max(60, 2 * lasted_s(good))
    patch = {"source_revision_config": {"repo_ref": "no-such-branch"}}
    lost = api.patch(f"/v2/deployments/{deployment['id']}", json=patch).json()["latest_revision_id"]
    ended = until_ended(api, deployment["id"], lost)
    assert ended["status"] == "BUILD_FAILED"
    assert "no-such-branch" in ended["status_message"]
    assert version(api, deployment) == before


def test_an_agent_goes_on_while_the_platform_is_killed(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    before, [first, second] = version(api, deployment), workers(platform)
    parent = first.parent()
    platform.kill()
    assert version(api, deployment) == before
    first.kill()
    wait_until(lambda: len(workers(platform)) == 2 and not first.is_running(), 240)
    platform.start()
    assert version(api, deployment) == before
    assert [parent.is_running(), second.is_running()] == [True, True], "what runs is taken over, not started anew"


def test_the_doctor_finds_what_is_not_well(platform: Platform, api: httpx.Client, deployment: dict[str, Any]) -> None:
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    code, shown, _ = moorage("doctor", "--output", "json", **told)
    found = {finding["check"]: finding for finding in json.loads(shown)}
    assert list(found) == ["platform", "engines", "disk of traces", "isolation", "API key", "deployment agent"]
    assert (code, found["deployment agent"]["state"]) == (0, "warning"), (
        "the last revision failed, an earlier one serves"
    )
    assert "BUILD_FAILED" in found["deployment agent"]["words"]
    assert "user" in found["isolation"]["words"] or found["isolation"]["state"] == "warning"
    path = f"/v2/deployments/{deployment['id']}"
    api.patch(path, json={"source_config": {"install_command": "npm ci"}}).raise_for_status()
    shown = moorage("doctor", "--output", "json", **told)[1]
    api.patch(path, json={"source_config": {"install_command": ""}}).raise_for_status()
    [warned] = [finding for finding in json.loads(shown) if finding["check"] == "settings of agent"]
    assert (warned["state"], warned["words"].split()[0]) == ("warning", "source_config.install_command")
    code, shown, _ = moorage("doctor", **(told | {"MOORAGE_API_KEY": "lsv2_pt_invented"}))
    assert (code, "failed" in shown, "deployment agent" in shown) == (1, True, False)
    code, shown, _ = moorage("doctor", MOORAGE_URL="http://127.0.0.1:1")
    assert (code, "nothing answers" in shown.lower() or "failed" in shown) == (1, True)


def test_an_agent_answers_at_its_own_host_name_whatever_happens_to_the_platform(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    path, first, second = f"/v2/deployments/{deployment['id']}", "chat.example.test", "other.example.test"

    def named(url: str | None) -> None:
        shown = api.patch(path, json={"source_config": {"custom_url": url}}).raise_for_status().json()
        assert shown["source_config"]["custom_url"] == (url or deployment["source_config"]["custom_url"])

    with HostCalls(platform.url, first, second) as calls:
        named(f"https://{first}:{platform.settings['MOORAGE_HTTPS_PORT']}")
        wait_until(lambda: calls.is_agent(first))
        assert answered_version(api, "", headers={"Host": first}) == version(api, deployment)
        wait_until(lambda: api.get(path).json()["host_name"]["certificate"] == "issued")
        trusted = ssl.create_default_context(cafile=platform.settings["MOORAGE_TLS_CERTIFICATE"])
        with httpx.Client(verify=trusted, headers={"Host": first}) as secure:
            address = f"https://127.0.0.1:{platform.settings['MOORAGE_HTTPS_PORT']}/info"
            told = secure.get(address, extensions={"sni_hostname": first}).json()
        assert "langgraph_py_version" in told
        active = api.get(path).json()["active_revision_id"]
        again = api.post(f"{path}/revisions/{active}/redeploy").raise_for_status().json()["latest_revision_id"]
        assert until_ended(api, deployment["id"], again)["status"] == "DEPLOYED"
        platform.kill()
        assert calls.is_agent(first)
        platform.start()
        assert calls.is_agent(first)
        named(f"http://{second}:{platform.port}")
        wait_until(lambda: calls.is_agent(second) and not calls.is_agent(first))
        named(None)
        wait_until(lambda: not calls.is_agent(second))
        assert calls.lost == []


class HostCalls:
    """Repeated requests to two host names. `lost` are answers of neither the agent nor the platform."""

    def __init__(self, url: str, *hosts: str) -> None:
        self.lost: list[tuple[str, int, str]] = []
        self._url, self._hosts, self._over = url, hosts, threading.Event()
        self._thread = threading.Thread(target=self._call_on)

    def is_agent(self, host: str) -> bool:
        return "langgraph_py_version" in httpx.get(f"{self._url}/info", headers={"Host": host}, timeout=30).json()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _call_on(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._over.wait(0.02):
                for host in self._hosts:
                    answer = client.get("/info", headers={"Host": host})
                    by_platform_away = answer.status_code == 503 and "platform is starting" in answer.text
                    if answer.status_code != 200 and not by_platform_away:
                        self.lost.append((host, answer.status_code, answer.text))


def test_what_is_deleted_leaves_nothing_behind(
    platform: Platform, api: httpx.Client, deployment: dict[str, Any]
) -> None:
    folder = platform.home / "agents" / "1"
    assert api.delete(f"/v2/deployments/{deployment['id']}").status_code == 204
    # Its own workspace may use the name at once.
    same = {
        "name": "agent",
        "source": "internal_source",
        "source_config": {},
        "source_revision_config": {},
        "secrets": [],
    }
    assert api.post("/v2/deployments", json=same).status_code == 201
    wait_until(lambda: not folder.exists(), 500)  # the next one has another number, since this one's was still in use
    assert agent_processes(platform) == []
    assert api.get(deployment["source_config"]["custom_url"] + "/ok").status_code == 502


@pytest.fixture(scope="module")
def guided(platform: Platform, api: httpx.Client, git: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Deploy with the first command of the guide, which is then run again."""
    make_repository(folder / "repos" / "guided", FILES)
    deploy = snippet("deployments.md", "moorage rollback").splitlines()[0]
    repository = git.replace("/agent/", "/guided/")
    stands_for = {"https://github.com/you/agent": repository, "--ref main": "--ref main --name guided"}
    for _ in range(2):
        assert "DEPLOYED" in paste(deploy, stands_for, platform, folder)
    [made] = api.get("/v2/deployments", params={"name": "guided"}).json()["resources"]
    yield made
    assert api.delete(f"/v2/deployments/{made['id']}").status_code == 204


def test_the_other_first_commands_of_the_guide(
    platform: Platform, api: httpx.Client, guided: dict[str, Any], folder: Path
) -> None:
    others = snippet("deployments.md", "moorage rollback").splitlines()[1:]
    stands_for = {"show agent": "show guided", "moorage logs agent -f": _followed, "rollback agent": "rollback guided"}
    printed = paste("\n".join(others), stands_for, platform, folder)
    assert "/d/guided" in printed
    revisions = api.get(f"/v2/deployments/{guided['id']}/revisions").json()["resources"]
    assert [each["status"] for each in revisions] == ["DEPLOYED"] * 3, "the way back is a revision of its own"


# Follows the log until somebody stops it.
_followed = "{ timeout --signal INT 4 moorage logs guided -f || [ $? = 124 ]; }"


def test_a_push_is_live_without_a_command(api: httpx.Client, guided: dict[str, Any], folder: Path) -> None:
    path = f"/v2/deployments/{guided['id']}"
    assert api.patch(path, json={"source_config": {"build_on_push": True}}).status_code == 200
    before = api.get(path).json()["latest_revision_id"]
    newest = commit(folder / "repos" / "guided", {"agent.py": source(2)})
    wait_until(lambda: api.get(path).json()["latest_revision_id"] != before, 60)
    pushed = until_ended(api, guided["id"], api.get(path).json()["latest_revision_id"])
    assert pushed["status"] == "DEPLOYED", pushed["status_message"]
    assert pushed["source_revision_config"]["repo_commit_sha"] == newest
    assert version(api, guided, 30) == 2


def test_a_private_repository_is_deployed_as_the_guide_says(
    platform: Platform, api: httpx.Client, folder: Path
) -> None:
    """The deployment is deleted before its build ends, since other tests build."""
    newest = commit(make_repository(folder / "forges" / "team" / "agent", FILES), {"more": ""})
    (folder / "token.txt").write_text(f"{TOKEN}\n")
    with forge_server("gitea", folder / "forges") as forge:
        not_waiting = "--integration ours --name of-forge --no-wait"
        stands_for = {"https://git.example.com": forge.url, "--integration ours": not_waiting}
        printed = paste(snippet("deployments.md", "< token.txt"), stands_for, platform, folder)
        assert TOKEN not in printed
        assert "team/agent" in printed
        fetched(api, "of-forge", newest)


def test_an_app_of_github_is_added_as_the_guide_says_and_lists_what_it_is_installed_for(
    platform: Platform, folder: Path
) -> None:
    key = RSAKey.generate_key(2048, private=True)
    (folder / "app.pem").write_bytes(key.as_pem(private=True))
    reach = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    with forge_server("github", folder / "repos", more=3) as forge:
        forge.app = App("Iv23liExample", 12345, key)
        stands_for = {"add ours": f"add app --base-url {forge.url}"}
        assert "PRIVATE" not in paste(snippet("deployments.md", "--app-id"), stands_for, platform, folder)
        code, out, err = moorage("integrations", "repos", "app", "-o", "json", **reach)
        assert code == 0, err
        assert [each["owner"] for each in json.loads(out)][-3:] == ["many"] * 3
    code, _, err = moorage("integrations", "remove", "app", "--yes", **reach)
    assert code == 0, err
    code, _, err = moorage("integrations", "add", "app", "--app-id", "1", **reach)
    assert (code, "--installation-id" in err) == (2, True), err


def test_a_repository_over_ssh_is_fetched_as_the_guide_says(
    platform: Platform, api: httpx.Client, folder: Path
) -> None:
    """The deployment is deleted before its build ends, as above."""
    newest = commit(make_repository(folder / "repos" / "private", FILES), {"more": ""})
    (folder / "ssh").mkdir()
    with ssh_server(folder / "ssh") as server:
        keyscan, add, deploy = snippet("deployments.md", "ssh-keyscan").splitlines()
        paste(keyscan, {"git.example.com >": f"-p {server.port} 127.0.0.1 >"}, platform, folder)
        added = paste(
            add, {"ssh://git@git.example.com": server.url, "host-keys.txt": "host-keys.txt -o json"}, platform, folder
        )
        server.authorize(json.loads(added[: added.rindex("}") + 1])["public_key"])
        stands_for = {
            "ssh://git@git.example.com/team/agent": f"{server.url}{folder}/repos/private",
            "--integration plain": "--integration plain --no-wait",
        }
        paste(deploy, stands_for, platform, folder)
        fetched(api, "private", newest)


def fetched(api: httpx.Client, name: str, commit_sha: str) -> None:
    """Wait until the deployment's source is fetched, and delete the deployment."""
    [made] = api.get("/v2/deployments", params={"name": name}).json()["resources"]
    path = f"/v2/deployments/{made['id']}"
    log = f"{path}/revisions/{made['latest_revision_id']}/logs"
    wait_until(lambda: f"Fetched commit {commit_sha}" in api.get(log, params={"type": "build"}).text, 60)
    assert api.delete(path).status_code == 204
