"""From settings to the room of the control plane and its loops."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import structlog

from moorage.accounts.keys import Keys
from moorage.control.builds import NETWORK_VARIABLES, BuildRules, Builds, find_uv, find_wheel
from moorage.control.certificates import CertificateRules, Certificates
from moorage.control.changes import DeploymentRules
from moorage.control.checkouts import PROTOCOLS, GitPolicy
from moorage.control.commit_statuses import CommitStatuses
from moorage.control.control_loop import AtWork, Chores, ControlLoop, Keeper, LoopRules, RevisionQueue
from moorage.control.deployments import Deployments
from moorage.control.forges import Forges
from moorage.control.host_names import HostNames
from moorage.control.image_registry import ImageRegistry
from moorage.control.integrations import Integrations
from moorage.control.isolation import Isolation, IsolationKind, find_isolation
from moorage.control.listeners import Listeners
from moorage.control.logs import Logs
from moorage.control.places import Place
from moorage.control.pushes import Pushes, PushRules
from moorage.control.records.orders import LeasedDeployment, LeasedRevision
from moorage.control.records.states import IMAGE_SOURCES, Source
from moorage.control.revisions import Revisions
from moorage.control.room import Control
from moorage.control.runtimes.anywhere import Anywhere
from moorage.control.runtimes.build_launcher import BuildLauncher
from moorage.control.runtimes.images import ImageRules, Images
from moorage.control.runtimes.processes import Processes
from moorage.control.runtimes.remote import Remote, RemoteRules
from moorage.control.runtimes.rules import AgentKey, ProcessRules
from moorage.control.secret_box import SecretBox
from moorage.control.spool import SpoolRules
from moorage.control.store.agent_databases import AgentDatabases
from moorage.control.store.commit_statuses import CommitStatusStore
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.host_names import HostNameStore
from moorage.control.store.integrations import IntegrationStore
from moorage.control.store.listeners import ListenerStore
from moorage.control.store.logs import LogStore
from moorage.control.store.pushed_images import PushedImageStore
from moorage.control.store.revisions import RevisionStore
from moorage.control.store.uploads import UploadStore
from moorage.control.tunnels import Tunnels
from moorage.control.uploads import Uploads
from moorage.embedded.docker import DockerError, socket_of
from moorage.embedded.processes import is_root
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import NotFoundError, StartupError
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.postgres import Postgres
from moorage.settings.platform import PlatformSettings
from moorage.traces.records.projects import ProjectSearch
from moorage.traces.room import Traces
from moorage.wiring.oauth import auth_service
from moorage.worker.leases import Worker, worker_name
from moorage.worker.ticker import Ticker

log = structlog.get_logger(__name__)

_ACTOR = "control loop"
# The rights of an agent's key: write its traces, create their project, and use tokens of its users.
_AGENT_SCOPES = frozenset(
    {
        Scope.RUNS_WRITE,
        Scope.FEEDBACK_WRITE,
        Scope.PROJECTS_READ,
        Scope.PROJECTS_WRITE,
        Scope.OAUTH_TOKENS_READ,
        Scope.OAUTH_TOKENS_USE,
    }
)
_CHORE_SLOTS = 4
_PUSHES_EVERY_S = 5.0
_HOST_NAMES_EVERY_S = 1.0
_STATUSES_EVERY_S = 2.0
_LISTENERS_EVERY_S = 10.0
MakeKey = Callable[[UUID, str], Awaitable[AgentKey]]
RevokeKey = Callable[[UUID, UUID], Awaitable[None]]
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432, "socks5": 1080}


@dataclass(frozen=True)
class ControlOptions:
    """Settings of deployments. `platform` is the platform's origin as seen from this machine."""

    home: Path
    public_url: str
    platform: str
    upload_bytes_max: int
    images_bytes_max: int
    git: GitPolicy = field(default_factory=GitPolicy)
    owns_postgres: bool = True
    agent_wheel: Path | None = None
    build_timeout_s: float = 900
    builds_at_once: int = 2
    builds_kept: int = 5
    start_timeout_s: float = 60
    drain_s: float = 300
    standby_s: float = 600
    offline_s: float = 900
    body_bytes_max: int = 25_000_000
    ports: frozenset[int] = frozenset()
    disk_bytes_max: int = 0
    oauth_private_endpoints: bool = False
    git_poll_s: float = 30
    platform_names: frozenset[str] = frozenset()
    docker_host: str | None = None
    certificates: CertificateRules | None = None
    takes_orders: bool = False


