"""`scripts/test --quick` keeps its promise: slow tests are left out, and the rest fits between two edits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.durations import FILE_S_MAX, is_quick, read_durations
from tests.serving import ROOT

# Four processes at once, for two minutes.
_WHOLE_S = 4 * 120


@pytest.mark.parametrize(
    ("file", "seconds", "quick"),
    [
        ("tests/a/test_new.py", None, True),
        ("tests/a/test_small.py", FILE_S_MAX, True),
        ("tests/a/test_long.py", FILE_S_MAX + 0.1, False),
        ("tests/faults/test_new.py", None, False),
        ("tests/contract/test_new.py", 0.1, False),
    ],
)
def test_slow_files_faults_and_contracts_are_for_whole_runs(file, seconds, quick):
    assert is_quick(file, {} if seconds is None else {file: seconds}) is quick


def test_what_is_recorded_as_quick_fits_into_two_minutes():
    recorded = read_durations()
    assert sum(seconds for file, seconds in recorded.items() if is_quick(file, recorded)) < _WHOLE_S


def test_each_record_is_of_a_file_that_is_there():
    assert [file for file in read_durations() if not (ROOT / file).is_file()] == []


def test_each_room_has_tests_that_are_quick():
    recorded = read_durations()
    quick = [file for file in recorded if is_quick(file, recorded)]
    assert {file.split("/")[1] for file in quick} >= {
        "accounts",
        "agents",
        "cli",
        "control",
        "http",
        "kernel",
        "traces",
    }


def test_the_option_leaves_out_what_is_slow():
    command = [sys.executable, "-m", "pytest", "--quick", "--collect-only", "-q", "tests/faults", "tests/http"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100).stdout
    assert "test_faults" not in collected
    assert "tests/http/test_docs.py" in collected
