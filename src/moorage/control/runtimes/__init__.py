"""Runtimes of agents: the operations that each of them supplies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from moorage.control.limits import ProcessLimits
from moorage.control.places import Place
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import Authentication
from moorage.embedded.agents import Launch
from moorage.kernel.errors import MoorageError

if TYPE_CHECKING:
    from moorage.control.runtimes.environment import Surroundings


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


class Launcher(Protocol):
    """Makes processes of this machine out of revisions of some sources. What they have in common, from their sockets to
    their ends, is `Processes`.
    """

    @property
    def engine_limits_processors(self) -> bool:
        """True if an engine gives its processes their share of the processors, and not the platform."""

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        """Fetch what a runtime fetches."""

    def environment(
        self, order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings
    ) -> dict[str, str]:
        """Return the variables of the agent. Raises DeployError when what it is made of is not here."""

    def limits(self, order: Order) -> ProcessLimits:
        """Return the limits of the kernel on the agent's processes."""

    def launch(
        self, order: Order, place: Place, environment: Mapping[str, str], fd: int, socket: Path, shown: Sequence[Path]
    ) -> Launch:
        """Return how its process is started. `fd` is the socket that it accepts on, at the path `socket`; `shown` are folders
        of this machine that it sees. Raises DeployError.
        """

    async def remove_unwanted(self, is_wanted: Callable[[Place, UUID], bool], busy: Container[int]) -> None:
        """Remove what runs outside of our processes for revisions that nobody wants, but not of deployments in `busy`."""

    async def remove_all(self, deployment_id: UUID, place: Place) -> None:
        """Remove what a deployment has outside of its folder and our processes."""


class Runtime(Protocol):
    """A place where revisions run and their builds are kept.

    Every method is idempotent, and goes on from wherever an earlier attempt was interrupted.
    """

    async def prepare(self, deployment: LeasedDeployment) -> None:
        """Prepare the database, folders and key that all revisions of a deployment share."""

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        """Fetch the image that the order names, which is here from then on. Returns its pinned name; None for an order that
        is built. Raises DeployError, and UnavailableError.
        """

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
