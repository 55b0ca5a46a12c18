"""The number of processes that a load needs."""

from __future__ import annotations

import pytest

from moorage.cli.scaling import Scale, Scaler
from moorage.kernel.load import Load, last_load


@pytest.mark.parametrize(
    ("loads", "count"),
    [
        ([], 1),
        ([Load(runs=10)], 1),
        ([Load(runs=11)], 2),
        ([Load(runs=11), Load(runs=12)], 3),
        ([Load(pending=15), Load(pending=14)], 2),
        ([Load(streams=101)], 2),
        ([Load(runs=11, streams=301)], 4),
        ([Load(runs=1000)], 4),
    ],
)
def test_what_a_load_asks_for(loads: list[Load], count: int) -> None:
    assert Scale(1, 4).wanted(loads) == count


def test_up_at_once_and_down_to_the_most_of_a_calm_time() -> None:
    scaler = Scaler(Scale(1, 8, calm_s=60))
    counts = [
        scaler.count(now, [Load(runs=runs)])
        for now, runs in [(0, 0), (1, 75), (2, 5), (30, 25), (61, 5), (62, 5), (63, 5), (122, 0), (124, 0), (184, 80)]
    ]
    assert counts == [1, 8, 8, 8, 8, 3, 3, 3, 1, 8]


def test_a_load_is_read_from_the_last_whole_line() -> None:
    assert last_load(b".\n" + Load(1, 2, 3).line() + Load(4, 5, 6).line() + b"7 8") == Load(4, 5, 6)
    assert last_load(b".\n") is None
