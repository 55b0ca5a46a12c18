"""Metrics of an agent server: its queue, which all processes share, and counters of this process since its start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from moorage.agents.records.runs import RunStatus
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.agents.store.runs import QueueSize, RunStore
from moorage.http.metrics import Metrics
from moorage.kernel.load import Load

_NOTHING = QueueSize(0, 0, 0.0, 0.0)


@dataclass
class Figures:
    """Counters that verbs and jobs increase. `first_event` takes the seconds between a run's creation and first output."""

    runs_ended: Counter[RunStatus] = field(default_factory=Counter)
    streams_open: int = 0
    first_event: Callable[[float], None] = lambda _: None


class SlotUse(Protocol):
    """Slots of this process's worker."""

    @property
    def slots(self) -> int: ...

    @property
    def at_work(self) -> int: ...


class AgentMetrics:
    """Metrics of the agent server. `pool` returns numbers of the PostgreSQL connection pool by name."""

    def __init__(
        self,
        metrics: Metrics,
        figures: Figures,
        runs: RunStore,
        checkpoints: CheckpointStore,
        slots: SlotUse,
        pool: Callable[[], Mapping[str, int]],
    ) -> None:
        self._metrics = metrics
        self._figures = figures
        self._runs = runs
        self._checkpoints = checkpoints
        self._slots = slots
        self._pool = pool
        self._queue = _NOTHING
        figures.first_event = metrics.histogram(
            f"{metrics.prefix}first_event_seconds", "Time from a run's creation to its first event of a graph."
        )
        self._register()

    async def text(self) -> bytes:
        """Return the metrics in the Prometheus format."""
        self._queue = await self._runs.queue_size()
        return self._metrics.text()

    async def json(self) -> dict[str, Any]:
        queue = await self._runs.queue_size()
        return {
            **({} if self._metrics.worker is None else {"worker": self._metrics.worker}),
            "queue": {
                "n_pending": queue.pending,
                "n_running": queue.running,
                "pending_runs_wait_time_max_secs": queue.wait_max_s,
                "pending_runs_wait_time_med_secs": queue.wait_median_s,
            },
            "workers": self._workers(),
            "runs": self._ended(),
            "streams": {"open": self._figures.streams_open},
            "checkpoints": {"bytes_written": self._checkpoints.bytes_written},
            "postgres": dict(self._pool()),
            "api": {"http_requests_total": self._metrics.requests()},
        }

    async def load(self) -> Load:
        """Return the load. Reads the queue only if this process has no free slot; otherwise no run waits for one."""
        at_work, is_full = self._slots.at_work, self._slots.at_work >= self._slots.slots
        pending = (await self._runs.queue_size()).pending if is_full else 0
        return Load(at_work, pending, self._figures.streams_open)

    def _workers(self) -> dict[str, int]:
        most, active = self._slots.slots, self._slots.at_work
        return {"max": most, "active": active, "available": max(0, most - active)}

    def _ended(self) -> dict[str, int]:
        return {
            status.value: self._figures.runs_ended[status] for status in RunStatus if self._figures.runs_ended[status]
        }

    def _register(self) -> None:
        gauge, counter, prefix = self._metrics.gauge, self._metrics.counter, self._metrics.prefix
        for name, meaning, read in (
            ("num_pending_runs", "Runs that wait and may start.", lambda: self._queue.pending),
            ("num_running_runs", "Runs at work in any process.", lambda: self._queue.running),
            ("pending_runs_wait_time_max", "Seconds that the oldest of them waits.", lambda: self._queue.wait_max_s),
            ("pending_runs_wait_time_med", "Median of the seconds that they wait.", lambda: self._queue.wait_median_s),
        ):
            gauge(f"{prefix}{name}", meaning, read, shared=True)
        gauge(f"{prefix}workers_max", "Runs that this process takes at once.", lambda: self._workers()["max"])
        gauge(f"{prefix}workers_active", "Runs at work in this process.", lambda: self._workers()["active"])
        gauge(f"{prefix}workers_available", "Runs that it would take now.", lambda: self._workers()["available"])
        counter(f"{prefix}runs", "Runs that ended in this process.", self._ended, label="status")
        gauge(f"{prefix}streams_open", "Streams that clients read now.", lambda: self._figures.streams_open)
        counter(f"{prefix}checkpoint_bytes", "Bytes of checkpoints written.", lambda: self._checkpoints.bytes_written)
        gauge(f"{prefix}pg_pool", "Connections of the pool, and requests that wait for one.", self._pool, label="what")
