"""The short forms of the fault runs. The full ones: scripts/soak, docs/soak.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bad_graphs import bad_graphs
from tests.faults.crons import crons
from tests.faults.engines import has_redis, postgres, redis
from tests.faults.followers import thread_followers
from tests.faults.full_disk import can_mount, full_disk
from tests.faults.kills import kills
from tests.faults.memory import memory
from tests.faults.payloads import big_state, odd_text
from tests.faults.queues import queue
from tests.faults.reports import Report
from tests.faults.slow_readers import slow_readers
from tests.faults.store import store
from tests.faults.two_processes import two_processes


def _passes(report: Report) -> None:
    print(report.table())  # noqa: T201 - pytest shows it when the test fails
    assert not report.wrongs


async def test_what_a_killed_server_accepted_comes_to_its_end(folder: Path) -> None:
    _passes(await kills(folder, times=3))


async def test_a_database_that_is_killed_or_stands_still_loses_nothing(folder: Path) -> None:
    _passes(await postgres(folder, times=1, frozen_s=3))


@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
async def test_a_redis_that_is_killed_or_stands_still_loses_nothing(folder: Path) -> None:
    _passes(await redis(folder, times=1, frozen_s=3))


async def test_a_thread_never_runs_two_runs_at_once_whoever_is_killed(folder: Path) -> None:
    _passes(await two_processes(folder, times=2, threads=15))


async def test_a_graph_that_blocks_or_ends_its_process_harms_no_other_run(folder: Path) -> None:
    _passes(await bad_graphs(folder, seconds=6, only={"block_beside_another_server", "exit"}))


async def test_readers_that_do_not_read_harm_nobody(folder: Path) -> None:
    _passes(await slow_readers(folder, readers=50))


async def test_who_follows_a_thread_with_many_slow_ones_misses_nothing(folder: Path) -> None:
    _passes(await thread_followers(folder, followers=60))


async def test_a_big_state_passes(folder: Path) -> None:
    _passes(await big_state(folder, megabytes=10))


async def test_odd_text_and_numbers_are_taken_or_refused(folder: Path) -> None:
    _passes(await odd_text(folder))


async def test_a_long_queue_is_accepted_and_worked_off(folder: Path) -> None:
    _passes(await queue(folder, runs=1000))


@pytest.mark.skipif(not can_mount(), reason="a small file system can be mounted by root only")
async def test_a_full_disk_refuses_clearly_and_loses_nothing(folder: Path) -> None:
    _passes(await full_disk(folder, times=1, full_s=3))


async def test_memory_stays_where_it_is(folder: Path) -> None:
    # Too short to judge 5 %: it shows that the run works, and finds fast leaks.
    _passes(await memory(folder, minutes=10 / 60, row_s=1, growth_max=0.25))


async def test_each_time_of_a_cron_fires_once_whoever_is_killed(folder: Path) -> None:
    _passes(await crons(folder, times=2, each_second=5, between_s=2))


async def test_an_item_that_was_acknowledged_is_kept_and_found_whatever_fails(folder: Path) -> None:
    _passes(await store(folder, times=2, users=4))
