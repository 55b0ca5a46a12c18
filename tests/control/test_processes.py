"""Agents as processes: real ones, with a stub in place of an agent server."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import psycopg
import pytest

from moorage.control.isolation import find_isolation
from moorage.control.places import Place
from moorage.control.records.logs import LogLevel, LogLine
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import RevisionStatus, Source
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.processes import AgentKey, Processes, ProcessRules
from moorage.control.store.agent_databases import AgentDatabases
from moorage.embedded import agents, processes
from moorage.kernel.ids import uuid7
from moorage.worker.leases import Lease
from tests.control.stub_agent import make_stub_build
from tests.platform.serving import make_folder

pytest_plugins = "tests.kernel.fixtures"
WORKSPACE = uuid7()


@dataclass
class World:
    """A runtime, what it stored, and one deployment in it."""

    home: Path
    postgres: object
    number: int
    deployment_id: UUID = field(default_factory=uuid7)
    lines: list[LogLine] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    revoked: list[UUID] = field(default_factory=list)
    loops: list[asyncio.Task] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"agent-{self.number}"

    @property
    def place(self) -> Place:
        return Place(self.home, self.number)

    @property
    def row(self) -> LeasedDeployment:
        lease = Lease(self.deployment_id, "w", 1)
        return LeasedDeployment(
            lease, self.deployment_id, WORKSPACE, self.name, self.number, "AWAITING_DATABASE", False
        )

    def platform(self, start_timeout_s: float = 30) -> Processes:
        """What a platform has of it when it starts, with its loops."""
        rules = ProcessRules(self.home, "http://127.0.0.1:1", find_isolation(), start_timeout_s, drain_s=8)

        async def make_key(workspace_id: UUID, description: str) -> AgentKey:
            return AgentKey(uuid7(), "lsv2_pt_key")

        async def revoke_key(workspace_id: UUID, key_id: UUID) -> None:
            self.revoked.append(key_id)

        async def secrets_of(deployment_id: UUID) -> dict[str, str]:
            return self.secrets

        made = Processes(
            rules,
            AgentDatabases(self.postgres),
            self,  # its lines come here
            make_key=make_key,
            revoke_key=revoke_key,
            secrets_of=secrets_of,
        )
        self.loops += [asyncio.create_task(made.watch()), asyncio.create_task(made.follow_logs())]
        return made

    async def insert(self, lines: list[LogLine]) -> None:
        self.lines += lines

    async def leave(self, runtime: Processes) -> None:
        """As a platform that ends."""
        for loop in self.loops:
            loop.cancel()
        await runtime.close()

    def order(self, number: int = 1, **spec: int) -> Order:
        revision_id = uuid7()
        make_stub_build(self.place, revision_id)
        return Order(
            revision_id,
            self.deployment_id,
            WORKSPACE,
            self.name,
            self.number,
            number,
            RevisionStatus.DEPLOYING,
            Source.GITHUB,
            {"resource_spec": spec, "repo_url": "https://example.test/agent"},
            {"repo_ref": "main"},
            None,
            None,
            True,
            None,
        )

    async def get(self, path: str = "/") -> str:
        """As the front door does."""
        with agents.short_path(self.home / "front-door" / "front" / f"d-{self.name}.sock") as address:
            transport = httpx.AsyncHTTPTransport(uds=address)
            async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=10) as client:
                return (await client.get(path)).text

    def texts(self) -> list[str]:
        return [line.message for line in self.lines]


async def until(true: Callable[[], bool], bound_s: float = 10) -> None:
    give_up_at = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < give_up_at, "it has not come about"
        await asyncio.sleep(0.05)


@pytest.fixture
async def world(postgres, request) -> AsyncIterator[World]:
    with make_folder() as folder:
        home = folder / "home"
        for path in (home, home / "front-door", home / "front-door" / "front"):
            processes.make_directory(path, 0o711)
        made = World(home, postgres, 100 + sum(request.node.name.encode()) % 10_000)
        yield made
        for loop in made.loops:
            loop.cancel()
        agents.stop_agents(home, 1)
        await AgentDatabases(postgres).remove(f"moorage_agent_{made.number}")


async def test_an_agent_has_its_own_user_database_and_environment(world: World, conninfo: str) -> None:
    runtime = world.platform()
    world.secrets = {"OPENAI_API_KEY": "sk-1"}
    await runtime.prepare(world.row)
    await runtime.prepare(world.row)  # again, as after a crash
    order = world.order()
    await runtime.start(order, world.secrets)
    await runtime.switch(order)
    assert await world.get() == str(order.revision_id)
    found = ast.literal_eval(await world.get("/env"))
    assert found["OPENAI_API_KEY"] == "sk-1"
    assert found["LANGSMITH_PROJECT"] == world.name
    assert found["LANGSMITH_ENDPOINT"] == "http://127.0.0.1:1/api/v1"
    assert found["LANGSMITH_API_KEY"] == "lsv2_pt_key"
    assert not {name for name in found if name.startswith("PYTEST")}
    if processes.is_root():
        assert await world.get("/uid") == str(agents.agent_uid(world.number))
    with psycopg.connect(found["DATABASE_URI"]) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (f"moorage_agent_{world.number}",)
    foreign = psycopg.conninfo.make_conninfo(
        found["DATABASE_URI"], dbname=psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
    )
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(foreign)
    await until(lambda: "it serves" in world.texts())
    await runtime.remove(world.row)
    assert not world.place.root.exists()
    assert len(world.revoked) == 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(found["DATABASE_URI"])
    await world.leave(runtime)


async def test_a_switch_loses_no_request_and_the_old_revision_drains(world: World) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    old, new = world.order(1), world.order(2)
    await runtime.start(old, {})
    await runtime.switch(old)
    slow = asyncio.create_task(world.get("/slow"))
    answers, over = [], False

    async def ask() -> None:
        while not over:
            answers.append(await world.get())

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.3)
    await runtime.start(new, {})
    await runtime.switch(new)
    await runtime.stop(old)
    assert await world.get() == str(new.revision_id)
    assert await slow == str(old.revision_id)
    await until(lambda: not world.place.pid_file(old.revision_id).exists())
    over = True
    await asking
    assert set(answers) == {str(old.revision_id), str(new.revision_id)}
    await world.leave(runtime)


async def test_what_does_not_come_up_says_why_and_leaves_the_old_one_serving(world: World) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    old, broken, silent = world.order(1), world.order(2), world.order(3)
    await runtime.start(old, {})
    await runtime.switch(old)
    with pytest.raises(DeployError, match=r"ended at its start(.|\n)*no module named nowhere"):
        await runtime.start(broken, {"FAILS": "1"})
    hasty = world.platform(start_timeout_s=1)
    with pytest.raises(DeployError, match="did not answer /ok within 1 s"):
        await hasty.start(silent, {"SILENT": "1"})
    await world.leave(hasty)
    assert await world.get() == str(old.revision_id)
    assert [file.stem for file in world.place.run.glob("*.pid")] == [str(old.revision_id)]
    assert any("no module named nowhere" in text for text in world.texts())
    await world.leave(runtime)


async def test_agents_outlive_a_platform_and_are_adopted(world: World) -> None:
    first = world.platform()
    await first.prepare(world.row)
    order, left = world.order(1), world.order(2)
    for each in (order, left):
        await first.start(each, {})
    await first.switch(order)
    pid = agents.read_process(world.place.pid_file(order.revision_id)).pid
    await world.leave(first)
    assert await world.get() == str(order.revision_id)
    second = world.platform()
    await second.reconcile([order], set())
    await until(lambda: not world.place.pid_file(left.revision_id).exists())
    assert agents.read_process(world.place.pid_file(order.revision_id)).pid == pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: agents.read_process(world.place.pid_file(order.revision_id)) is not None, 15)
    await until(lambda: "the agent has ended by itself and is started again" in world.texts())
    assert await world.get() == str(order.revision_id)
    texts = [(line.position, line.message) for line in world.lines if line.revision_id == order.revision_id]
    assert len(texts) == len(set(texts)), "a line was stored twice"
    await world.leave(second)


async def test_requests_wait_while_a_crashed_agent_is_started_again(world: World) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    order = world.order()
    await runtime.start(order, {})
    await runtime.switch(order)
    with pytest.raises(httpx.HTTPError):
        await world.get("/crash")
    assert await world.get() == str(order.revision_id)
    await world.leave(runtime)


async def test_a_crash_loop_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.control.runtimes.processes._BACK_OFF_S", (0.0,) * 5)
    monkeypatch.setattr("moorage.control.runtimes.processes._WATCH_S", 0.1)
    runtime = world.platform()
    await runtime.prepare(world.row)
    order = world.order()
    await runtime.start(order, {})
    await runtime.switch(order)
    world.secrets = {"FAILS": "1"}
    with pytest.raises(httpx.HTTPError):
        await world.get("/crash")
    await until(lambda: "the agent has ended 5 times within 60 s and stays down" in world.texts(), 20)
    with pytest.raises((httpx.HTTPError, OSError)):
        await world.get()
    await world.leave(runtime)


async def test_an_agent_that_eats_memory_is_ended_and_says_so(world: World) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    order = world.order(memory_limit_mb=128)
    await runtime.start(order, {})
    await runtime.switch(order)
    pid = agents.read_process(world.place.pid_file(order.revision_id)).pid
    await world.get("/eat")
    await until(lambda: any(text.startswith("out of memory: the agent took") for text in world.texts()))
    await until(lambda: (found := agents.read_process(world.place.pid_file(order.revision_id))) and found.pid != pid)
    assert await world.get() == str(order.revision_id)
    assert LogLevel.CRITICAL in {line.level for line in world.lines}
    await world.leave(runtime)
