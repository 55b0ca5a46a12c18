"""A second machine: `moorage listener` with its own moorage runs agents of a platform, and both are killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_sync_client
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from moorage.control.tunnels import WAIT_S
from moorage.embedded.front_door import AWAY_WAIT_S
from tests.platform.callers import Callers, source
from tests.platform.callers import version as answered_version
from tests.platform.guides import paste, snippet
from tests.platform.machines import ENVIRONMENT, Machine, make_machine
from tests.platform.serving import Platform, environment, make_folder, make_platform, moorage
from tests.serving import free_port
from tests.waiting import until, wait_until

# The first start of an agent compiles everything that it imports: seconds of CPU time, or minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        yield made


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    with make_platform(folder / "home", **ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module")
def machine(platform: Platform, folder: Path) -> Iterator[Machine]:
    with make_machine(platform, folder / "shed") as running:
        yield running


def deploy(platform: Platform, folder: Path, name: str, code: str, *more: str) -> tuple[int, str]:
    """Deploy, and return the exit code and the output."""
    project = folder / f"project-{name}"
    project.mkdir(exist_ok=True)
    config = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}
    (project / "langgraph.json").write_text(json.dumps(config))
    (project / "agent.py").write_text(code)
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    ended = subprocess.run(
        [sys.executable, "-m", "moorage", "deploy", str(project), "--name", name, "--timeout", "280", "-v", *more],
        env=environment(**told),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def far(platform: Platform, machine: Machine, folder: Path) -> str:
    """Return the address of an agent on the other machine."""
    secret = ("--secret", "COLOUR=blue")
    code, printed = deploy(platform, folder, "far", source(1), "--listener", machine.name, *secret)
    assert code == 0, printed
    assert "Making an environment" in printed, "the listener's build log is the platform's"
    return f"{platform.url}/d/far"


def version(platform: Platform, url: str) -> int:
    with platform.client() as client:
        return answered_version(client, url)


def test_the_commands_of_the_guide(platform: Platform, machine: Machine, folder: Path, far: str) -> None:
    """Runs after `far`, which has the environment that the agent needs."""
    assert snippet("listeners.md", "moorage listener shed").splitlines()[-1] == f"moorage listener {machine.name}"
    project = folder / "my-agent"
    project.mkdir()
    (project / "langgraph.json").write_text(
        json.dumps({"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]})
    )
    (project / "agent.py").write_text(source(3))
    printed = paste(snippet("listeners.md", "moorage listeners list"), {"shed": machine.name}, platform, folder)
    assert "DEPLOYED" in printed
    assert version(platform, f"{platform.url}/d/my-agent") == 3
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    code, _, errors = moorage("deployments", "delete", "my-agent", "--yes", **told)
    assert code == 0, errors


def test_the_official_client_reaches_an_agent_on_another_machine_and_its_traces_come_here(
    platform: Platform, machine: Machine, far: str
) -> None:
    with get_sync_client(url=far, api_key=platform.key) as client:
        thread = client.threads.create()["thread_id"]
        run = client.runs.stream(thread, "agent", input={"steps": 3}, stream_mode="custom")
        assert [part.data for part in run if part.event == "custom"] == [0, 1, 2]
    [there] = machine.own()
    assert (there["name"], there["status"]) == ("far", "READY")
    with platform.client() as api:
        deployment = api.get("/v2/deployments", params={"name": "far"}).json()["resources"][0]
        assert deployment["warnings"] == []
        assert deployment["authentication"] == "platform_keys"
        wait_until(lambda: "far" in {project["name"] for project in api.get("/api/v1/sessions").json()})
        logs = f"/v1/projects/{deployment['id']}/revisions/{deployment['active_revision_id']}/deploy_logs"
        lines = wait_until(lambda: api.post(logs, json={}).json()["logs"])
    assert "revision 1 starts" in lines[0]["message"]


def test_its_agents_take_keys_of_the_platform_and_no_others(platform: Platform, machine: Machine, far: str) -> None:
    assert httpx.get(f"{far}/ok").status_code == 200
    for key in ("lsv2_pt_invented", machine.key):
        assert httpx.post(f"{far}/threads", json={}, headers={"X-Api-Key": key}).status_code == 401
    with platform.client() as api:
        other = api.post("/api/v1/workspaces", json={"display_name": "another"}).json()["api_key"]
    assert httpx.post(f"{far}/threads", json={}, headers={"X-Api-Key": other}).status_code == 403


def test_more_requests_at_once_than_idle_tunnels_are_all_answered(platform: Platform, far: str) -> None:
    with Callers(platform, far).at_work(asking=12, streaming=12) as callers:
        wait_until(lambda: len(callers.streams) >= 24 and len(callers.answers) >= 100, 120)
    assert callers.failures == []


def test_the_next_revision_and_the_way_back_lose_no_request(platform: Platform, folder: Path, far: str) -> None:
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    with Callers(platform, far).at_work() as callers:
        code, printed = deploy(platform, folder, "far", source(2))
        assert code == 0, printed
        assert version(platform, far) == 2
        code, _, errors = moorage("rollback", "far", **told)
        assert code == 0, errors
        assert version(platform, far) == 1
    assert callers.failures == []
    assert set(callers.answers) == {1, 2}


def test_a_build_that_fails_there_says_why_here(platform: Platform, machine: Machine, folder: Path) -> None:
    project = folder / "project-broken"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "broken"\nversion = "1"\ndependencies = ["no-such-package-x"]'
    )
    code, printed = deploy(platform, folder, "broken", source(1), "--listener", machine.name)
    assert code != 0
    assert "BUILD_FAILED" in printed
    assert "no-such-package-x" in printed


def test_a_second_machine_of_the_same_name_is_turned_away(platform: Platform, machine: Machine, folder: Path) -> None:
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key, **ENVIRONMENT}
    home = folder / "impostor"
    try:
        code, _, errors = moorage("listener", machine.name, "--home", home, "--port", str(free_port()), **told)
    finally:
        moorage("down", "--home", home)
    assert code != 0
    assert "Another machine is connected" in errors
    assert machine.is_connected()


def test_tunnels_need_a_key_of_their_workspace_and_lead_only_to_agents(platform: Platform, machine: Machine) -> None:
    with platform.client() as api:
        listener = api.get("/v2/listeners").json()["resources"][0]["id"]
        other = api.post("/api/v1/workspaces", json={"display_name": "third"}).json()["api_key"]
        weak = api.post("/api/v1/api-key", json={"description": "weak", "scopes": ["deployments:read"]}).json()["key"]
    address = f"ws://127.0.0.1:{platform.port}/v2/listeners/{listener}/tunnels"

    async def refusal(first: str, **headers: str) -> tuple[int, str]:
        async with connect(address, additional_headers=headers) as tunnel:
            with suppress(ConnectionClosed):  # a bad key is refused before anything is read
                await tunnel.send(first)
            with pytest.raises(ConnectionClosed) as refused:
                await tunnel.recv()
            assert refused.value.rcvd is not None
            return refused.value.rcvd.code, refused.value.rcvd.reason

    hello = json.dumps({"instance": "impostor", "key": "k", "version": "1"})
    assert asyncio.run(refusal(hello))[0] == 4401
    assert asyncio.run(refusal(hello, **{"X-Api-Key": "lsv2_pt_invented"}))[0] == 4401
    assert asyncio.run(refusal(hello, **{"X-Api-Key": weak}))[0] == 4403
    assert asyncio.run(refusal(hello, **{"X-Api-Key": other}))[0] == 4404
    assert asyncio.run(refusal("nonsense", **{"X-Api-Key": platform.key}))[0] == 4400
    assert asyncio.run(refusal(hello, **{"X-Api-Key": platform.key}))[0] == 4409


def test_a_revoked_key_cuts_the_tunnels_of_its_listener(platform: Platform) -> None:
    with platform.client() as api:
        new = {"compute_type": "machine", "compute_id": "lent", "compute_config": {}}
        listener = api.post("/v2/listeners", json=new).json()
        scopes = ["deployments:read", "deployments:write"]
        lent = api.post("/api/v1/api-key", json={"description": "lent", "scopes": scopes}).json()
        address = f"ws://127.0.0.1:{platform.port}/v2/listeners/{listener['id']}/tunnels"

        async def cut() -> int:
            async with connect(address, additional_headers={"X-Api-Key": lent["key"]}) as tunnel:
                await tunnel.send(json.dumps({"instance": "lent", "key": "k", "version": "1"}))
                await until(lambda: api.get(f"/v2/listeners/{listener['id']}").json()["is_connected"])
                assert api.delete(f"/api/v1/api-key/{lent['id']}").status_code == 200
                async with asyncio.timeout(10):
                    with pytest.raises(ConnectionClosed) as refused:
                        await tunnel.recv()
            assert refused.value.rcvd is not None
            return refused.value.rcvd.code

        assert asyncio.run(cut()) == 4401
        assert not api.get(f"/v2/listeners/{listener['id']}").json()["is_connected"]


@dataclass(frozen=True)
class Asked:
    asked_at: float
    took_s: float
    status: int


@contextmanager
def asked_all_the_time(url: str) -> Iterator[list[Asked]]:
    """Send a request every 20 ms, whether the earlier ones are answered or not."""
    answers: list[Asked] = []
    is_over = threading.Event()

    def ask() -> None:
        asked_at, status = time.monotonic(), 0
        with suppress(httpx.HTTPError):
            status = httpx.get(url, timeout=30).status_code
        answers.append(Asked(asked_at, time.monotonic() - asked_at, status))

    def ask_each_time() -> None:
        with ThreadPoolExecutor(300) as askers:
            while not is_over.wait(0.02):
                askers.submit(ask)

    asking = threading.Thread(target=ask_each_time)
    asking.start()
    try:
        yield answers
    finally:
        is_over.set()
        asking.join()


def test_kills_of_the_listener_and_of_the_platform_leave_the_agent_running(
    platform: Platform, machine: Machine, far: str
) -> None:
    [agent] = [each for each in machine.own() if each["name"] == "far"]
    before = machine.agent_process()
    assert machine.process is not None
    machine.process.kill()
    machine.process.wait()
    wait_until(lambda: not machine.is_connected())
    away = httpx.get(f"{far}/ok", timeout=30)
    assert (away.status_code, "not connected" in away.json()["detail"]) == (503, True)
    machine.start()
    assert version(platform, far) == 1

    with asked_all_the_time(f"{far}/ok") as answers:
        platform.kill()
        killed_at = time.monotonic()
        platform.start()
        wait_until(lambda: httpx.get(f"{far}/ok", timeout=30).status_code == 200)
    asked_since = [each for each in answers if each.asked_at > killed_at]
    assert asked_since
    # A request waits for the platform, and then as long again for the tunnels of its machine.
    least_s = min(AWAY_WAIT_S, WAIT_S) - 0.5
    assert [each for each in asked_since if each.status != 200 and each.took_s < least_s] == []
    assert version(platform, far) == 1
    assert machine.agent_process() == before, "it was never stopped"
    assert [each["latest_revision_id"] for each in machine.own() if each["name"] == "far"] == [
        agent["latest_revision_id"]
    ]


def test_a_deployment_that_the_machine_has_of_its_own_is_left_alone(
    platform: Platform, machine: Machine, folder: Path
) -> None:
    own = {
        "name": "owned",
        "source": "internal_source",
        "source_config": {},
        "source_revision_config": {},
        "secrets": [],
    }
    headers, address = {"X-Api-Key": machine.key}, f"http://127.0.0.1:{machine.port}/v2/deployments"
    made = httpx.post(address, json=own, headers=headers).json()
    code, printed = deploy(platform, folder, "owned", source(1), "--listener", machine.name)
    assert code != 0
    assert "a deployment of its own by that name" in printed
    assert httpx.get(f"{address}/{made['id']}", headers=headers).status_code == 200


def test_a_machine_that_was_made_anew_is_given_its_orders_again(platform: Platform, machine: Machine, far: str) -> None:
    assert machine.stop() == 0
    shutil.rmtree(machine.home)
    machine.start()
    wait_until(lambda: httpx.get(f"{far}/ok", timeout=30).status_code == 200, 120)
    assert version(platform, far) == 1


def test_what_was_asked_for_while_the_machine_was_away_is_done_when_it_is_back(
    platform: Platform, machine: Machine, folder: Path, far: str
) -> None:
    assert machine.stop() == 0
    with platform.client() as api:
        deployment = api.get("/v2/deployments", params={"name": "far"}).json()["resources"][0]
        path = f"/v2/deployments/{deployment['id']}"
        patched = api.patch(path, json={"secrets": [{"name": "COLOUR", "value": "red"}]}).json()
        time.sleep(1)
        revision = f"{path}/revisions/{patched['latest_revision_id']}"
        assert api.get(revision).json()["status"] in {"AWAITING_BUILD", "BUILDING"}
        machine.start()
        wait_until(lambda: api.get(revision).json()["status"] == "DEPLOYED", 120)
        assert version(platform, far) == 1

        assert api.delete(path).status_code == 204
        wait_until(lambda: not [each for each in machine.own() if each["name"] == "far"], 60)
    assert httpx.get(f"{far}/ok").status_code == 502
