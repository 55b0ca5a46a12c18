"""Runtimes of agents for tests: the real one, with a stub in place of an agent server, and a record
of what it stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx

from moorage.control.isolation import find_isolation
from moorage.control.places import Place
from moorage.control.records.logs import LogLine
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import IMAGE_SOURCES, RevisionStatus, Source
from moorage.control.runtimes.build_launcher import BuildLauncher
from moorage.control.runtimes.images import ImageRules, Images
from moorage.control.runtimes.processes import Processes
from moorage.control.runtimes.rules import AgentKey, ProcessRules
from moorage.control.store.agent_databases import AgentDatabases
from moorage.embedded import agents, processes
from moorage.kernel.ids import uuid7
from moorage.worker.leases import Lease
from tests.control.stub_agent import make_stub_build
from tests.platform.serving import make_folder

WORKSPACE = uuid7()


@dataclass
class World:
    """A runtime with one deployment, and everything that it stored."""

    home: Path
    postgres: object
    number: int
    deployment_id: UUID = field(default_factory=uuid7)
    lines: list[LogLine] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    revoked: list[UUID] = field(default_factory=list)
    reported: dict[UUID, str | None] = field(default_factory=dict)
    renamed: str | None = None
    ports: set[int] = field(default_factory=set)
    disk_bytes_max: int = 0
    docker_host: str | None = None
    pulled: list[str] = field(default_factory=list)
    _platforms: list[tuple[Processes, list[asyncio.Task[None]]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.renamed or f"agent-{self.number}"

    @property
    def place(self) -> Place:
        return Place(self.home, self.number)

    @property
    def row(self) -> LeasedDeployment:
        lease = Lease(self.deployment_id, "w", 1)
        return LeasedDeployment(
            lease, self.deployment_id, WORKSPACE, self.name, self.number, "AWAITING_DATABASE", False
        )

    def platform(self, start_timeout_s: float = 60, standby_s: float = 0) -> Processes:
        """Start the loops that a platform has for its agents, and return the runtime."""
        rules = ProcessRules(
            self.home,
            "http://127.0.0.1:1",
            find_isolation(),
            start_timeout_s,
            30,
            standby_s,
            ports=frozenset(self.ports),
            disk_bytes_max=self.disk_bytes_max,
        )

        async def make_key(workspace_id: UUID, description: str) -> AgentKey:
            return AgentKey(uuid7(), "lsv2_pt_key")

        async def revoke_key(workspace_id: UUID, key_id: UUID) -> None:
            self.revoked.append(key_id)

        async def secrets_of(deployment_id: UUID) -> dict[str, str]:
            return self.secrets

        async def report(revision_id: UUID, message: str | None) -> None:
            self.reported[revision_id] = message

        images = Images(ImageRules(self.home, self.docker_host, frozenset(self.ports), 2), lambda *_: None)
        made = Processes(
            rules,
            AgentDatabases(self.postgres),
            self,  # stores the agents' log lines here
            make_key=make_key,
            revoke_key=revoke_key,
            secrets_of=secrets_of,
            report=report,
            launchers=dict.fromkeys(Source, BuildLauncher(rules.isolation)) | dict.fromkeys(IMAGE_SOURCES, images),
        )
        self._platforms.append((made, [asyncio.create_task(made.watch()), asyncio.create_task(made.follow_logs())]))
        return made

    async def serving(self, **spec: int) -> tuple[Processes, Order]:
        """Return a platform's runtime, and a revision that it serves."""
        runtime = self.platform()
        await runtime.prepare(self.row)
        order = self.order(**spec)
        await runtime.start(order, {})
        await runtime.switch(order)
        return runtime, order

    async def insert(self, lines: list[LogLine]) -> None:
        self.lines += lines

    async def leave(self) -> None:
        """End the loops as a platform does that ends; its agents keep running."""
        for runtime, loops in self._platforms:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await runtime.close()
        self._platforms.clear()

    async def end(self) -> None:
        await self.leave()
        await asyncio.to_thread(agents.stop_agents, self.home, 5)
        await AgentDatabases(self.postgres).remove(f"moorage_agent_{self.number}")

    def order(self, number: int = 1, build_of: UUID | None = None, **spec: int) -> Order:
        """Return the order of a revision with its own build, or with another revision's build."""
        revision_id = uuid7()
        if build_of is None:
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
            build_of,
            True,
            None,
        )

    async def get(self, path: str = "/") -> str:
        """Request the path as the front door does, and return the answer's text."""
        with agents.short_path(self.home / "front-door" / "front" / f"d-{self.name}.sock") as address:
            transport = httpx.AsyncHTTPTransport(uds=address)
            async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=40) as client:
                return (await client.get(path)).text

    async def workers(self, count: int) -> set[int]:
        """Return the process numbers of the workers that answer, once there are this many."""
        found: set[int] = set()
        async with asyncio.timeout(40):
            while len(found) < count:
                found.add(int(await self.get("/pid")))
        return found

    def process(self, order: Order) -> agents.AgentProcess | None:
        """Return the running process of a revision."""
        return agents.read_process(self.place.pid_file(order.revision_id))

    def texts(self) -> list[str]:
        return [line.message for line in self.lines]


@asynccontextmanager
async def make_world(postgres: object, number: int) -> AsyncIterator[World]:
    """Make a world. Nothing of it is left when the context ends."""
    with make_folder() as folder:
        home = folder / "home"
        for path in (home, home / "front-door", home / "front-door" / "front"):
            processes.make_directory(path, 0o711)
        made = World(home, postgres, number)
        try:
            yield made
        finally:
            await made.end()
