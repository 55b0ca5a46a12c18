"""Metrics of this process for Prometheus. Labels are few and bounded: no ids, and no names that callers choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Otherwise each counter and bucket would get a second series with its creation time, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]
# The name at the beginning of a line that is not a comment.
_NAME = re.compile(rb"[a-zA-Z_:][\w:]*")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


# Numbers by the value of a label, or the single number of a metric without labels.
Numbers = Mapping[str, float] | float
_Family = CounterMetricFamily | GaugeMetricFamily


class _Read(Collector):
    def __init__(self, family: type[_Family], name: str, meaning: str, label: str, read: Callable[[], Numbers]) -> None:
        self._family, self._name, self._meaning, self._label, self._read = family, name, meaning, label, read

    def collect(self) -> Iterator[Metric]:
        numbers = self._read()
        if isinstance(numbers, int | float):
            yield self._family(self._name, self._meaning, value=numbers)
            return
        family = self._family(self._name, self._meaning, labels=[self._label])
        for value, number in numbers.items():
            family.add_metric([value], number)
        yield family


class Metrics:
    """The metrics of one application. Each has a registry of its own, so that several in one process do not add up.

    `prefix` begins the names of the metrics that are counted here; `route` is the label for the template of a request's
    path. `worker` names one of several processes behind one address. It labels all metrics but those that the processes
    share.
    """

    def __init__(self, prefix: str = "moorage_", route: str = "route", worker: str | None = None) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.prefix = prefix
        self.worker = worker
        self._shared = set[str]()
        self._requests = Counter(
            f"{prefix}http_requests",
            "Requests that were answered, or that their sender left.",
            ("method", route, "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{prefix}http_request_seconds",
            "Time to the end of the answer.",
            ("method", route),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._engines = Gauge(
            f"{prefix}engine_up", "Whether an engine answered just now.", ("engine",), registry=self._registry
        )

    def request_ended(self, method: str, route: str, status: int, duration_s: float) -> None:
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(duration_s)

    def engine_answered(self, engine: str, *, well: bool) -> None:
        self._engines.labels(engine).set(well)

    def gauge(
        self, name: str, meaning: str, read: Callable[[], Numbers], label: str = "", *, shared: bool = False
    ) -> None:
        """Add a gauge. `read` returns its number, or a number for each value of the label. `shared` means that the
        number is the same in all processes.
        """
        if shared:
            self._shared.add(name)
        self._registry.register(_Read(GaugeMetricFamily, name, meaning, label, read))

    def counter(self, name: str, meaning: str, read: Callable[[], Numbers], label: str = "") -> None:
        """Add a counter, a number that only grows. It starts at zero with the process."""
        self._registry.register(_Read(CounterMetricFamily, name, meaning, label, read))

    def histogram(self, name: str, meaning: str) -> Callable[[float], None]:
        """Add a histogram. The returned function takes durations in seconds."""
        return Histogram(name, meaning, buckets=_SECONDS, registry=self._registry).observe

    def requests(self) -> list[dict[str, Any]]:
        """Return the number of answered requests by method, route and status."""
        (family,) = self._requests.collect()
        return [{**sample.labels, "value": sample.value} for sample in family.samples if sample.name.endswith("_total")]

    def text(self) -> bytes:
        text = generate_latest(self._registry)
        if self.worker is None:
            return text
        return b"".join(self._labelled(line) for line in text.splitlines(keepends=True))

    def _labelled(self, line: bytes) -> bytes:
        name = _NAME.match(line)
        if name is None or name[0].decode() in self._shared:
            return line
        label, rest = f'worker="{self.worker}"'.encode(), line[name.end() :]
        return name[0] + (b"{" + label + b"," + rest[1:] if rest.startswith(b"{") else b"{" + label + b"}" + rest)
