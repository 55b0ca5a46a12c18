"""Many exports of many workspaces with running workers: the limits at every moment, and fair turns."""

from __future__ import annotations

from tests.exports.platform import make_platform
from tests.exports.turns import WORKSPACES, ended, keep_ledger, order_all, read_turns

pytest_plugins = "tests.exports.fixtures"

EXPORTS, DAYS = 40, 10


async def test_limits_hold_at_every_moment_and_workspaces_share_alike_whoever_orders_most(
    platform_conninfo, clickhouse_url, tmp_path
):
    limits = {"runs_of_export_max": 3, "exports_of_workspace_max": 2}
    async with make_platform(
        platform_conninfo, clickhouse_url, tmp_path, works=False, slots=2 * WORKSPACES, **limits
    ) as platform:
        await keep_ledger(platform.postgres)
        exports, runs = await order_all(platform, EXPORTS, DAYS)
        platform.parts.start()
        assert await ended(exports, 60) == {"Completed": EXPORTS}
        turns = await read_turns(platform.postgres, runs)
        await platform.parts.stop()
    assert turns.runs_of_export <= 3
    assert turns.exports_of_workspace == 2
    assert turns.places == 2 * WORKSPACES
    assert turns.contended > 0
    assert turns.unfairness < 2  # for a few seconds; the full run must stay below 1.5
