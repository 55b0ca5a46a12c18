"""Columns that nobody fills are not read, and those that somebody fills are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.runs import RunStatsQuery
from moorage.traces.statistics import Statistics
from moorage.traces.store import filled_reads
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_columns import FILLED, TWINS
from moorage.traces.store.run_reads import RunKey, RunReads

pytest_plugins = "tests.traces.fixtures"

BEGAN_AT = datetime(2026, 6, 1, tzinfo=UTC)
FIELDS = ("name", "events", "inputs_head")


class Told(ClickHouse):
    """Remembers what it was asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    async def rows(self, sql, parameters=None, settings=None):
        self.asked.append(sql)
        return await super().rows(sql, parameters, settings)


@pytest.fixture
async def clickhouse(clickhouse_url: str) -> AsyncIterator[Told]:
    client = Told(clickhouse_url)
    yield client
    await client.close()


class Runs:
    """Of one project, each with a name and what else it is given."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self.workspace, self.project = uuid4(), uuid4()

    async def add(self, **texts: str) -> RunKey:
        """The engine makes of each text what its column holds."""
        key = RunKey(self.project, BEGAN_AT, uuid4(), uuid4())
        texts = {"name": "it", **texts}
        await self._clickhouse.command(
            f"""INSERT INTO trace_run_rows (tenant_id, session_id, start_time, id, {", ".join(texts)})
            SELECT {{tenant_id:UUID}}, {{session_id:UUID}}, {{at:DateTime64(6, 'UTC')}}, {{id:UUID}},
                {", ".join(f"{{{name}:String}}" for name in texts)}""",
            {"tenant_id": self.workspace, "session_id": self.project, "at": BEGAN_AT, "id": key.id, **texts},
        )
        return key


async def test_each_column_has_its_bit(clickhouse: ClickHouse):
    """What migration 15 has the engine work out is what the reader takes it for."""
    workspace = uuid4()
    kinds = dict(await clickhouse.rows("SELECT name, type FROM system.columns WHERE table = 'trace_run_rows'"))
    columns = [name for name in FILLED if name.isidentifier()]
    for number, name in enumerate(columns):
        (kind,) = re.findall(r"Nullable\((\w+(?:\([^)]*\))?)\)", kinds[name])
        await clickhouse.command(
            f"""INSERT INTO trace_run_rows (tenant_id, session_id, start_time, id, {name})
            SELECT {{workspace:UUID}}, {{workspace:UUID}}, now64(6), {{id:UUID}}, defaultValueOfTypeName({{kind:String}})""",
            {"workspace": workspace, "id": UUID(int=number), "kind": kind},
        )
    sql = "SELECT id, filled FROM trace_run_rows WHERE tenant_id = {workspace:UUID}"
    found = dict(await clickhouse.rows(sql, {"workspace": workspace}))
    assert {name: found[UUID(int=number)] for number, name in enumerate(columns)} == {
        name: FILLED[name] for name in columns
    }


async def test_every_twin_has_a_bit(clickhouse: ClickHouse):
    columns = await clickhouse.rows("SELECT name FROM system.columns WHERE table = 'trace_run_rows'")
    assert {name for (name,) in columns if name.startswith("patched_")} == set(TWINS.values())


async def test_what_is_empty_is_left_out_until_a_run_fills_it(clickhouse: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filled_reads, "_ANSWERS", 2)
    runs, reads = Runs(clickhouse), RunReads(clickhouse)
    plain, full = await runs.add(), await runs.add(patched_events="[1]", inputs='{"q":1}')

    async def read(key: RunKey) -> tuple[object, list[bool]]:
        """The run, and of each statement that it took whether the events were asked for."""
        clickhouse.asked.clear()
        found = (await reads.rows(runs.workspace, [key], FIELDS))[key.place]
        return tuple(found[name] for name in FIELDS), ["patched_events" in sql for sql in clickhouse.asked]

    everything, nothing = ("it", "[1]", '{"q":1}'), ("it", None, None)
    assert await read(plain) == (nothing, [True])  # nothing is known yet
    assert await read(plain) == (nothing, [False])
    assert await read(full) == (everything, [False, True])
    assert await read(full) == (everything, [True])
    assert await read(plain) == (nothing, [True])
    assert await read(plain) == (nothing, [True])
    assert await read(plain) == (nothing, [False])  # two answers had none


async def test_statistics_without_empty_columns_are_those_with_them(clickhouse: Told, monkeypatch: pytest.MonkeyPatch):
    """Of projects whose runs were written in different ways, each after another, so that what is known is mostly wrong."""
    monkeypatch.setattr(filled_reads, "_ANSWERS", 1)
    ended, usage = "2026-06-01 00:00:02", {"total_tokens": "7", "prompt_tokens": "3", "total_cost": "0.5"}
    posted = Runs(clickhouse)
    await posted.add(end_time=ended, tags='["a"]', run_type="llm", **usage)
    patched = Runs(clickhouse)
    await patched.add(patched_end_time=ended, patched_error="no", **{f"patched_{name}": usage[name] for name in usage})
    both = Runs(clickhouse)
    await both.add(end_time=ended, patched_end_time="2026-06-01 00:00:09", patched_name="that", **usage)
    await both.add(patched_tags='["b"]', patched_first_token_time=ended, patched_total_tokens="100")
    used, left_out = Statistics(clickhouse, FeedbackStore(clickhouse)), 0
    for runs in (posted, patched, both, both, patched, posted, posted, both, patched):
        query = RunStatsQuery(session=[runs.project])
        clickhouse.asked.clear()
        found = await used.of_runs(runs.workspace, query)
        left_out += any("NULL, trace_run_rows." in sql or ", NULL)" in sql for sql in clickhouse.asked)
        assert found == await Statistics(clickhouse, FeedbackStore(clickhouse)).of_runs(runs.workspace, query)
        assert found["run_count"] == (2 if runs is both else 1)
    assert left_out > 5
