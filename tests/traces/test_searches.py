"""Searches with invalid arguments, times and filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from moorage.kernel.errors import BadRequestError, InvalidRequestError
from moorage.traces.records.runs import RunsFilter
from moorage.traces.searches import InvalidFiltersError, selection_of
from tests.traces.naive_filter import Feedback
from tests.traces.reads import FIELDS, NOW
from tests.traces.trace_data import insert_runs, make_run

pytest_plugins = "tests.traces.fixtures"


async def test_times_bound_the_start_of_a_run_inclusively(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    times = [NOW + timedelta(microseconds=n) for n in range(4)]
    runs = [make_run(start_time=at, tenant_id=tenant, session_id=session) for at in times]
    await insert_runs(clickhouse, runs)

    async def found(start=None, end=None):
        search = RunsFilter(session=[session], start_time=start, end_time=end)
        rows = (await reading.query(tenant, search, fields=FIELDS, order="asc")).runs
        return [row["start_time"] for row in rows]

    assert await found(times[1], times[2]) == times[1:3]
    assert await found(times[2]) == times[2:]
    assert await found(None, times[0]) == times[:1]
    assert await found(times[3] + timedelta(microseconds=1)) == []
    # Times that no engine can store are valid bounds all the same.
    assert await found(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)) == times
    assert await found(datetime(9999, 12, 31, tzinfo=UTC)) == []


async def test_arguments_of_a_search(clickhouse, reading):
    tenant, session, other = uuid4(), uuid4(), uuid4()
    root = make_run(start_time=NOW, tenant_id=tenant, session_id=session, error="boom", inputs={"q": "needle"})
    child = make_run(root, run_type="llm", reference_example_id=UUID(int=5))
    grandchild = make_run(child, run_type="tool", tags=["x"])
    elsewhere = make_run(start_time=NOW, tenant_id=tenant, session_id=other)
    foreign = make_run(start_time=NOW)
    await insert_runs(clickhouse, [root, child, grandchild, elsewhere, foreign])

    async def found(**search):
        rows = (await reading.query(tenant, RunsFilter(**search), fields=FIELDS)).runs
        return {row["id"] for row in rows}

    trace = {root.id, child.id, grandchild.id}
    assert await found(session=[session]) == trace
    assert await found(session=[session, other]) == {*trace, elsewhere.id}
    assert await found(session=[uuid4()]) == set()
    assert await found(trace=root.trace_id) == trace
    assert await found(trace=root.trace_id, session=[other]) == set()
    assert await found(parent_run=root.id) == {child.id}
    assert await found(session=[session], is_root=True) == {root.id}
    assert await found(session=[session], is_root=False) == {child.id, grandchild.id}
    assert await found(session=[session], execution_order=1) == {root.id}
    assert await found(session=[session], error=True) == {root.id}
    assert await found(session=[session], error=False) == {child.id, grandchild.id}
    assert await found(session=[session], run_type="tool") == {grandchild.id}
    assert await found(reference_example=[UUID(int=5)]) == {child.id}
    assert await found(session=[session], query="NEEDLE") == {root.id}
    assert await found(session=[session], filter='has(tags, "x")') == {grandchild.id}
    assert await found(session=[session], filter=" ", search_filter='has(tags, "x")') == {grandchild.id}
    assert await found(session=[session], run_type="llm", trace_filter="exists(error)") == {child.id}
    assert await found(session=[session], is_root=True, tree_filter='has(tags, "x")') == {root.id}
    # Ids override everything else, and runs of another workspace are not found.
    assert await found(id=[child.id, foreign.id], session=[other], filter="exists(error)") == {child.id}
    assert await found(session=[foreign.session_id]) == set()
    assert await found(trace=foreign.trace_id) == set()


async def test_a_search_must_say_where_to_look(reading):
    for search in (RunsFilter(), RunsFilter(session=[]), RunsFilter(is_root=True, filter="exists(error)")):
        with pytest.raises(BadRequestError, match="At least one of 'session', 'id', 'parent_run', 'trace'"):
            await reading.query(uuid4(), search, fields=FIELDS)


async def test_every_wrong_filter_is_named(reading):
    search = RunsFilter(session=[uuid4()], filter="eq(", trace_filter="exists(error)", tree_filter="no")
    with pytest.raises(InvalidFiltersError) as caught:
        await reading.query(uuid4(), search, fields=FIELDS)
    assert [fault["field"] for fault in caught.value.faults] == ["filter", "tree_filter"]
    assert "character 4" in caught.value.faults[0]["message"]


async def test_a_filter_that_the_engine_could_not_read_is_refused(reading):
    one = 'eq(input_key, "a.b.c.d.e.f.g.h")'
    search = RunsFilter(session=[uuid4()], filter=f"or({', '.join([one] * 100)})")
    with pytest.raises(Exception, match="too complex") as caught:
        await reading.query(uuid4(), search, fields=FIELDS)
    assert caught.value.status == 422


def test_what_filters_look_up_is_bounded_in_all_of_them_together():
    threads = "or(" + ", ".join(f"eq(thread_id, '{number}')" for number in range(20)) + ")"
    scopes = dict.fromkeys(("filter", "trace_filter", "tree_filter"), threads)
    for name, text in scopes.items():
        assert selection_of(uuid4(), RunsFilter(session=[uuid4()], **{name: text})).condition
    with pytest.raises(InvalidRequestError, match="more than 48 times"):
        selection_of(uuid4(), RunsFilter(session=[uuid4()], **scopes))


async def test_feedback_may_be_asked_by_when_it_was_changed(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    runs = [
        make_run(
            start_time=NOW,
            tenant_id=tenant,
            session_id=session,
            feedback=[Feedback("score", 1.0, modified_at=NOW - timedelta(days=age))],
        )
        for age in (1, 3)
    ]
    await insert_runs(clickhouse, runs)
    changed = {"min_feedback_modified_at": NOW - timedelta(days=2), "max_feedback_modified_at": NOW}
    for name in ("filter", "trace_filter", "tree_filter"):
        search = RunsFilter(session=[session], **{name: 'eq(feedback_key, "score")'}, **changed)
        found = await reading.query(tenant, search, fields=FIELDS)
        assert [row["id"] for row in found.runs] == [runs[0].id]
    with pytest.raises(BadRequestError, match="together with a condition on feedback"):
        await reading.query(tenant, RunsFilter(session=[session], filter="exists(error)", **changed), fields=FIELDS)
