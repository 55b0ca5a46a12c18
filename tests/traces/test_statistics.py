from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from statistics import mean
from uuid import UUID, uuid4

import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError, InvalidRequestError
from moorage.traces.filter_language.text import parse
from moorage.traces.records.statistics import RunSeriesQuery, RunStatsQuery
from moorage.traces.statistics import Statistics
from moorage.traces.store.feedback import FeedbackStore
from tests.traces.naive_filter import Feedback, StoredRun, World
from tests.traces.trace_data import insert_runs, make_run, random_runs

pytest_plugins = "tests.traces.fixtures"

TENANT, SESSION = UUID(int=41), UUID(int=42)
SINCE = datetime.now(UTC) - timedelta(days=2)
RUNS = random_runs(17, 30, TENANT, SESSION, SINCE)
WORLD = World(RUNS)


@pytest.fixture
async def statistics(clickhouse: ClickHouse) -> Statistics:
    if not await clickhouse.value("SELECT count() FROM trace_run_rows WHERE tenant_id = {id:UUID}", {"id": TENANT}):
        await insert_runs(clickhouse, RUNS)
    return Statistics(clickhouse, FeedbackStore(clickhouse))


def _search(**search) -> RunStatsQuery:
    return RunStatsQuery(session=[SESSION], **search)


def _quantile(values: list[float], share: float) -> float:
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def _tokens(run: StoredRun, whole: bool) -> int | None:
    return WORLD.value("total_tokens", run) if whole else run.total_tokens


async def _delete(clickhouse: ClickHouse, run: StoredRun) -> None:
    types = {"tenant_id": "UUID", "session_id": "UUID", "start_time": "DateTime64(6, 'UTC')", "id": "UUID"}
    key = {name: (kind, [getattr(run, name)]) for name, kind in types.items()}
    await clickhouse.insert("trace_run_rows", {**key, "deleted_at": ("Nullable(DateTime64(6, 'UTC'))", [SINCE])})


@pytest.mark.parametrize(
    ("search", "text"),
    [
        ({}, "or(exists(error), not(exists(error)))"),
        ({"is_root": True}, "eq(is_root, true)"),
        ({"filter": "and(eq(is_root, true), exists(error))"}, "and(eq(is_root, true), exists(error))"),
        ({"run_type": "llm", "error": False}, 'and(eq(run_type, "llm"), eq(error, null))'),
    ],
)
async def test_totals_are_those_of_a_plain_sum(statistics, search, text):
    runs = [run for run in RUNS if run.id in WORLD.select(parse(text))]
    stats = await statistics.of_runs(TENANT, _search(**search))
    roots = "is_root" in text
    tokens = [count for run in runs if (count := _tokens(run, roots)) is not None]
    latencies = [run.latency for run in runs if run.latency is not None]
    streamed = [run.first_token_latency for run in runs if run.first_token_time]
    assert stats["run_count"] == len(runs)
    assert stats["total_tokens"] == sum(tokens)
    assert stats["median_tokens"] == round(_quantile(tokens, 0.5))
    assert stats["tokens_p99"] == round(_quantile(tokens, 0.99))
    assert stats["latency_p50"] == pytest.approx(_quantile(latencies, 0.5))
    assert stats["latency_p99"] == pytest.approx(_quantile(latencies, 0.99))
    assert stats["first_token_p50"] == pytest.approx(_quantile(streamed, 0.5))
    assert stats["error_rate"] == pytest.approx(sum(run.error is not None for run in runs) / len(runs))
    assert stats["streaming_rate"] == pytest.approx(len(streamed) / len(runs))
    assert stats["last_run_start_time"] == max(run.start_time for run in runs)
    costs = [WORLD.value("total_cost", run) if roots else run.total_cost for run in runs]
    assert stats["total_cost"] == pytest.approx(sum(float(cost) for cost in costs if cost is not None))
    scores = [each.score for run in runs for each in run.feedback if each.key == "score" and each.score is not None]
    assert stats["feedback_stats"]["score"]["avg"] == pytest.approx(mean(scores))


async def test_facets_count_values_and_bring_the_filter_for_each(statistics):
    stats = await statistics.of_runs(TENANT, _search(select=["run_facets"]))
    assert stats.keys() == {"run_facets"}
    for facet in stats["run_facets"]:
        assert len(WORLD.select(parse(facet["query"]))) == facet["n"]
    assert {facet["key"] for facet in stats["run_facets"]} == {"name", "run_type", "status", "tag"}


