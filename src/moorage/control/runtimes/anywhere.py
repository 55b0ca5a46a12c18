"""The runtime of all deployments: each runs on this machine or on that of the listener that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from uuid import UUID

from moorage.control.builds import Builds
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import Authentication
from moorage.control.runtimes import Built
from moorage.control.runtimes.processes import Processes
from moorage.control.runtimes.remote import Remote


class Anywhere:
    """The runtime of all deployments. `here` runs those that name no listener, `there` the others."""

    def __init__(self, builds: Builds, here: Processes, there: Remote) -> None:
        self._builds = builds
        self._here = here
        self._there = there

    async def build(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> Built:
        """Build the order on the machine that runs it. Raises BuildError."""
        builder: Builds | Remote = self._there if order.listener_id else self._builds
        return await builder.build(order, secrets, say)

    async def prepare(self, deployment: LeasedDeployment) -> None:
        await (self._there if deployment.listener_id else self._here).prepare(deployment)

    async def remove(self, deployment: LeasedDeployment) -> None:
        await (self._there if deployment.listener_id else self._here).remove(deployment)

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        return await self._of(order).fetch(order, secrets, say)

    async def start(self, order: Order, secrets: Mapping[str, str]) -> Authentication | None:
        return await self._of(order).start(order, secrets)

    async def switch(self, order: Order) -> None:
        await self._of(order).switch(order)

    async def stop(self, order: Order) -> None:
        await self._of(order).stop(order)

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        await self._here.reconcile([order for order in active if order.listener_id is None], busy, under_way)
        await self._there.reconcile([order for order in active if order.listener_id], busy, under_way)

    async def remove_unfinished(self, number: int) -> None:
        await self._here.remove_unfinished(number)

    async def remove_builds(self, number: int, keep: Collection[UUID]) -> None:
        await self._here.remove_builds(number, keep)

    async def watch(self) -> None:
        await self._here.watch()

    async def follow_logs(self) -> None:
        await asyncio.gather(self._here.follow_logs(), self._there.follow_logs())

    async def close(self) -> None:
        await self._there.close()
        await self._here.close()

    def _of(self, order: Order) -> Processes | Remote:
        return self._there if order.listener_id else self._here
