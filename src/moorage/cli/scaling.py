"""Scaling: the number of processes at one address follows the load between two bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moorage.kernel.load import Load


@dataclass(frozen=True)
class Scale:
    """Bounds of the number of processes. If `workers_min` equals `workers_max`, no load changes the number."""

    workers_min: int
    workers_max: int
    runs_per_worker: int = 10
    streams_per_worker: int = 100
    calm_s: float = 60.0

    @property
    def follows_load(self) -> bool:
        return self.workers_min < self.workers_max

    def wanted(self, loads: Sequence[Load]) -> int:
        """Return how many processes the loads need. Waiting runs are in the queue of all processes, so each process
        reports the same ones.
        """
        runs = sum(load.runs for load in loads) + max((load.pending for load in loads), default=0)
        streams = sum(load.streams for load in loads)
        count = math.ceil(max(runs / self.runs_per_worker, streams / self.streams_per_worker))
        return min(max(count, self.workers_min), self.workers_max)


class Scaler:
    """Follows the load: up at once, and down to the largest number that was needed during the last `calm_s`."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._count = scale.workers_min
        self._calm_since: float | None = None
        self._peak = 0

    def count(self, now: float, loads: Sequence[Load]) -> int:
        """Return how many processes there should be. `now` is in seconds of a monotonic clock."""
        wanted = self._scale.wanted(loads)
        if wanted >= self._count:
            self._count, self._calm_since = wanted, None
            return self._count
        if self._calm_since is None:
            self._calm_since, self._peak = now, 0
        self._peak = max(self._peak, wanted)
        if now - self._calm_since >= self._scale.calm_s:
            self._count, self._calm_since = self._peak, None
        return self._count
