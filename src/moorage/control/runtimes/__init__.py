"""Runtimes of agents: the operations that each runtime supplies."""

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
    """A revision could not be started. The text, with the last lines of its log, is shown to its owner."""

    status = 400
    code = "deploy_failed"


def words_of(error: Exception) -> str:
    """Return the message for the deployment's owner. For an OSError it is the reason, never a path of this machine."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else "The machine refused it"
    return str(error)


class Built(Protocol):
    """The facts about a build that the platform records."""

    @property
    def commit(self) -> str | None: ...

    @property
    def authentication(self) -> Authentication | None: ...


class Builder(Protocol):
    async def build(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> Built:
        """Build the order, or return its build if it is complete already.

        Raises an error whose text may be shown to the owner.
        """


class Launcher(Protocol):
    """A launcher turns revisions of some sources into processes of this machine. `Processes` does everything else:
    sockets, switching, watching and stopping.
    """

    @property
    def engine_limits_processors(self) -> bool:
        """Return True if the engine, and not the platform, limits the processors of its processes."""

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        """Fetch the image of the order, as `Runtime.fetch` does."""

    def environment(
        self, order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings
    ) -> dict[str, str]:
        """Return the variables of the agent. Raises DeployError when its build or image is not on this machine."""

    def limits(self, order: Order) -> ProcessLimits:
        """Return the limits of the kernel on the agent's processes."""

    def launch(
        self, order: Order, place: Place, environment: Mapping[str, str], fd: int, socket: Path, shown: Sequence[Path]
    ) -> Launch:
        """Return the command that starts the agent's process.

        The process accepts connections on `fd`, at the path `socket`; `shown` are folders of this machine that it sees.
        Raises DeployError.
        """

    async def remove_unwanted(self, is_wanted: Callable[[Place, UUID], bool], busy: Container[int]) -> None:
        """Remove objects of unwanted revisions that are not our processes, such as containers, except of deployments in
        `busy`.
        """

    async def remove_all(self, deployment_id: UUID, place: Place) -> None:
        """Remove the objects of a deployment that are neither in its folder nor our processes."""


class Runtime(Protocol):
    """A place where revisions run and their builds are kept.

    Every method is idempotent, and continues where an earlier attempt was interrupted.
    """

    async def prepare(self, deployment: LeasedDeployment) -> None:
        """Prepare the database, folders and key that all revisions of a deployment share."""

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        """Fetch the image of the order to this machine, and return its pinned name, or None for an order that is built.

        Raises DeployError, and UnavailableError.
        """

    async def start(self, order: Order, secrets: Mapping[str, str]) -> Authentication | None:
        """Start the revision and wait until it answers `/ok`. Returns how callers authenticate, if that is known only
        now.

        Raises DeployError; then nothing of the revision runs.
        """

    async def switch(self, order: Order) -> None:
        """Send all requests of the deployment to this revision, which has been started."""

    async def stop(self, order: Order) -> None:
        """Stop a revision that no longer serves. Its streams may end by themselves, within a time limit."""

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        """Start the active revision of each deployment and, once it answers, stop the others. Called again and again.

        Deployments in `busy` (by number) are left alone. A deployment may become busy at any moment, so `busy` is
        checked before each action. Revisions `under_way` are not stopped: their next lease holder continues with the
        processes of an earlier platform.
        """

    async def remove(self, deployment: LeasedDeployment) -> None:
        """Remove everything that belongs to a deployment."""

    async def remove_unfinished(self, number: int) -> None:
        """Remove builds of a deployment that a killed platform left unfinished. Call this before any build begins."""

    async def remove_builds(self, number: int, keep: Collection[UUID]) -> None:
        """Remove all builds of a deployment except these and those under way."""

    async def watch(self) -> None:
        """Restart crashed agents. Runs for ever."""

    async def follow_logs(self) -> None:
        """Store the lines that revisions print. Runs for ever."""

    async def close(self) -> None:
        """Release the platform's resources. Revisions keep running."""
