"""An agent on a second machine, while the platform, the listener and the listener's own moorage are killed in turns, or
the network between them is cut.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults.deploying import House, make_house
from tests.faults.networks import make_network
from tests.faults.reports import Report, progress
from tests.platform.callers import version
from tests.platform.machines import Machine, make_machine
from tests.serving import free_port
from tests.waiting import wait_until

_BACK_S = 120.0
_ASKED = 300


async def listener_kills(folder: Path, *, times: int = 12) -> Report:
    """kill -9 at random moments of a push, from its order to its end.

    In turns, the platform, the listener, and the moorage of the listener's machine are killed.
    """
    report = Report("listener-kills")
    await asyncio.to_thread(_kill, folder, times, report)
    return report


def _kill(folder: Path, times: int, report: Report) -> None:
    chance = random.Random(11)
    with make_house(folder) as house, make_machine(house.platform, folder / "shed") as machine:
        deployment = _deploy(house)
        status, _ = house.end(deployment, deployment["latest_revision_id"])
        report.check(status == "DEPLOYED", f"the first revision is {status}")
        url, seen = deployment["source_config"]["custom_url"], dict[str, int]()
        report.tell(ok_p50_ms=_ok_ms(house, f"{url}/ok"), ok_of_the_platform_p50_ms=_ok_ms(house, "/ok"))
        for number in range(2, times + 2):
            house.push(number)
            revision = house.next_revision(deployment)
            time.sleep(chance.uniform(0, 5))
            at = house.revision(deployment, revision)["status"]
            victim = ("platform", "listener", "moorage of the listener")[number % 3]
            _kill_one(victim, house, machine)
            seen[at] = seen.get(at, 0) + 1
            status, seconds = house.end(deployment, revision)
            report.check(status == "DEPLOYED", f"a revision ended {status} after a kill of the {victim} at {at}")
            wait_until(machine.is_connected, _BACK_S)
            report.check(_answered(house, url) == number, f"another version than {number} answers")
            progress(f"{victim} killed at {at}: {status} after {seconds:.1f} s")
        report.tell(kills=times, **{f"at_{status.lower()}": count for status, count in seen.items()})
        house.api.delete(f"/v2/deployments/{deployment['id']}").raise_for_status()
        for home in (house.platform.home, machine.home):
            wait_until(lambda home=home: not list((home / "agents").glob("[0-9]*")), _BACK_S)
        report.check(not machine.own(), "a deployment is left on the listener's machine")


async def listener_cut(folder: Path, *, minutes: int = 60) -> Report:
    """Cut the machine off without closing connections. Its agent is asked meanwhile, and a revision and its rollback
    are ordered.
    """
    report = Report("listener-cut")
    await asyncio.to_thread(_cut, folder, minutes * 60, report)
    return report


def _cut(folder: Path, seconds: float, report: Report) -> None:
    between = free_port()
    url = f"http://127.0.0.1:{between}"
    with (
        make_house(folder, MOORAGE_PUBLIC_URL=url) as house,
        make_network(between, house.platform.port) as network,
        make_machine(house.platform, folder / "shed", url) as machine,
    ):
        deployment = _deploy(house)
        status, _ = house.end(deployment, deployment["latest_revision_id"])
        report.check(status == "DEPLOYED", f"the first revision is {status}")
        report.check(_answered(house, "/d/far") == 1, "another version than 1 answers")
        agent = machine.agent_process()
        network.cut()
        cut_at = time.monotonic()
        wait_until(lambda: not machine.is_connected(), _BACK_S)
        report.tell(noticed_s=round(time.monotonic() - cut_at, 1))
        house.push(2)
        revision = house.next_revision(deployment)
        statuses, slowest_s = dict[int, int](), 0.0
        while time.monotonic() < cut_at + seconds:
            began_at = time.monotonic()
            status_code = house.api.get("/d/far/ok").status_code
            slowest_s = max(slowest_s, time.monotonic() - began_at)
            statuses[status_code] = statuses.get(status_code, 0) + 1
            time.sleep(1)
        report.tell(minutes=round(seconds / 60, 1), asked=sum(statuses.values()), slowest_s=round(slowest_s, 1))
        report.check(set(statuses) == {503}, f"an agent that cannot be reached answered {statuses}")
        report.check(machine.agent_process() == agent, "the agent did not go on")
        report.check(machine.own()[0]["latest_revision_status"] == "DEPLOYED", "the machine lost its deployment")
        network.heal()
        healed_at = time.monotonic()
        wait_until(machine.is_connected, _BACK_S)
        report.tell(connected_again_s=round(time.monotonic() - healed_at, 1))
        status, _ = house.end(deployment, revision)
        report.tell(revision_after_s=round(time.monotonic() - healed_at, 1))
        report.check(status == "DEPLOYED", f"what was ordered meanwhile ended {status}")
        report.check(_answered(house, "/d/far") == 2, "another version than 2 answers")


def _deploy(house: House) -> dict[str, Any]:
    listener = house.api.get("/v2/listeners").json()["resources"][0]["id"]
    body = {
        "name": "far",
        "source": "github",
        "source_config": {"repo_url": house.repository_url, "listener_id": listener},
        "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
        "secrets": [],
    }
    answer = house.api.post("/v2/deployments", json=body)
    answer.raise_for_status()
    return dict(answer.json())


def _kill_one(victim: str, house: House, machine: Machine) -> None:
    if victim == "platform":
        house.platform.kill()
        house.platform.start()
    elif victim == "listener":
        assert machine.process is not None
        machine.process.kill()
        machine.process.wait()
        machine.start()
    else:  # the listener restarts it
        os.kill(json.loads((machine.home / "platform.json").read_text())["pid"], signal.SIGKILL)


def _ok_ms(house: House, url: str) -> float:
    """Return the median time in milliseconds of an answer that takes no work."""
    times = []
    for _ in range(_ASKED):
        began_at = time.perf_counter()
        house.api.get(url).raise_for_status()
        times.append((time.perf_counter() - began_at) * 1000)
    return median(times)


def _answered(house: House, url: str) -> int:
    """Request until an answer comes, while the tunnels are being opened again."""
    give_up_at = time.monotonic() + _BACK_S
    while house.api.get(f"{url}/ok").status_code != 200 and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return version(house.api, url)