@pytest.mark.parametrize(
    ("group_by", "of"),
    [
        ({"attribute": "name"}, lambda run: [run.name]),
        ({"attribute": "run_type"}, lambda run: [run.run_type]),
        ({"attribute": "tag"}, lambda run: run.tags),
        (
            {"attribute": "metadata", "path": "user"},
            lambda run: [run.metadata["user"]] if isinstance(run.metadata.get("user"), str) else [],
        ),
    ],
)
async def test_statistics_by_group(statistics, group_by, of):
    select = ["run_count", "error_rate", "feedback_stats", "run_facets"]
    search = _search(group_by={**group_by, "max_groups": 100}, select=select)
    found = await statistics.of_runs(TENANT, search)
    groups: dict[str, list[StoredRun]] = {}
    for run in RUNS:
        for name in of(run):
            groups.setdefault(name, []).append(run)
    for name, runs in groups.items():
        assert found[name]["run_count"] == len(runs)
        assert found[name]["error_rate"] == pytest.approx(sum(run.error is not None for run in runs) / len(runs))
        feedback = Counter(each.key for run in runs for each in run.feedback)
        assert {key: stat["n"] for key, stat in found[name]["feedback_stats"].items()} == feedback
        kinds = {facet["value"]: facet["n"] for facet in found[name]["run_facets"] if facet["key"] == "run_type"}
        assert kinds == Counter(run.run_type for run in runs)
    largest = await statistics.of_runs(TENANT, _search(group_by={**group_by, "max_groups": 1}, select=["run_count"]))
    assert next(iter(largest.values()))["run_count"] == max(stats["run_count"] for stats in found.values())
    wanted = next(iter(groups))
    search = _search(group_by=group_by, groups=[wanted], select=["run_count"])
    assert (await statistics.of_runs(TENANT, search)).keys() == {wanted}


@pytest.mark.parametrize("buckets", [2, 7, 60, 500])
@pytest.mark.parametrize("is_root", [None, True])
async def test_a_series_is_what_the_runs_of_each_time_add_up_to(statistics, buckets, is_root):
    until = SINCE + timedelta(hours=25)
    search = {"session": [SESSION], "start_time": SINCE, "end_time": until, "is_root": is_root}
    select = ["run_count", "error_rate", "latency_p50", "total_tokens"]
    series = await statistics.over_time(TENANT, RunSeriesQuery(**search, buckets=buckets, select=select))
    starts, length = [each["start_time"] for each in series["buckets"]], timedelta(seconds=series["seconds"])
    assert len(starts) <= buckets
    assert starts == [starts[0] + number * length for number in range(len(starts))]
    assert starts[0] <= SINCE < starts[0] + length
    assert starts[-1] <= until < starts[-1] + length
    for bucket in series["buckets"]:
        begin = max(bucket["start_time"], SINCE)
        end = min(bucket["start_time"] + length - timedelta(microseconds=1), until)
        alone = RunStatsQuery(**{**search, "start_time": begin, "end_time": end}, select=select)
        expected = await statistics.of_runs(TENANT, alone) if bucket["run_count"] else None
        assert expected is None or {**expected, "start_time": bucket["start_time"]} == bucket
    whole = await statistics.of_runs(TENANT, RunStatsQuery(**search, select=["run_count"]))
    assert sum(bucket["run_count"] for bucket in series["buckets"]) == whole["run_count"] > 0


async def test_a_series_without_times_goes_from_the_first_run_until_now(statistics):
    series = await statistics.over_time(TENANT, RunSeriesQuery(session=[SESSION]))
    assert sum(bucket["run_count"] for bucket in series["buckets"]) == len(RUNS)
    assert (await statistics.over_time(TENANT, RunSeriesQuery(session=[uuid4()])))["buckets"][0]["run_count"] == 0
    with pytest.raises(InvalidRequestError, match="no run_facets"):
        await statistics.over_time(TENANT, RunSeriesQuery(session=[SESSION], select=["run_facets"]))


async def test_select_groups_of_statistics(statistics):
    stats = await statistics.of_runs(TENANT, _search(select=["all_token_stats", "latency_avg"]))
    assert {"total_tokens", "cost_p99", "latency_avg", "prompt_token_details"} <= stats.keys()
    assert "run_count" not in stats


async def test_details_by_kind_are_added_up(clickhouse, statistics):
    tenant, session = uuid4(), uuid4()
    root = make_run(start_time=SINCE, tenant_id=tenant, session_id=session)
    llm = [make_run(root, total_tokens=n, prompt_token_details={"cache_read": n, f"k{n}": 1}) for n in (1, 2)]
    await insert_runs(clickhouse, [root, *llm])
    expected = {"cache_read": 3, "k1": 1, "k2": 1}
    for search in ({}, {"is_root": True}):
        stats = await statistics.of_runs(tenant, RunStatsQuery(session=[session], **search))
        assert stats["prompt_token_details"] == expected
        assert stats["total_tokens"] == 3


