"""The short form of `scripts/soak exports`: a real platform with its workers, each of them killed once."""

from __future__ import annotations

from pathlib import Path

from tests.exports.kills import VICTIMS, exports


async def test_an_export_is_the_same_whoever_of_those_that_write_it_is_killed(folder: Path) -> None:
    report = await exports(folder, times=len(VICTIMS), days=6)
    print(report.table())  # noqa: T201 - pytest shows it when the test fails
    assert not report.wrongs
