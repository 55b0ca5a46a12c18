"""The short forms of the fault runs of traces. The full ones: scripts/soak, docs/soak.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.full_disk import can_mount
from tests.faults.platform_errors import walk_errors
from tests.faults.reports import Report
from tests.faults.request_costs import attack, hostile_to_traces, silence, trickles
from tests.faults.trace_bodies import bodies
from tests.faults.trace_disk import trace_disk
from tests.faults.trace_filters import DEAR, dear_filters, hostile_filters
from tests.faults.trace_kills import trace_kills
from tests.faults.trace_routes import fuzz_routes
from tests.platform.serving import Platform

pytest_plugins = "tests.platform.fixtures"
# The large trace is read through the methods that most users call.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed after Jan 31, 2027")


def _passes(report: Report) -> None:
    print(report.table())  # noqa: T201 - pytest shows it when the test fails
    assert not report.wrongs


async def test_what_was_acknowledged_is_there_once_and_whole_whoever_was_killed(folder: Path) -> None:
    _passes(await trace_kills(folder, times=3, clients=4, ingest_s=4))


@pytest.mark.skipif(not can_mount(), reason="a small file system can be mounted by root only")
async def test_a_full_disk_refuses_clearly_and_reads_go_on(folder: Path) -> None:
    _passes(await trace_disk(folder, times=1, full_s=2))


def test_broken_odd_and_large_bodies_are_taken_or_refused(platform: Platform) -> None:
    _passes(bodies(platform, runs=500, odd_every=29))


# Without the limits, stalls took 5 s and more. The bound of the full run, 1 s, would fail beside other tests.
SHORT_OK_S_MAX = 4.0


async def test_bodies_that_would_be_large_in_memory_cost_little(platform: Platform) -> None:
    report, some = Report("hostile-bodies"), ("20 million empty runs", "deep objects", "millions of fields")
    requests = [request for request in hostile_to_traces() if request[0] in some]
    with platform.client() as http:
        await attack(report, http, platform.pid, requests, at_once=2, ok_s_max=SHORT_OK_S_MAX)
    assert len(report.figures) == len(some)
    _passes(report)


async def test_bodies_that_hardly_come_leave_room_for_others(platform: Platform) -> None:
    report = await trickles(platform, clients=400, seconds=8, ok_s_max=SHORT_OK_S_MAX)
    await silence(platform, report, clients=400, ok_s_max=SHORT_OK_S_MAX)
    _passes(report)


def test_no_filter_injects_anything_or_is_a_500(platform: Platform) -> None:
    _passes(hostile_filters(platform, examples=20, everywhere=False))


def test_the_dearest_filters_that_are_accepted_are_planned_within_seconds(platform: Platform) -> None:
    report = Report("dear filters")
    dear_filters(platform, report, {"threads": DEAR["threads"]})
    _passes(report)


def test_requests_made_up_from_the_document_are_never_a_500(platform: Platform) -> None:
    _passes(fuzz_routes(platform, examples=1))


def test_no_error_shows_a_secret(platform: Platform) -> None:
    _passes(walk_errors(platform, every=5))