async def test_the_usage_of_a_run_is_what_its_rows_say_together_unless_it_is_deleted(clickhouse, statistics):
    tenant, session = uuid4(), uuid4()
    runs = [make_run(start_time=SINCE, tenant_id=tenant, session_id=session, total_tokens=n) for n in (1, 20, 300)]
    others = [make_run(start_time=SINCE, tenant_id=tenant, session_id=session) for _ in runs]
    await insert_runs(clickhouse, list(chain(*zip(runs, others, strict=True))))
    changed = make_run(start_time=SINCE, tenant_id=tenant, session_id=session, id=runs[0].id, total_tokens=4000)
    await insert_runs(clickhouse, [others[0], changed])  # the second comes as a PATCH
    await _delete(clickhouse, runs[1])
    stats = await statistics.of_runs(tenant, RunStatsQuery(session=[session]))
    assert (stats["run_count"], stats["total_tokens"], stats["tokens_p99"]) == (5, 4300, 3963)


async def test_totals_and_facets_are_of_runs_as_their_rows_say_together_unless_they_are_deleted(clickhouse, statistics):
    tenant, session = uuid4(), uuid4()

    def row(number: int, **fields) -> StoredRun:
        start = SINCE + timedelta(seconds=number)
        return make_run(start_time=start, tenant_id=tenant, session_id=session, id=UUID(int=number), **fields)

    begun = [row(number, name="begun", run_type="llm", tags=["x", "y"]) for number in range(4)]
    ended = [
        row(0, name="ended", run_type="llm", tags=["x", "y"], end_time=SINCE + timedelta(seconds=2)),
        row(1, name="failed", run_type="llm", end_time=SINCE + timedelta(seconds=5), error="no"),
    ]
    await insert_runs(clickhouse, begun)
    for changed in (*ended, row(1, name="renamed", run_type="llm", tags=["x"])):
        await insert_runs(clickhouse, [begun[2], changed])  # the second comes as a PATCH, in a part of its own
    await _delete(clickhouse, begun[3])
    expected = {
        ("name", "ended", 1),
        ("name", "renamed", 1),
        ("name", "begun", 1),
        ("run_type", "llm", 3),
        ("status", "success", 1),
        ("status", "error", 1),
        ("status", "pending", 1),
        ("tag", "x", 3),
        ("tag", "y", 2),
    }
    for search in ({}, {"is_root": True}, {"filter": 'eq(run_type, "llm")'}):
        stats = await statistics.of_runs(tenant, RunStatsQuery(session=[session], **search))
        assert {(facet["key"], facet["value"], facet["n"]) for facet in stats.pop("run_facets")} == expected
        assert (stats["run_count"], stats["latency_p50"], stats["error_rate"]) == (3, 3.0, 1 / 3)
        assert stats["last_run_start_time"] == begun[2].start_time
        select = [name for name in stats if name != "run_facets"]
        assert await statistics.of_runs(tenant, RunStatsQuery(session=[session], select=select, **search)) == stats


async def test_of_no_runs_there_is_only_their_number(statistics):
    stats = await statistics.of_runs(uuid4(), _search())
    assert stats["run_count"] == stats["total_tokens"] == 0
    assert stats["latency_p50"] is stats["error_rate"] is stats["total_cost"] is None
    assert stats["feedback_stats"] == {}
    assert stats["run_facets"] == []


async def test_wrong_statistics_are_refused(statistics):
    with pytest.raises(BadRequestError, match="At least one of"):
        await statistics.of_runs(TENANT, RunStatsQuery())
    with pytest.raises(InvalidRequestError, match="path must name a metadata key"):
        await statistics.of_runs(TENANT, _search(group_by={"attribute": "metadata"}))


async def test_costs_are_exact_in_sum(clickhouse, statistics):
    tenant, session = uuid4(), uuid4()
    runs = [
        make_run(start_time=SINCE, tenant_id=tenant, session_id=session, total_cost=Decimal("0.1")) for _ in range(10)
    ]
    runs[0].feedback = [Feedback("x", 1.0)]
    await insert_runs(clickhouse, runs)
    stats = await statistics.of_runs(tenant, RunStatsQuery(session=[session], select=["total_cost", "cost_p50"]))
    assert stats == {"total_cost": 1.0, "cost_p50": 0.1}
