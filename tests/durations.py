"""Durations of tests: `tests/durations.json` has the seconds that each file's tests took, fixtures included.

`--record-durations` writes it. Whole runs use it to begin with the longest files, and to let busy and idle files take
turns; `--quick` uses it to leave out the slow ones. A file that is not in it is new, and runs. Faults, contracts and
tests that start whole platforms only run in whole runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import accumulate
from pathlib import Path

import pytest

DURATIONS = Path(__file__).parent / "durations.json"
FILE_S_MAX = 6.0
# Files that start whole platforms, browsers or containers: they compute all the time.
BUSY = (
    "tests/faults/",
    "tests/contract/",
    "tests/platform/",
    "tests/console/",
    "tests/control/test_containers",
    "tests/test_cli",
)
WHOLE_RUNS_ONLY = (
    "tests/faults/",
    "tests/contract/",
    "tests/platform/",
    "tests/cli/test_workflow.py",
    "tests/test_cli.py",
)


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only files that are quick, by tests/durations.json")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json anew for what runs")


def is_quick(file: str, durations: dict[str, float]) -> bool:
    return not file.startswith(WHOLE_RUNS_ONLY) and durations.get(file, 0.0) <= FILE_S_MAX


def read_durations() -> dict[str, float]:
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations = read_durations()
    kept = {item: is_quick(item.nodeid.partition("::")[0], durations) for item in items}
    config.hook.pytest_deselected(items=[item for item, quick in kept.items() if not quick])
    items[:] = [item for item, quick in kept.items() if quick]


def put_in_turns(items: list[pytest.Item]) -> None:
    """Sort tests by the duration of their files, the longest first. Busy and idle files take turns at equal shares of
    time.
    """
    durations = read_durations()
    files = {item.nodeid.partition("::")[0]: 0.0 for item in items}
    for busy in (True, False):
        ordered = sorted(
            (file for file in files if file.startswith(BUSY) is busy), key=lambda file: -durations.get(file, FILE_S_MAX)
        )
        spent = list(accumulate((durations.get(file, FILE_S_MAX) for file in ordered), initial=0.0))
        files |= {file: at / max(spent[-1], 1.0) for file, at in zip(ordered, spent, strict=False)}
    items.sort(key=lambda item: files[item.nodeid.partition("::")[0]])


class Recorder:
    """Adds up the durations of each file's tests. With `-n`, the reports of all processes arrive here."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = read_durations() if DURATIONS.exists() else {}
        known |= {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        root = DURATIONS.parent.parent
        kept = {file: seconds for file, seconds in sorted(known.items()) if (root / file).exists()}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
