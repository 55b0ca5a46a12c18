"""The command of a revision that was built here: `moorage serve` in its own environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from moorage.control.isolation import Isolation, IsolationKind
from moorage.control.limits import ProcessLimits
from moorage.control.places import Build, Place
from moorage.control.records.orders import Order
from moorage.control.runtimes import DeployError
from moorage.embedded.agents import Launch


def build_of(order: Order, place: Place) -> Build:
    """Raises DeployError when it is no longer kept."""
    build = place.read_build(order.build_id)
    if build is None:
        raise DeployError("What was built of this revision is no longer kept: deploy it anew")
    return build


def build_launch(
    order: Order,
    place: Place,
    environment: Mapping[str, str],
    fd: int,
    isolation: Isolation,
    limits: ProcessLimits,
    database_sockets: Path | None,
) -> Launch:
    """`fd` is the socket that it accepts on. Raises DeployError when its build is no longer kept."""
    build = build_of(order, place)
    # -P: a file of the project that is named as one of ours is not taken for it.
    argv = [str(build.python), "-P", "-m", "moorage", "serve", "--config", str(build.config_file), "--fd", str(fd)]
    argv += ["--uds", "agent.sock", "--workers", str(order.workers)]
    readable = [Path(os.path.realpath(build.python)).parents[1], *([database_sockets] if database_sockets else [])]
    # Its build may be written to, as by a user of its own: what Python compiles at the first start is kept there.
    argv = limits.wrapped(isolation.wrapped(argv, [place.agent_home, build.folder], readable))
    folder = place.root if isolation.kind is IsolationKind.BUBBLEWRAP else build.config_file.parent
    return Launch(argv, environment, folder, place.uid)
