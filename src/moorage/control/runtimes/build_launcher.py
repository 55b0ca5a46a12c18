"""The launcher of revisions that were built here: each runs `moorage serve` in its own environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from moorage.control.isolation import Isolation, IsolationKind
from moorage.control.limits import ProcessLimits, limits_of
from moorage.control.places import Build, Place
from moorage.control.records.orders import Order
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.environment import Surroundings, environment_of_process
from moorage.embedded.agents import Launch


def _build_of(order: Order, place: Place) -> Build:
    """Return the build of the order. Raises DeployError when it was removed."""
    build = place.read_build(order.build_id)
    if build is None:
        raise DeployError("The build of this revision is no longer kept: deploy it anew")
    return build


class BuildLauncher:
    """The launcher of builds. It starts only processes of this machine, so it has nothing else to remove."""

    engine_limits_processors = False

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> None:
        return None

    def environment(
        self, order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings
    ) -> dict[str, str]:
        return environment_of_process(order, place, _build_of(order, place), secrets, surroundings)

    def limits(self, order: Order) -> ProcessLimits:
        own_user = self._isolation.kind is IsolationKind.USER
        return limits_of(order.resource_spec, order.workers_max, own_user=own_user)

    def launch(
        self, order: Order, place: Place, environment: Mapping[str, str], fd: int, socket: Path, shown: Sequence[Path]
    ) -> Launch:
        build = _build_of(order, place)
        # -P: a project's files do not shadow our modules of the same name.
        argv = [str(build.python), "-P", "-m", "moorage", "serve", "--config", str(build.config_file), "--fd", str(fd)]
        argv += ["--uds", "agent.sock", "--workers", str(order.workers)]
        readable = [Path(os.path.realpath(build.python)).parents[1], *shown]
        # The agent's user may write to its build, so that Python can store compiled files at the first start.
        isolated = self._isolation.wrapped(argv, [place.agent_home, build.folder], readable)
        folder = place.root if self._isolation.kind is IsolationKind.BUBBLEWRAP else build.config_file.parent
        return Launch(self.limits(order).wrapped(isolated), environment, folder, place.uid)

    async def remove_unwanted(self, is_wanted: Callable[[Place, UUID], bool], busy: Container[int]) -> None:
        pass

    async def remove_all(self, deployment_id: UUID, place: Place) -> None:
        pass
