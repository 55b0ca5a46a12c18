"""The control loop makes the running revisions agree with the rows of revisions and deployments.

Two kinds of rows are leased: revisions that are being built or deployed, and deployments that are being made or
removed. Besides, the loop tells the runtime again and again which revisions should serve, which repairs interrupted
work.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import structlog

from moorage.control.records.logs import LogKind, LogLevel, LogLine
from moorage.control.records.orders import LeasedDeployment, LeasedRevision, Order
from moorage.control.records.states import DeploymentStatus, RevisionStatus
from moorage.control.runtimes import Builder, Runtime, words_of
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.logs import LogStore
from moorage.control.store.revisions import RevisionStore
from moorage.kernel.errors import MoorageError, UnavailableError
from moorage.worker.leases import Worker

log = structlog.get_logger(__name__)

_S = RevisionStatus
_RECONCILE_S = 5.0
_SWEEP_S = 3600.0
_FLUSH_S = 0.5
_LATER_S = 5.0
_ATTEMPT_BITS = 40


@dataclass(frozen=True)
class LoopRules:
    builds_at_once: int = 2
    attempts_max: int = 3
    builds_kept: int = 5
    lease_s: float = 15
    poll_s: float = 2


class AtWork(Container[int]):
    """Numbers of the deployments that are being worked on, or were at any time since the last `look`.

    Their rows may have changed after they were read, so reconciling and sweeping leave these deployments alone.
    """

    def __init__(self) -> None:
        self._now: Counter[int] = Counter()
        self._since: set[int] = set()

    def look(self) -> None:
        """Start a new interval. Call this before reading the rows."""
        self._now = +self._now
        self._since = set(self._now)

    def __contains__(self, number: object) -> bool:
        return number in self._since

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        self._now[number] += 1
        self._since.add(number)
        try:
            yield
        finally:
            self._now[number] -= 1


class BuildLog:
    """The build log of one attempt, stored in batches while the build runs."""

    def __init__(self, store: LogStore, order: Order, attempt: int) -> None:
        self._store = store
        self._order = order
        self._position = attempt << _ATTEMPT_BITS
        self._lines: list[LogLine] = []

    def say(self, text: str) -> None:
        self._position += 1
        order, level = self._order, LogLevel.ERROR if text.startswith("error") else LogLevel.INFO
        now = datetime.now(UTC)
        ids = (order.workspace_id, order.deployment_id, order.revision_id)
        self._lines.append(LogLine(*ids, LogKind.BUILD, now, self._position, level, text))

    async def flush(self) -> None:
        lines, self._lines = self._lines, []
        try:
            await self._store.insert(lines)
        except UnavailableError as error:  # a build does not fail because its log cannot be stored
            log.warning("lines of a build cannot be stored now", error=str(error))
            self._lines = lines + self._lines

    async def flush_on(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            await self.flush()


class RevisionQueue:
    """Leased revisions: builds them, starts them and switches to them."""

    def __init__(
        self,
        rules: LoopRules,
        store: RevisionStore,
        builds: Builder,
        runtime: Runtime,
        logs: LogStore,
        secrets_of: Callable[[UUID], Awaitable[dict[str, str]]],
        at_work: AtWork,
    ) -> None:
        self._rules = rules
        self._store = store
        self._builds = builds
        self._runtime = runtime
        self._logs = logs
        self._secrets_of = secrets_of
        self._at_work = at_work
        self.claim, self.beat, self.hand_back = store.claim, store.beat, store.hand_back

    async def reap(self) -> int:
        return await self._store.reap(self._rules.attempts_max)

    async def execute(self, row: LeasedRevision) -> bool:
        """Take a revision to its end. Returns True if the next revision of its deployment may go on."""
        with self._at_work.at(row.order.deployment_number):
            if row.order.status in {_S.AWAITING_BUILD, _S.BUILDING}:
                return await self._step(row, _S.BUILDING, _S.BUILD_FAILED, self._build) and await self._deploy_step(row)
            return await self._deploy_step(row)

    async def _deploy_step(self, row: LeasedRevision) -> bool:
        return await self._step(row, _S.DEPLOYING, _S.DEPLOY_FAILED, self._deploy)

    async def _step(
        self,
        row: LeasedRevision,
        at: RevisionStatus,
        failed: RevisionStatus,
        step: Callable[[LeasedRevision], Awaitable[bool]],
    ) -> bool:
        """Run one step. A permanent error fails the revision with its reason; if an engine is away, the step is
        postponed.
        """
        try:
            return await step(row)
        except UnavailableError as error:
            log.warning("a revision has to wait", revision_id=str(row.order.revision_id), error=str(error))
            await self._store.postpone(row.lease, _LATER_S)
            return False
        except (MoorageError, OSError) as error:
            words = words_of(error)
        except Exception:  # a fault of the platform; its owner is told so
            log.exception("a revision failed", revision_id=str(row.order.revision_id), at=at)
            words = "The platform failed; its log says why"
        await self._store.finish(row.lease, at, failed, words)
        return False

    async def _build(self, row: LeasedRevision) -> bool:
        """Build the revision. Returns True if it may be deployed."""
        lease, order = row.lease, row.order
        if order.status is _S.AWAITING_BUILD and not await self._store.move(lease, _S.AWAITING_BUILD, _S.BUILDING):
            return False
        printed = BuildLog(self._logs, order, lease.attempt)
        flushing = asyncio.create_task(printed.flush_on())
        try:
            built = await self._builds.build(order, await self._secrets_of(order.deployment_id), printed.say)
        except (MoorageError, OSError) as error:
            printed.say(f"error: {words_of(error)}")
            raise
        finally:
            flushing.cancel()
            await asyncio.shield(printed.flush())
        if built.commit:
            await self._store.set_commit(lease, built.commit)
        if built.authentication:
            await self._store.set_authentication(lease, built.authentication)
        return await self._store.move(lease, _S.BUILDING, _S.AWAITING_DEPLOY)

    async def _deploy(self, row: LeasedRevision) -> bool:
        lease, order = row.lease, row.order
        if order.status is not _S.DEPLOYING and not await self._store.move(lease, _S.AWAITING_DEPLOY, _S.DEPLOYING):
            return False
        secrets = await self._secrets_of(order.deployment_id)
        order = await self._fetch(row, secrets)
        if found := await self._runtime.start(order, secrets):
            await self._store.set_authentication(lease, found)
        await self._runtime.switch(order)
        if await self._store.finish(lease, _S.DEPLOYING, _S.DEPLOYED):
            await self._leave(order.active_revision_id)
            return True
        await self._back(order)
        return False

    async def _fetch(self, row: LeasedRevision, secrets: Mapping[str, str]) -> Order:
        """Return the order, with its image pinned if it has one. Messages of the fetch go to the build log."""
        lease, order = row.lease, row.order
        printed = BuildLog(self._logs, order, lease.attempt)
        try:
            pin = await self._runtime.fetch(order, secrets, printed.say)
            if pin is None:
                return order
            printed.say(f"The image is {pin}")
        except MoorageError as error:
            printed.say(f"error: {error}")
            raise
        finally:
            await asyncio.shield(printed.flush())
        await self._store.set_image_pin(lease, pin)
        return replace(order, image_pin=pin)

    async def _back(self, order: Order) -> None:
        """Switch back to the revision that served before: this one was interrupted before its switch was recorded."""
        serves = await self._store.read_order(order.active_revision_id) if order.active_revision_id else None
        if serves is not None:
            await self._runtime.switch(serves)
        await self._runtime.stop(order)

    async def _leave(self, revision_id: UUID | None) -> None:
        before = await self._store.read_order(revision_id) if revision_id else None
        if before is not None:
            await self._runtime.stop(before)


class Chores:
    """Leased deployments: makes databases of new ones, and removes deleted ones."""

    def __init__(
        self,
        store: DeploymentStore,
        runtime: Runtime,
        logs: LogStore,
        remove_uploads: Callable[[UUID], Awaitable[None]],
        remove_project: Callable[[UUID, str], Awaitable[None]],
        wake_revisions: Callable[[], None],
        at_work: AtWork,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._logs = logs
        self._remove_uploads = remove_uploads
        self._remove_project = remove_project
        self._wake_revisions = wake_revisions
        self._at_work = at_work
        self.claim, self.beat, self.reap, self.hand_back = store.claim, store.beat, store.reap, store.hand_back

    async def execute(self, row: LeasedDeployment) -> bool:
        """Make or remove the deployment. A failure is retried a little later, without a limit: giving up would leave
        things behind.
        """
        with self._at_work.at(row.number):
            try:
                if row.status == DeploymentStatus.AWAITING_DELETE:
                    return await self._remove(row)
                await self._runtime.prepare(row)
                ready = await self._store.set_ready(row.lease)
                self._wake_revisions()
                return ready
            except (MoorageError, OSError) as error:
                log.warning("a deployment has to wait", deployment=row.name, status=row.status, error=words_of(error))
                return await self._store.postpone(row.lease, _LATER_S)

    async def _remove(self, row: LeasedDeployment) -> bool:
        await self._runtime.remove(row)
        await self._remove_uploads(row.deployment_id)
        await self._logs.remove(row.workspace_id, row.deployment_id)
        if row.deletes_project:
            await self._remove_project(row.workspace_id, row.name)
        return await self._store.remove(row.lease)


class ControlLoop:
    """The control loop's parts, started and stopped together: leased revisions, leased deployments, the keeper and the
    runtime.
    """

    def __init__(
        self, revisions: Worker[LeasedRevision], chores: Worker[LeasedDeployment], keeper: Keeper, runtime: Runtime
    ) -> None:
        self._revisions = revisions
        self._chores = chores
        self._keeper = keeper
        self._runtime = runtime
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._keeper.remove_unfinished()
        self._revisions.start()
        self._chores.start()
        works = (
            self._runtime.watch(),
            self._runtime.follow_logs(),
            self._keeper.reconcile_on(),
            self._keeper.sweep_on(),
        )
        self._tasks = [asyncio.create_task(work) for work in works]

    def wake(self) -> None:
        self._revisions.wake()
        self._chores.wake()

    async def stop(self) -> None:
        """Stop the loops. Agents keep running."""
        if not self._tasks:
            return
        await asyncio.gather(self._revisions.stop(), self._chores.stop())
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._runtime.close()


class Keeper:
    """Loops over all deployments: start the agents that should run, and remove builds and uploads that are no longer
    needed.
    """

    def __init__(
        self,
        rules: LoopRules,
        revisions: RevisionStore,
        deployments: DeploymentStore,
        runtime: Runtime,
        at_work: AtWork,
        sweep_uploads: Callable[[], Awaitable[None]],
    ) -> None:
        self._rules = rules
        self._revisions = revisions
        self._deployments = deployments
        self._runtime = runtime
        self._at_work = at_work
        self._sweep_uploads = sweep_uploads

    async def reconcile_on(self) -> None:
        await _repeated("reconcile", self.reconcile, _RECONCILE_S)

    async def remove_unfinished(self) -> None:
        """Remove builds that a killed platform left unfinished. They are started anew in other folders."""
        for number in await self._deployments.read_numbers():
            await self._runtime.remove_unfinished(number)

    async def sweep_on(self) -> None:
        await _repeated("sweep", self.sweep, _SWEEP_S)

    async def reconcile(self) -> None:
        self._at_work.look()
        under_way = await self._revisions.read_under_way()  # first: one that ends now is active in the next read
        await self._runtime.reconcile(await self._revisions.read_active(), self._at_work, under_way)

    async def sweep(self) -> None:
        """Remove all but the newest builds of each deployment. A build under way has no mark yet and is left alone."""
        for number, deployment_id in (await self._deployments.read_numbers()).items():
            await self._revisions.forget_builds(deployment_id, self._rules.builds_kept)
            if number not in self._at_work:
                await self._runtime.remove_builds(number, await self._revisions.read_built())
        await self._sweep_uploads()


async def _repeated(name: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        began_at = time.monotonic()
        try:
            await work()
        except UnavailableError as error:
            log.warning("cannot look after deployments now", work=name, error=str(error))
        except Exception:  # if this loop ended, nobody would look after the agents
            log.exception("cannot look after deployments", work=name)
        await asyncio.sleep(max(0.0, began_at + every_s - time.monotonic()))
