"""Runtimes of agents: the operations that each of them supplies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import Authentication
from moorage.kernel.errors import MoorageError


class DeployError(MoorageError):
    """A revision that does not come up. The text, with the last lines of its log, is shown to its owner."""

    status = 400
    code = "deploy_failed"


def words_of(error: Exception) -> str:
    """Return the message for the deployment's owner. For an OSError it is the reason, never a path of this machine."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else "The machine refused it"
    return str(error)


class Built(Protocol):
    """A build, as far as the platform writes it down."""

    @property
    def commit(self) -> str | None: ...

    @property
    def authentication(self) -> Authentication | None: ...


class Builder(Protocol):
    async def build(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> Built:
        """Complete when it returns, and at once when it was before. Raises an error whose text its owner may read."""


class Runtime(Protocol):
    """A place where revisions run and their builds are kept.

    Every method is idempotent, and goes on from wherever an earlier attempt was interrupted.
    """

    async def prepare(self, deployment: LeasedDeployment) -> None:
        """Prepare the database, folders and key that all revisions of a deployment share."""

    async def start(self, order: Order, secrets: Mapping[str, str]) -> Authentication | None:
        """Returns when the revision answers `/ok`, with how its callers authenticate if that is known only now. Raises
        DeployError; then nothing of it runs.
        """

    async def switch(self, order: Order) -> None:
        """From here on this revision, which has been started, gets all requests of its deployment."""

    async def stop(self, order: Order) -> None:
        """A revision that is not switched to: its streams end by themselves, within a bound."""

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        """Start the active revision of each deployment and, once it answers, stop the others. Called again and again.

        Deployments in `busy` (by number) are left alone; they may join `busy` at any moment, so it is asked before
        each thing that is done. Revisions `under_way` are not stopped: whoever leases them next goes on with what an earlier
        platform has started of them.
        """

    async def remove(self, deployment: LeasedDeployment) -> None:
        """All that there is of a deployment."""

    async def remove_unfinished(self, number: int) -> None:
        """Remove builds of a deployment that were at work when a platform was killed. Only before any build is begun."""

    async def remove_builds(self, number: int, keep: Collection[UUID]) -> None:
        """Remove all builds of a deployment but these and those that are at work."""

    async def watch(self) -> None:
        """Start again what has crashed, for ever."""

    async def follow_logs(self) -> None:
        """Store what revisions print, for ever."""

    async def close(self) -> None:
        """End the platform's part in it. Revisions run on."""