@dataclass(frozen=True)
class ControlAtWork:
    """The room of the control plane, and how to stop its loops before the connections are closed.
    Agents keep running.
    """

    room: Control
    isolation: Isolation
    stop_work: Callable[[], Awaitable[None]]


def control_options(settings: PlatformSettings, home: Path) -> ControlOptions:
    protocols = [protocol.strip() for protocol in settings.git_protocols.split(",")]
    if unserved := sorted(set(protocols) - PROTOCOLS):
        raise StartupError(
            f"MOORAGE_GIT_PROTOCOLS: {unserved[0]!r} is not served, only {', '.join(sorted(PROTOCOLS))}: others look a host up "
            "themselves after its address was checked"
        )
    return ControlOptions(
        home=home,
        public_url=settings.origin,
        platform=settings.local_url,
        upload_bytes_max=settings.upload_bytes_max,
        images_bytes_max=settings.images_bytes_max,
        git=GitPolicy(protocols, settings.git_private_addresses),
        owns_postgres=settings.database_uri is None,
        agent_wheel=settings.agent_wheel,
        build_timeout_s=settings.build_timeout_s,
        builds_kept=settings.builds_kept,
        start_timeout_s=settings.agent_start_timeout_s,
        drain_s=settings.agent_drain_s,
        standby_s=settings.agent_standby_s,
        offline_s=settings.agent_offline_s,
        body_bytes_max=settings.body_bytes_max,
        ports=_ports(settings),
        disk_bytes_max=settings.agent_disk_bytes,
        oauth_private_endpoints=settings.allows_private_endpoints,
        git_poll_s=settings.git_poll_s,
        platform_names=_platform_names(settings),
        docker_host=_docker_host(settings),
        certificates=_certificates(settings, home),
        takes_orders=settings.orders_from is not None,
    )


def _certificates(settings: PlatformSettings, home: Path) -> CertificateRules | None:
    if settings.https_port is None:
        return None
    return CertificateRules(
        settings.local_host, settings.https_port, home / "front-door" / "log", settings.acme_ca is not None
    )


def _platform_names(settings: PlatformSettings) -> frozenset[str]:
    """Return the host names that lead to the platform. No deployment may have one of them."""
    public, local = (urlsplit(url).hostname or "" for url in (settings.origin, settings.local_url))
    # Clients of a data region put the region's name before the platform's name.
    names = (public, f"eu.{public}", local, socket.gethostname(), *settings.further_names)
    return frozenset(name.lower() for name in names)


def _docker_host(settings: PlatformSettings) -> str | None:
    """Return the host of the container engine. Raises StartupError for an engine that cannot run containers for this
    platform.
    """
    host = settings.docker_host
    if host is None:
        return None
    if not is_root():
        raise StartupError("MOORAGE_DOCKER_HOST is set: agents run in containers only where `moorage up` runs as root")
    try:
        socket_of(host)
    except DockerError as error:
        raise StartupError(f"MOORAGE_DOCKER_HOST: {error}") from None
    return host


def _ports(settings: PlatformSettings) -> frozenset[int]:
    """Return the ports of this machine that agents need or are allowed to reach. Raises StartupError for an invalid
    port.
    """
    urls = [
        settings.local_url,
        settings.database_uri or "",
        str(settings.orders_from or ""),
        *(os.environ.get(name, "") for name in NETWORK_VARIABLES),
    ]
    words = [word.strip() for word in settings.agent_ports.split(",") if word.strip()]
    if wrong := [word for word in words if not (word.isdigit() and 0 < int(word) < 2**16)]:
        raise StartupError(
            f"MOORAGE_AGENT_PORTS: {wrong[0]!r} is no port; write numbers with commas, such as 11434,8000"
        )
    return frozenset(map(int, words)) | {port for url in urls if (port := _local_port(url))}


