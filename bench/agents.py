"""Measures the agent server beside a ceiling that runs the same graphs. See bench/README.md.

Both servers are up at once and every load meets one after the other, so that whatever else the machine does falls on
both. Nothing leaves the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import uvloop
import wire
from report import (
    Metrics,
    Passes,
    Summary,
    add_ratios,
    gate,
    metrics_of,
    metrics_of_start,
    number,
    summarise,
    tables,
    write_json,
)
from scenarios import SCENARIOS, START, Load, Sample, Scenario, warm_up
from subjects import MOORAGE, Running, Subject, measure_start, running, subjects

OPEN_FILES = 16384


def main() -> int:
    options = _options()
    _allow_many_connections()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    passes: Passes = []
    for turn in range(1, options.passes + 1):
        passes.append(_measure_pass(options, turn))
    summary = summarise(passes)
    size = {"passes": options.passes, "seconds": options.seconds, "threads": options.threads}
    print(tables(summary, size))
    if options.json:
        write_json(options.json, size, passes, summary)
    failed = _has_failures(summary)
    passed = _is_passed(options.gate, summary) if options.gate else True
    return 1 if failed or not passed else 0


def _options() -> argparse.Namespace:
    names = [each.name for each in SCENARIOS] + [START]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--passes", type=int, default=3, help="how often all is measured (default 3)")
    options.add_argument("--seconds", type=float, default=4, help="how long a load lasts (default 4)")
    options.add_argument("--threads", type=int, default=10_000, help="threads that search looks through")
    options.add_argument("--only", type=lambda text: text.split(","), help=f"of {','.join(names)}")
    options.add_argument("--heavy", action="store_true", help="with 1,000 open streams")
    options.add_argument(
        "--handlers", action="store_true", help="without and with handlers of auth that return at once"
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write all numbers; also how a baseline is made")
    options.add_argument("--gate", type=Path, metavar="FILE", help="exit 1 when CPU per operation is 1.5x the baseline")
    chosen = options.parse_args()
    if unknown := set(chosen.only or []) - set(names):
        options.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if chosen.passes < 1 or chosen.seconds <= 0:
        options.error("--passes and --seconds must be above 0")
    if chosen.gate and not chosen.gate.exists():
        options.error(f"there is no {chosen.gate}; make it with --json")
    return chosen


def _allow_many_connections() -> None:
    """For us and for the servers that we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    if options.only:
        return [each for each in SCENARIOS if each.name in options.only]
    return [each for each in SCENARIOS if options.heavy or not each.is_heavy]


def _measure_pass(options: argparse.Namespace, turn: int) -> dict[str, dict[str, Metrics]]:
    label = f"pass {turn}/{options.passes}"
    # Who comes second finds warmer caches: that changes from pass to pass.
    compared = subjects(with_handlers=options.handlers)
    order = compared if turn % 2 else compared[::-1]
    results: dict[str, dict[str, Metrics]] = {}
    if not options.only or START in options.only:
        results[START] = _measure_starts(label, order)
    if scenarios := _chosen(options):
        with ExitStack() as stack:
            servers = [stack.enter_context(running(subject)) for subject in order]
            results |= uvloop.run(_measure_loads(options, label, servers, scenarios))
    return results


def _measure_starts(label: str, order: list[Subject]) -> dict[str, Metrics]:
    results = {}
    for subject in order:
        if subject.saver == "postgres":  # it would be given a database that runs, which is no start to compare with
            continue
        results[subject.name] = metrics_of_start(measure_start(subject))
        found = " ".join(f"{name} {number(value)}" for name, value in results[subject.name].items())
        _progress(f"{label} {START} {subject.name}: {found}")
    return _ours_first(results)


async def _measure_loads(
    options: argparse.Namespace, label: str, servers: list[Running], scenarios: list[Scenario]
) -> dict[str, dict[str, Metrics]]:
    loads = [Load(server, options.seconds, options.threads) for server in servers]
    for load in loads:
        await warm_up(load)
    results = {}
    for scenario in scenarios:
        found = {load.server.subject.name: await _measure(label, scenario, load) for load in loads}
        add_ratios(found)
        results[scenario.name] = _ours_first(found)
    return results


async def _measure(label: str, scenario: Scenario, load: Load) -> Metrics:
    try:
        sample = await scenario.run(load)
    except (wire.RequestFailedError, OSError) as error:  # while preparing; the other scenarios may still tell something
        sample = Sample()
        sample.fail(error)
    found = metrics_of(sample)
    cpu = f"{number(found['server_cpu_ms'])} + {number(found['postgres_cpu_ms'])}"
    times = f"p50 {number(found.get('p50_ms', 0))} p99 {number(found.get('p99_ms', 0))}"
    line = f"{label} {scenario.name} {load.server.subject.name}: {number(found['per_s'])}/s, {times}, CPU {cpu} ms"
    _progress(line + (f", {sample.failures} FAILURES: {sample.first_failure}" if sample.failures else ""))
    await asyncio.sleep(0.2)  # what was put off until after an answer should not fall on the next server's time
    return found


def _ours_first(results: dict[str, Metrics]) -> dict[str, Metrics]:
    return dict(sorted(results.items(), key=lambda each: (each[0] != MOORAGE.name, each[0])))


def _has_failures(summary: Summary) -> bool:
    return any(found["failures"]["max"] > 0 for each in summary.values() for found in each.values())


def _is_passed(baseline: Path, summary: Summary) -> bool:
    lines, passed = gate(summary, json.loads(baseline.read_text())["summary"])
    for line in lines:
        _progress(f"gate {line}")
    _progress(f"gate {'passed' if passed else 'FAILED'}")
    return passed


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
