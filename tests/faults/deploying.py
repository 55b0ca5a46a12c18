"""Deployments under constant requests, and under a platform that is killed again and again.

Real builds of a real repository, through `moorage up`.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from tests.control.repositories import commit, git_server, make_repository
from tests.faults.reports import Report, progress
from tests.platform.callers import Callers, source, version
from tests.platform.serving import Platform, make_platform

_ENDED = {"DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"}
_CONFIG = '{"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}'
_END_S = 300.0
_LISTED = 200
_LISTED_DEPLOYMENTS = 100


@dataclass
class House:
    """A platform, a repository that it may fetch, and the deployments made from it."""

    folder: Path
    platform: Platform
    api: httpx.Client
    repository_url: str

    def push(self, number: int) -> None:
        commit(self.folder / "repos" / "agent", {"agent.py": source(number)})

    def deploy(self, name: str, workers: int = 1) -> dict[str, Any]:
        config = {"repo_url": self.repository_url, "deployment_type": "dev", "build_on_push": False}
        body = {
            "name": name,
            "source": "github",
            "source_config": {**config, "resource_spec": {"min_scale": workers}},
            "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
            "secrets": [],
        }
        answer = self.api.post("/v2/deployments", json=body)
        answer.raise_for_status()
        return answer.json()

    def prepare(self, name: str) -> None:
        """Make a deployment that waits for an upload."""
        config = {"deployment_type": "dev"}
        body = {
            "name": name,
            "source": "internal_source",
            "source_config": config,
            "source_revision_config": {},
            "secrets": [],
        }
        self.api.post("/v2/deployments", json=body).raise_for_status()

    def next_revision(self, deployment: dict[str, Any], workers: int = 1) -> str:
        change = {
            "source_revision_config": {"repo_ref": "main"},
            "source_config": {"resource_spec": {"min_scale": workers}},
        }
        answer = self.api.patch(f"/v2/deployments/{deployment['id']}", json=change)
        answer.raise_for_status()
        return str(answer.json()["latest_revision_id"])

    def go_back(self, deployment: dict[str, Any], revision_id: str) -> str:
        answer = self.api.post(f"/v2/deployments/{deployment['id']}/revisions/{revision_id}/redeploy")
        answer.raise_for_status()
        return str(answer.json()["latest_revision_id"])

    def revision(self, deployment: dict[str, Any], revision_id: str) -> dict[str, Any]:
        return dict(self.api.get(f"/v2/deployments/{deployment['id']}/revisions/{revision_id}").json())

    def end(self, deployment: dict[str, Any], revision_id: str) -> tuple[str, float]:
        """Return how the revision ended, and after how many seconds."""
        began_at = time.monotonic()
        while (found := self.revision(deployment, revision_id))["status"] not in _ENDED:
            if time.monotonic() - began_at > _END_S:
                return f"{found['status']} for {_END_S:.0f} s", _END_S
            time.sleep(0.05)
        return found["status"], time.monotonic() - began_at


@contextmanager
def make_house(folder: Path, **settings: str) -> Iterator[House]:
    make_repository(folder / "repos" / "agent", {"langgraph.json": _CONFIG, "agent.py": source(1)})
    opened = {"MOORAGE_GIT_PROTOCOLS": "http", "MOORAGE_GIT_PRIVATE_ADDRESSES": "true"}
    opened["MOORAGE_AGENT_START_SECONDS"] = "240"
    with (
        git_server(folder / "repos") as url,
        make_platform(folder / "home", **opened, **settings) as platform,
        platform.client() as api,
    ):
        yield House(folder, platform, api, f"{url}/agent/.git")


async def switches(folder: Path, *, times: int = 20) -> Report:
    """Switch revisions under load.

    Every other revision is built from a push, with one worker and two workers in turn; those between return to the
    previous build.
    """
    report = Report("switches")
    await asyncio.to_thread(_switch, folder, times, report)
    return report


def _switch(folder: Path, times: int, report: Report) -> None:
    with make_house(folder) as house:
        deployment = house.deploy("agent")
        status, first_s = house.end(deployment, deployment["latest_revision_id"])
        report.check(status == "DEPLOYED", f"the first revision is {status}")
        url = deployment["source_config"]["custom_url"]
        serving, before = (deployment["latest_revision_id"], 1), ("", 0)
        built_s: list[float] = []
        back_s: list[float] = []
        with Callers(house.platform, url).at_work(asking=8, streaming=4) as callers:
            for number in range(2, times + 2):
                if number % 2 == 0:
                    house.push(number)
                    now, took = (house.next_revision(deployment, workers=1 + number // 2 % 2), number), built_s
                else:
                    now, took = (house.go_back(deployment, before[0]), before[1]), back_s
                status, seconds = house.end(deployment, now[0])
                took.append(seconds)
                report.check(status == "DEPLOYED", f"switch {number - 1} ended {status}")
                answers = version(house.api, url)
                report.check(answers == now[1], f"version {answers} answers after the switch to {now[1]}")
                serving, before = now, serving
                progress(f"switch {number - 1}: {seconds:.1f} s, {len(callers.answers)} answers")
        report.add(callers.failures)
        report.tell(switches=times, answers=len(callers.answers), streams_to_their_end=len(callers.streams))
        report.tell(failed=len(callers.failures), first_revision_s=first_s)
        report.tell(revision_of_a_push_s_median=median(built_s), revision_of_a_push_s_most=max(built_s))
        report.tell(way_back_s_median=median(back_s or [0.0]), way_back_s_most=max(back_s or [0.0]))


async def deploy_kills(folder: Path, *, times: int = 10) -> Report:
    """kill -9 of the platform at random moments of ten pushes in a row, from the first build to the last switch.

    Of three kills, one comes while a revision is DEPLOYING, and one right after a switch, before it is recorded. Pushes
    ask for one worker and two workers in turn. The agent is asked every 20 ms all the time.
    """
    report = Report("deploy-kills")
    await asyncio.to_thread(_kill, folder, times, report)
    return report


def _kill(folder: Path, times: int, report: Report) -> None:
    chance = random.Random(7)
    with make_house(folder, MOORAGE_AGENT_STANDBY_SECONDS="20") as house:
        deployment = house.deploy("agent")
        house.end(deployment, deployment["latest_revision_id"])
        url = deployment["source_config"]["custom_url"]
        seen: dict[str, int] = {}
        with _polled(house.platform, url) as polls:
            for number in range(2, times + 2):
                house.push(number)
                pushes = [house.next_revision(deployment, workers=1 + number % 2) for _ in range(3)]
                if number % 3 == 0:
                    _await_switch(house, deployment)
                elif number % 3 == 1:
                    _await_deploying(house, deployment, pushes)
                    time.sleep(chance.uniform(0, 2))
                else:
                    time.sleep(chance.uniform(0, 8))
                house.platform.kill()
                at = "SWITCHED" if number % 3 == 0 else "DEPLOYING" if number % 3 == 1 else "ANY"
                seen[at] = seen.get(at, 0) + 1
                report.check(_answers(house.api, url), "the agent did not answer while the platform was away")
                house.platform.start()
                ends = [house.end(deployment, push)[0] for push in pushes]
                report.check(ends[-1] == "DEPLOYED", f"pushes ended {ends} after a kill at {at}")
                report.check(version(house.api, url) == number, f"another version than {number} answers")
                wrong = [status for status in polls if status != "200"]
                progress(f"killed at {at}: {ends}; {len(polls)} polls, not 200: {wrong[:5]} ({len(wrong)})")
        report.add([f"a poll answered {status}" for status in polls if status != "200"])
        report.tell(kills=times, polls=len(polls), **{f"at_{status.lower()}": count for status, count in seen.items()})
        house.api.delete(f"/v2/deployments/{deployment['id']}").raise_for_status()
        give_up_at = time.monotonic() + _END_S
        while left := [path.name for path in (house.platform.home / "agents").glob("[0-9]*")]:
            if time.monotonic() > give_up_at:
                report.check(False, f"left behind after its deletion: {left}")
                break
            time.sleep(0.2)


def _await_switch(house: House, deployment: dict[str, Any]) -> None:
    """Wait until the front door dials another socket. This polls without a pause, since the switch is recorded right
    after.
    """
    link = house.platform.home / "front-door" / "front" / f"d-{deployment['name']}.sock"
    before, give_up_at = link.readlink(), time.monotonic() + _END_S
    while link.readlink() == before and time.monotonic() < give_up_at:
        pass


def _await_deploying(house: House, deployment: dict[str, Any], revision_ids: list[str]) -> None:
    """Wait until one of the revisions is DEPLOYING, or all have ended."""
    while True:
        found = {house.revision(deployment, revision_id)["status"] for revision_id in revision_ids}
        if "DEPLOYING" in found or found <= _ENDED:
            return
        time.sleep(0.02)


@contextmanager
def _polled(platform: Platform, url: str) -> Iterator[list[str]]:
    """Request `/ok` of the agent every 20 ms, and collect the status codes and the names of connection errors."""
    answers: list[str] = []
    over = threading.Event()

    def poll() -> None:
        with platform.client() as client:
            while not over.wait(0.02):
                try:
                    answers.append(str(client.get(f"{url}/ok").status_code))
                except httpx.HTTPError as error:
                    answers.append(type(error).__name__)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def _answers(api: httpx.Client, url: str) -> bool:
    try:
        return api.get(f"{url}/ok").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def idle_agents(folder: Path, *, times: int = 20) -> Report:
    """Deploy one repository many times without calling the agents: how much memory they take, and how fast they are
    listed.
    """
    report = Report("idle-agents")
    await asyncio.to_thread(_idle, folder, times, report)
    return report


def _idle(folder: Path, times: int, report: Report) -> None:
    with make_house(folder) as house:
        made = []
        for number in range(times):
            deployment = house.deploy(f"agent-{number}")
            status, seconds = house.end(deployment, deployment["latest_revision_id"])
            report.check(status == "DEPLOYED", f"{deployment['name']} is {status}")
            made.append(seconds)
            progress(f"{deployment['name']}: {status} after {seconds:.1f} s")
        for number in range(times, _LISTED_DEPLOYMENTS):
            house.prepare(f"agent-{number}")
        time.sleep(5)
        listed_ms = []
        for _ in range(_LISTED):
            began_at = time.perf_counter()
            house.api.get("/v2/deployments", params={"limit": 100}).raise_for_status()
            listed_ms.append((time.perf_counter() - began_at) * 1000)
        listed_ms.sort()
        agents = _agents(house.platform.home)
        agents_mb = [added for added, _ in agents.values()]
        report.tell(agents=len(agents), most_mb=max(agents_mb), median_mb=median(agents_mb))
        report.tell(resident_median_mb=median(resident for _, resident in agents.values()))
        report.tell(list_p50_ms=median(listed_ms), list_p99_ms=listed_ms[int(_LISTED * 0.99)])
        report.tell(first_revision_s_median=median(made))
        report.check(len(agents_mb) == times, f"{len(agents_mb)} agents run, of {times}")
        report.check(max(agents_mb) <= 120, f"an idle agent takes {max(agents_mb):.0f} MB")
        report.check(median(listed_ms) <= 20, f"a list takes {median(listed_ms):.0f} ms")
        report.tell(**_front_door(house, "agent-0"))
        report.tell(**_workers(house, set(agents)))


def _agents(home: Path) -> dict[int, tuple[float, float]]:
    """Return the megabytes of each agent by its process number: its share of memory (shared pages are counted in part),
    and its resident memory.
    """
    # Matches from the beginning: bubblewrap, of which two small processes run beside each agent, has the whole command
    # line in its own.
    mark = re.compile(rf"{re.escape(str(home))}/agents/\d+/builds/.* -m moorage serve")
    found = [p for p in psutil.process_iter(["cmdline"]) if mark.match(" ".join(p.info["cmdline"] or ()))]
    told = {process.pid: process.memory_full_info() for process in found}
    return {pid: (memory.pss / 2**20, memory.rss / 2**20) for pid, memory in told.items()}


def _workers(house: House, before: set[int]) -> dict[str, float]:
    """Measure one more agent that is served by four workers."""
    deployment = house.deploy("agent-of-four", workers=4)
    house.end(deployment, deployment["latest_revision_id"])
    time.sleep(10)  # the first worker serves; the others follow
    made = {pid: mb for pid, (mb, _) in _agents(house.platform.home).items() if pid not in before}
    parent = next(pid for pid in made if psutil.Process(pid).ppid() not in made)
    workers_mb = [mb for pid, mb in made.items() if pid != parent]
    return {"workers": len(workers_mb), "worker_median_mb": median(workers_mb), "their_parent_mb": made[parent]}


def _front_door(house: House, name: str, count: int = 300) -> dict[str, float]:
    """Measure the time that the front door adds to an answer; requests through it and direct ones take turns.

    The connection to the front door is kept. The front door keeps none to the agent, so the direct requests keep none
    either.
    """
    [socket] = (house.platform.home / "front-door" / "front").glob(f"d-{name}.sock")
    through, direct = [], []
    for _ in range(count):
        began_at = time.perf_counter()
        house.api.get(f"/d/{name}/ok").raise_for_status()
        through.append((time.perf_counter() - began_at) * 1000)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket.resolve()), verify=False)) as client:
            began_at = time.perf_counter()
            client.get("http://agent/ok").raise_for_status()
            direct.append((time.perf_counter() - began_at) * 1000)
    added = median(through) - median(direct)
    return {"ok_through_front_door_p50_ms": median(through), "directly_p50_ms": median(direct), "added_ms": added}