def _local_port(url: str) -> int | None:
    """Return the port of a URL on this machine; None for another machine, a Unix socket or an invalid URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return None
    return (port or _PORTS.get(parts.scheme)) if is_here else None


@asynccontextmanager
async def control_at_work(
    options: ControlOptions,
    postgres: Postgres,
    clickhouse: ClickHouse,
    bucket: Bucket,
    master_keys: MasterKeys,
    keys: Keys,
    traces: Traces,
) -> AsyncIterator[ControlAtWork]:
    parts = _Parts(options, postgres, clickhouse, bucket, master_keys)
    isolation = find_isolation()
    if isolation.kind is IsolationKind.NONE:
        log.warning("agents are not kept from the platform's files: neither root nor bubblewrap is to be had here")
    loop = _control_loop(parts, keys, traces, isolation)
    parts.wake.append(loop.wake)
    if options.owns_postgres:
        await parts.databases.close_all()
    await loop.start()
    parts.auth.upkeep.start()
    rules = PushRules(options.home, options.git, isolation, options.git_poll_s)
    room = parts.room
    pushes = Pushes(
        rules,
        parts.deployments,
        room.deployments,
        lambda number: Place(options.home, number),
        room.integrations.credential,
    )
    names = HostNameStore(postgres)
    hosts = HostNames(names, options.home, options.platform_names)
    looks = Ticker("pushes", pushes.look, every_s=min(options.git_poll_s, _PUSHES_EVERY_S))
    parts.look_at_pushes.append(looks.wake)
    statuses = CommitStatuses(CommitStatusStore(postgres), room.integrations, options.public_url)
    tickers = [
        looks,
        Ticker("commit statuses", statuses.look, every_s=_STATUSES_EVERY_S),
        Ticker("host names", hosts.look, every_s=_HOST_NAMES_EVERY_S),
        Ticker("listeners", room.listeners.note_seen, every_s=_LISTENERS_EVERY_S),
    ]
    if options.certificates:
        look = Certificates(options.certificates, names).look
        tickers.append(Ticker("certificates", look, every_s=_HOST_NAMES_EVERY_S))
    for ticker in tickers:
        ticker.start()

    async def stop_work() -> None:
        for ticker in tickers:
            await ticker.stop()
        await parts.auth.upkeep.stop()
        await loop.stop()

    try:
        yield ControlAtWork(parts.room, isolation, stop_work)
    finally:
        await stop_work()


class _Parts:
    """The room and its stores. The control loop is added later, since it and the verbs of the room call each other."""

    def __init__(
        self,
        options: ControlOptions,
        postgres: Postgres,
        clickhouse: ClickHouse,
        bucket: Bucket,
        master_keys: MasterKeys,
    ) -> None:
        self.options = options
        self.wake: list[Callable[[], None]] = []
        self.look_at_pushes: list[Callable[[], None]] = []
        self.deployments, self.revisions, self.logs = (
            DeploymentStore(postgres),
            RevisionStore(postgres),
            LogStore(clickhouse),
        )
        self.databases = AgentDatabases(postgres)
        uploads = UploadStore(postgres)
        rules = DeploymentRules(
            options.public_url,
            options.git,
            options.platform_names,
            runs_images=options.docker_host is not None,
            serves_https=options.certificates is not None,
            takes_orders=options.takes_orders,
        )
        archives = SpoolRules(options.public_url, options.home / "spool", options.upload_bytes_max)
        images = ImageRegistry(
            PushedImageStore(postgres),
            self.deployments,
            bucket,
            master_keys,
            SpoolRules(options.public_url, options.home / "spool" / "images", options.images_bytes_max),
            runs_images=rules.runs_images,
        )
        http = GuardedHttp(allow_private=options.oauth_private_endpoints)
        self.auth = auth_service(postgres, master_keys, options.public_url, http)
        integrations = Integrations(
            IntegrationStore(postgres), master_keys, Forges(http), options.public_url, self._look_at_pushes
        )
        self.listener_store, self.tunnels = ListenerStore(postgres), Tunnels()
        listeners = Listeners(self.listener_store, self.tunnels)
        self.room = Control(
            Deployments(self.deployments, uploads, SecretBox(master_keys), rules, self._wake, integrations, listeners),
            Revisions(self.revisions, self.deployments, self._wake),
            Uploads(uploads, self.deployments, bucket, master_keys, archives),
            images,
            Logs(self.logs, self.deployments, self.revisions),
            self.auth.providers,
            self.auth.discovery,
            self.auth.sign_ins,
            self.auth.tokens,
            integrations,
            listeners,
        )

    def _look_at_pushes(self) -> None:
        for look in self.look_at_pushes:
            look()

    def _wake(self) -> None:
        for wake in self.wake:
            wake()


def _rules_of_agents(options: ControlOptions, isolation: Isolation) -> ProcessRules:
    return ProcessRules(
        options.home,
        options.platform,
        isolation,
        options.start_timeout_s,
        options.drain_s,
        options.standby_s,
        options.offline_s,
        options.body_bytes_max,
        options.ports,
        options.disk_bytes_max,
    )


def _control_loop(parts: _Parts, keys: Keys, traces: Traces, isolation: Isolation) -> ControlLoop:
    options, room = parts.options, parts.room
    builds = Builds(
        BuildRules(
            home=options.home,
            program=find_uv(),
            wheel=find_wheel(options.agent_wheel, options.home / "agents" / "wheels"),
            isolation=isolation,
            git=options.git,
            timeout_s=options.build_timeout_s,
        ),
        room.uploads.fetch,
        room.integrations.credential,
    )

    async def make_key(workspace_id: UUID, description: str) -> AgentKey:
        made = await keys.insert(workspace_id, description, _AGENT_SCOPES, None, _ACTOR)
        return AgentKey(UUID(str(made["id"])), made["key"])

    async def revoke_key(workspace_id: UUID, key_id: UUID) -> None:
        caller = Caller(workspace_id, Plan.DEVELOPER, frozenset(), _ACTOR)
        try:
            await keys.revoke(caller, key_id)
        except NotFoundError:
            log.info("the key of a deployment was revoked before", key_id=str(key_id))

    async def remove_project(workspace_id: UUID, name: str) -> None:
        caller = Caller(workspace_id, Plan.ENTERPRISE, frozenset(Scope), _ACTOR)
        found = await traces.projects.list(caller, ProjectSearch(name=name))
        if found:  # the project may be gone: nobody traced to it, or the removal was repeated after a crash
            await traces.deletion.delete_projects(caller, [project["id"] for project in found])

    images = Images(
        ImageRules(options.home, options.docker_host, options.ports, options.builds_kept), room.image_registry.login
    )
    here = Processes(
        _rules_of_agents(options, isolation),
        parts.databases,
        parts.logs,
        make_key=make_key,
        revoke_key=revoke_key,
        secrets_of=room.deployments.secrets_of,
        report=parts.revisions.report,
        launchers=dict.fromkeys(Source, BuildLauncher(isolation)) | dict.fromkeys(IMAGE_SOURCES, images),
    )
    there = _remote(parts, builds, make_key, revoke_key)
    runtime = Anywhere(builds, here, there)
    rules, name = LoopRules(builds_at_once=options.builds_at_once, builds_kept=options.builds_kept), worker_name()
    at_work = AtWork()
    queue = RevisionQueue(rules, parts.revisions, runtime, runtime, parts.logs, room.deployments.secrets_of, at_work)
    revisions = Worker[LeasedRevision](
        queue, name=name, slots=rules.builds_at_once, lease_s=rules.lease_s, poll_s=rules.poll_s
    )
    chores = Chores(
        parts.deployments, runtime, parts.logs, partial(_remove_uploads, room), remove_project, revisions.wake, at_work
    )
    keeper = Keeper(
        rules,
        parts.revisions,
        parts.deployments,
        runtime,
        at_work,
        partial(_sweep_uploads, room),
    )
    ends = Worker[LeasedDeployment](chores, name=name, slots=_CHORE_SLOTS, lease_s=rules.lease_s, poll_s=rules.poll_s)
    return ControlLoop(revisions, ends, keeper, runtime)


async def _remove_uploads(room: Control, deployment_id: UUID) -> None:
    await room.uploads.remove_all(deployment_id)
    await room.image_registry.remove_all(deployment_id)


async def _sweep_uploads(room: Control) -> None:
    await room.uploads.sweep()
    await room.image_registry.sweep()


def _remote(parts: _Parts, builds: Builds, make_key: MakeKey, revoke_key: RevokeKey) -> Remote:
    options = parts.options
    return Remote(
        RemoteRules(options.home, options.public_url, options.offline_s),
        parts.tunnels,
        parts.listener_store,
        builds,
        parts.logs,
        make_key=make_key,
        revoke_key=revoke_key,
        secrets_of=parts.room.deployments.secrets_of,
        report=parts.revisions.report,
    )
