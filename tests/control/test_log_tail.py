"""Lines that an agent prints: their times, and lines that are read twice, which become the same rows."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorage.control.log_lines import read_line, times_of
from moorage.control.records.orders import Order
from moorage.control.records.states import RevisionStatus, Source
from moorage.control.runtimes.log_tail import LogTail
from moorage.kernel.ids import uuid7

NOON = datetime(2026, 8, 9, 12, tzinfo=UTC)
IDS = (uuid7(), uuid7(), uuid7())
ORDER = Order(*IDS, "agent", 1, 1, RevisionStatus.DEPLOYED, Source.GITHUB, {}, {}, None, None, True, None)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def event(seconds: float, text: str = "event") -> str:
    return json.dumps({"event": text, "timestamp": at(seconds).isoformat()})


def append(file: Path, written_at: datetime, *lines: str) -> None:
    with file.open("a") as log:
        log.writelines(f"{line}\n" for line in lines)
    os.utime(file, (written_at.timestamp(), written_at.timestamp()))


def test_a_plain_line_has_the_time_at_which_it_was_printed_and_not_that_of_the_last_event(tmp_path):
    file = tmp_path / "a.log"
    tail = LogTail(ORDER, file)
    append(file, at(0), event(0, "it serves"))
    tail.keep(tail.read()[1])
    append(file, at(3600), "hello from print")
    [line], reached = tail.read()
    assert (line.message, line.logged_at) == ("hello from print", at(3600))
    tail.keep(reached)
    assert tail.read()[0] == []


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["a", event(10), "b"], [10, 10, 60]),
        ([event(10), "Traceback:", "  File", event(20)], [10, 20, 20, 20]),
        (["a", event(-9999), "b"], [60, -9999, 60]),  # about something long ago
        (["a", event(9999), "b"], [60, 9999, 60]),
        (["2026-08-09T12:00:07Z INFO plain", "b"], [7, 60]),
        (["[2026-08-09 12:00:07.250+00:00] plain"], [7.25]),
        (["2026-99-09T12:00:07Z no time"], [60]),
    ],
)
def test_lines_without_a_time_lie_between_those_that_tell_one(lines, seconds):
    assert times_of([read_line(line) for line in lines], NOON, at(60)) == [at(each) for each in seconds]


def test_a_time_without_a_zone_is_that_of_this_machine():
    local = NOON.astimezone().replace(tzinfo=None)
    assert read_line(f"{local:%Y-%m-%d %H:%M:%S},000 INFO plain").at == NOON


def test_lines_that_are_read_again_after_a_crash_are_the_same(tmp_path):
    file = tmp_path / "a.log"
    append(file, at(1), "one", event(0.5), "two")
    before = LogTail(ORDER, file).read()[0]  # stored, and killed before that was recorded
    append(file, at(99), "three")
    tail = LogTail(ORDER, file)
    again, reached = tail.read()
    assert again == before
    tail.keep(reached)
    [third], _ = tail.read()
    assert (third.message, third.logged_at) == ("three", at(99))
    assert third.position > before[-1].position


def test_a_mark_of_an_earlier_version_is_gone_on_from(tmp_path):
    file = tmp_path / "a.log"
    append(file, at(1), "one", "two")
    file.with_suffix(".tail").write_text(json.dumps({"file": 0, "offset": 4, "at": NOON.isoformat()}))
    assert [line.message for line in LogTail(ORDER, file).read()[0]] == ["two"]
