"""What Prometheus reads of this process. Labels are few and bounded: no ids, no names that callers choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Or each counter and bucket would bring a second one, with the time of its first count, that nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Read(Collector):
    def __init__(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        self._name, self._meaning, self._read = name, meaning, read

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._meaning, value=self._read())


class Metrics:
    """One registry for each application, so that several in one process do not add up."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "moorage_http_requests",
            "Requests that were answered, or that their sender left.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "moorage_http_request_seconds",
            "Time to the end of the answer.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._engines = Gauge(
            "moorage_engine_up", "Whether an engine answered just now.", ("engine",), registry=self._registry
        )

    def request_ended(self, method: str, route: str, status: int, duration_s: float) -> None:
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(duration_s)

    def engine_answered(self, engine: str, *, well: bool) -> None:
        self._engines.labels(engine).set(well)

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A number that `read` gives whenever it is asked for."""
        Gauge(name, meaning, registry=self._registry).set_function(read)

    def counter(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """The same for a number that only grows, and begins again with the process."""
        self._registry.register(_Read(name, meaning, read))

    def text(self) -> bytes:
        return generate_latest(self._registry)
