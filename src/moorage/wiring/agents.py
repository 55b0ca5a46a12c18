"""From AgentSettings to a running agent server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from moorage.agents.assistants import Assistants
from moorage.agents.checkpoints import PostgresSaver
from moorage.agents.commands import Commands
from moorage.agents.crons import Crons
from moorage.agents.embeddings import Embedder
from moorage.agents.execute import RunQueue
from moorage.agents.expiry import Expiry
from moorage.agents.feedback import FeedbackLinks
from moorage.agents.graphs import Graphs
from moorage.agents.imports import import_variable
from moorage.agents.items import Items, LongTermStore
from moorage.agents.langgraph_json import CheckpointerTtl, LanggraphJson, extend_import_path, load_langgraph_json
from moorage.agents.live import LiveRuns
from moorage.agents.metrics import AgentMetrics, Figures
from moorage.agents.platform_access import Deployed, PlatformAccess
from moorage.agents.records.threads import Ttl
from moorage.agents.room import Agents
from moorage.agents.runs import Runs
from moorage.agents.spawn import CronSpawner
from moorage.agents.state import States
from moorage.agents.store.assistants import AssistantStore
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.agents.store.crons import CronStore
from moorage.agents.store.expiry import ExpiryStore
from moorage.agents.store.frames import FrameStore
from moorage.agents.store.items import ItemStore
from moorage.agents.store.pruning import PruningStore
from moorage.agents.store.runs import LeasedRun, RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.agents.store.webhooks import LeasedDelivery, WebhookStore
from moorage.agents.stream import StreamReader
from moorage.agents.thread_stream import ThreadStreams
from moorage.agents.threads import Threads
from moorage.agents.webhooks import POLL_S, SLOTS, Deliveries, WebhookPolicy, webhook_headers
from moorage.http.metrics import Metrics
from moorage.kernel.broadcast import PostgresBroadcast, RedisBroadcast
from moorage.kernel.errors import StartupError
from moorage.kernel.group_commit import GroupCommit
from moorage.kernel.load import Load
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from moorage.kernel.shared_bus import SharedBus
from moorage.settings.agents import AgentSettings
from moorage.wiring.agent_application import agent_application, custom_auth, import_application, started
from moorage.worker.leases import Worker, worker_name
from moorage.worker.ticker import Ticker

# Starts another agent server for runs on their last attempt. None in that other server.
StartApart = Callable[[], None] | None


@dataclass(frozen=True)
class AgentProject:
    """A langgraph.json, and the folder that its relative paths refer to."""

    config: LanggraphJson
    folder: Path


def load_project(path: Path) -> AgentProject:
    """Read a langgraph.json and set the variables of its `env`. Raises StartupError with the reason."""
    return AgentProject(load_langgraph_json(path), path.resolve().parent)


@dataclass(frozen=True)
class AgentServer:
    """A running agent server: its web application, and how to stop its work before its connections.

    `pause_work` is for a replaced revision, which finishes its work and takes no more runs.
    """

    app: ASGIApp
    graph_ids: list[str]
    graph_faults: list[str]
    stop_work: Callable[[], Awaitable[None]]
    pause_work: Callable[[], None]
    resume_work: Callable[[], None]
    is_idle: Callable[[], bool]
    load: Callable[[], Awaitable[Load]]


@dataclass(frozen=True)
class _Stores:
    assistants: AssistantStore
    checkpoints: CheckpointStore
    crons: CronStore
    frames: FrameStore
    runs: RunStore
    threads: ThreadStore

    @classmethod
    def of(cls, postgres: Postgres, commits: GroupCommit, ttl: CheckpointerTtl) -> _Stores:
        default = Ttl(ttl=ttl.default_ttl, strategy=ttl.strategy) if ttl.default_ttl else None
        return cls(
            assistants=AssistantStore(postgres),
            checkpoints=CheckpointStore(postgres),
            crons=CronStore(postgres),
            frames=FrameStore(postgres, commits),
            runs=RunStore(postgres),
            threads=ThreadStore(postgres, default),
        )


@dataclass(frozen=True)
class _Work:
    """The loops of a process, started and stopped together."""

    worker: Worker[LeasedRun]
    deliveries: Worker[LeasedDelivery]
    tickers: Sequence[Ticker]
    bus: SharedBus

    @property
    def _begins_runs(self) -> list[Worker[LeasedRun] | Ticker]:
        return [*self.tickers, self.worker]

    def start(self) -> None:
        self.deliveries.start()
        for loop in self._begins_runs:
            loop.start()

    def pause(self) -> None:
        for loop in self._begins_runs:
            loop.pause()

    def resume(self) -> None:
        for loop in self._begins_runs:
            loop.resume()

    def is_idle(self) -> bool:
        return self.worker.is_idle

    async def stop(self) -> None:
        for loop in self._begins_runs:
            await loop.stop()
        await self.deliveries.stop()
        self.bus.cut_off_all()  # otherwise streams of returned runs would keep their connections open


@asynccontextmanager
async def agent_server(
    settings: AgentSettings, project: AgentProject, conninfo: str, start_apart: StartApart, *, development: bool = False
) -> AsyncIterator[AgentServer]:
    """Run the agent server of one project, on the PostgreSQL that `conninfo` names.

    With `development`, `/ok` says which graphs cannot be loaded, with the line of their source.
    """
    extend_import_path(project.config, project.folder)
    postgres = Postgres(conninfo, settings.pool_max)
    await postgres.open()
    try:
        await migrate(postgres, "agents")
        memory = await _long_term_store(project, postgres)
        graphs = Graphs(project.config.graph_specs(), project.folder, memory)
        async with _platform_access(settings) as access:
            timeout_s = settings.auth_timeout_s
            auth = await asyncio.to_thread(custom_auth, project.config.auth, project.folder, timeout_s, access)
            path, folder = project.config.http.app, project.folder
            own = await import_application(path, folder)
            metrics = Metrics(settings.metric_prefix, route="path", worker=settings.worker)
            app = agent_application(settings, project.config, access, auth, own, metrics, development=development)
            async with (
                # Runs may use objects of this lifespan, so it starts before the first run and stops after the last.
                started(app, path, folder),
                _agents(settings, project.config, graphs, memory, postgres, metrics, start_apart) as (room, work),
            ):
                app.operations.state.agents = room
                faults = [fault.for_owner() for fault in graphs.failures.values()]
                yield AgentServer(
                    app=app.served,
                    graph_ids=graphs.loaded,
                    graph_faults=faults,
                    stop_work=work.stop,
                    pause_work=work.pause,
                    resume_work=work.resume,
                    is_idle=work.is_idle,
                    load=room.metrics.load,
                )
    finally:
        await postgres.close()


async def migrate_agents(conninfo: str) -> list[str]:
    """Apply the missing migrations, and return their names."""
    postgres = Postgres(conninfo, 2)
    await postgres.open()
    try:
        return await migrate(postgres, "agents")
    finally:
        await postgres.close()


async def _long_term_store(project: AgentProject, postgres: Postgres) -> LongTermStore:
    """Make the long-term store. Raises StartupError when items cannot be indexed as the project's
    configuration asks.
    """
    config, embedder = project.config.store, None
    if config.index is not None:
        embedder = await asyncio.to_thread(Embedder, config.index, partial(import_variable, folder=project.folder))
    store = ItemStore(postgres, config.index.dims if config.index else None)
    await store.prepare()
    return LongTermStore(store, config, embedder)


@asynccontextmanager
async def _platform_access(settings: AgentSettings) -> AsyncIterator[PlatformAccess | None]:
    """Return the access checks of an agent that a platform has deployed, as its environment says; None for other
    agents.
    """
    url, workspace_id = os.environ.get("MOORAGE_PLATFORM_URL"), os.environ.get("LANGSMITH_TENANT_ID")
    if not url or not workspace_id:
        yield None
        return
    deployment, key = os.environ.get("LANGSMITH_HOST_PROJECT_NAME", ""), os.environ.get("LANGSMITH_API_KEY", "")
    access = PlatformAccess(Deployed(url, workspace_id, deployment, key, settings.offline_s))
    access.start()
    try:
        yield access
    finally:
        await access.close()


@asynccontextmanager
async def _agents(
    settings: AgentSettings,
    config: LanggraphJson,
    graphs: Graphs,
    memory: LongTermStore,
    postgres: Postgres,
    metrics: Metrics,
    start_apart: StartApart,
) -> AsyncIterator[tuple[Agents, _Work]]:
    """Make the room of agents and start its loops."""
    await _load(graphs, settings.sync_threads)
    live, commits, figures = LiveRuns(), GroupCommit(postgres), Figures()
    name, broadcast = worker_name(), _broadcast(settings, postgres)
    bus = SharedBus(broadcast, name)
    stores, policy = _Stores.of(postgres, commits, config.checkpointer.ttl), WebhookPolicy(config.webhooks.url)
    deliveries = _deliveries(settings, config, postgres, policy, name)
    queue = _run_queue(
        settings,
        stores,
        commits=commits,
        graphs=graphs,
        bus=bus,
        live=live,
        figures=figures,
        wake=deliveries.wake,
        start_apart=start_apart,
    )
    worker = Worker[LeasedRun](queue, name=name, slots=settings.slots, lease_s=settings.lease_s, poll_s=1)
    thread_verbs = Threads(stores.threads, stores.runs, stores.checkpoints, PruningStore(postgres), live)
    assistant_verbs = Assistants(stores.assistants, graphs, thread_verbs, config.assistants)
    await assistant_verbs.ensure_system()
    reader = StreamReader(stores.runs, stores.frames, bus, live)
    run_verbs = Runs(
        runs=stores.runs,
        threads=stores.threads,
        graphs=graphs,
        live=live,
        bus=bus,
        reader=reader,
        slots=worker,
        webhooks=None if config.http.disable_webhooks else policy,
        figures=figures,
    )
    spawner = CronSpawner(stores.crons, run_verbs)
    work = _Work(worker, deliveries, _tickers(settings, config, spawner, memory, postgres), bus)
    await _listen(bus, worker, queue)
    work.start()
    states = States(stores.threads, stores.runs, stores.assistants, graphs, PostgresSaver(stores.checkpoints, commits))
    try:
        room = Agents(
            postgres=postgres,
            graphs=graphs,
            assistants=assistant_verbs,
            threads=thread_verbs,
            states=states,
            runs=run_verbs,
            crons=Crons(stores.crons, stores.threads, stores.assistants, run_verbs),
            items=Items(memory),
            metrics=AgentMetrics(metrics, figures, stores.runs, stores.checkpoints, worker, postgres.pool_size),
            commands=Commands(run_verbs, states, thread_verbs),
            thread_streams=ThreadStreams(stores.runs, stores.threads, reader, bus),
        )
        yield room, work
    finally:
        await work.stop()
        await _close(bus, commits, broadcast)


async def _listen(bus: SharedBus, worker: Worker[LeasedRun], queue: RunQueue) -> None:
    bus.on_signal("wake", lambda _: worker.wake())
    bus.on_signal("cancel", queue.on_cancel)
    await bus.start()


def _deliveries(
    settings: AgentSettings, config: LanggraphJson, postgres: Postgres, policy: WebhookPolicy, name: str
) -> Worker[LeasedDelivery]:
    tells = Deliveries(WebhookStore(postgres), policy, webhook_headers(config.webhooks, os.environ))
    return Worker[LeasedDelivery](tells, name=name, slots=SLOTS, lease_s=settings.lease_s, poll_s=POLL_S)


def _run_queue(
    settings: AgentSettings,
    stores: _Stores,
    *,
    commits: GroupCommit,
    graphs: Graphs,
    bus: SharedBus,
    live: LiveRuns,
    figures: Figures,
    wake: Callable[[], None],
    start_apart: StartApart,
) -> RunQueue:
    return RunQueue(
        runs=stores.runs,
        frames=stores.frames,
        threads=stores.threads,
        checkpoints=stores.checkpoints,
        commits=commits,
        graphs=graphs,
        bus=bus,
        live=live,
        feedback=FeedbackLinks(os.environ),
        figures=figures,
        wake_webhooks=wake,
        attempts_max=settings.attempts_max,
        timeout_s=settings.run_timeout_s,
        frames_keep_s=settings.frames_keep_s,
        start_apart=start_apart,
    )


async def _close(bus: SharedBus, commits: GroupCommit, broadcast: PostgresBroadcast | RedisBroadcast) -> None:
    await bus.stop()
    await commits.close()
    if isinstance(broadcast, RedisBroadcast):
        await broadcast.close()


def _tickers(
    settings: AgentSettings, config: LanggraphJson, spawner: CronSpawner, memory: LongTermStore, postgres: Postgres
) -> list[Ticker]:
    ttl = config.checkpointer.ttl
    sweeps = [
        Ticker("items", memory.sweep, every_s=config.store.ttl.sweep_interval_minutes * 60),
        Ticker(
            "threads", Expiry(ExpiryStore(postgres), ttl.sweep_limit).sweep, every_s=ttl.sweep_interval_minutes * 60
        ),
    ]
    if not settings.crons_enabled:
        return sweeps
    return [*sweeps, Ticker("crons", spawner.fire_due, every_s=settings.cron_poll_s)]


async def _load(graphs: Graphs, sync_threads: int) -> None:
    """Import the graphs, and set up threads for their synchronous code.

    Raises StartupError for a deployed revision that cannot serve all of them: it must not replace one that works.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(sync_threads, "sync"))
    await asyncio.to_thread(graphs.load)
    if graphs.failures and "LANGSMITH_HOST_REVISION_ID" in os.environ:
        raise StartupError("\n".join(fault.for_owner() for fault in graphs.failures.values()))


def _broadcast(settings: AgentSettings, postgres: Postgres) -> PostgresBroadcast | RedisBroadcast:
    if settings.redis_uri:
        return RedisBroadcast(settings.redis_uri, settings.redis_prefix)
    return PostgresBroadcast(postgres)
