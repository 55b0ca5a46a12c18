"""Runs by key, and with their traces and feedback."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from moorage.kernel.errors import NotFoundError
from moorage.traces.records.runs import RunsFilter
from moorage.traces.store.run_columns import COLUMNS, READABLE, runs_for
from tests.traces.naive_filter import Feedback
from tests.traces.reads import FIELDS, NOW, WHOLE, hide, id_made, paged, pages_of, patch_alone
from tests.traces.trace_data import insert_runs, make_run, random_runs

pytest_plugins = "tests.traces.fixtures"


async def test_reading_by_key_says_what_the_view_says(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    runs = random_runs(5, 12, tenant, session, NOW - timedelta(days=3))
    for number, run in enumerate(runs):
        run.attachments = {"a": {"key": f"k{number}", "mime_type": "text/plain"}} if number % 3 else None
        run.prompt_token_details = {"cache_read": number}
    await insert_runs(clickhouse, runs)
    for late in runs[:10]:  # a PATCH as a row of its own
        await clickhouse.insert(
            "trace_run_rows",
            {
                "tenant_id": ("UUID", [tenant]),
                "session_id": ("UUID", [session]),
                "start_time": ("DateTime64(6, 'UTC')", [late.start_time]),
                "id": ("UUID", [late.id]),
                "patched_name": ("Nullable(String)", ["late"]),
                "patched_tags": ("Nullable(String)", ['["late"]']),
                "patched_attachments": ("Nullable(String)", ['{"b": {"key": "k"}}']),
                "patched_metadata_json": ("Nullable(String)", ['{"late": true}']),
            },
        )

    async def selected(names, source):
        sql = f"SELECT id, {', '.join(names)} FROM {source} WHERE tenant_id = {{t:UUID}}"
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in await clickhouse.rows(sql, {"t": tenant})}

    names = sorted(COLUMNS.keys() - {"extra_without_metadata", "tags_json", "tenant_id"})
    of_view = await selected(names, "trace_runs")
    assert len(of_view) == len(runs)
    assert await selected(names, runs_for(*names)) == of_view

    keys = await reading._runs.locate(tenant, [run.id for run in runs])
    by_key = await reading._runs.rows(tenant, keys, READABLE)
    assert len(by_key) == len(runs)
    for row in by_key.values():
        shared = READABLE.keys() & set(names)
        assert {name: row[name] for name in shared} == {name: of_view[row["id"]][name] for name in shared}
        assert row["inputs_head"] == row["inputs"]
    assert READABLE.keys() - set(names) == {
        *("tenant_id", "extra_without_metadata", "inputs_head", "outputs_head", "tags_json"),
        *("posted_attachments", "patched_attachments"),
    }


async def test_a_run_by_its_id(clickhouse, reading):
    run, foreign = make_run(), make_run()
    await insert_runs(clickhouse, [run, foreign])
    row = await reading.get(run.tenant_id, run.id, fields=["inputs", "name"])
    assert row["id"] == run.id
    assert row["session_id"] == run.session_id
    assert (await reading.get(run.tenant_id, run.id, fields=FIELDS, session_id=run.session_id))["id"] == run.id
    for run_id, session in ((foreign.id, None), (uuid4(), None), (run.id, uuid4())):
        with pytest.raises(NotFoundError):
            await reading.get(run.tenant_id, run_id, fields=FIELDS, session_id=session)


async def test_a_deleted_run_is_gone(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    kept, gone = (make_run(start_time=NOW, tenant_id=tenant, session_id=session) for _ in range(2))
    await insert_runs(clickhouse, [kept, gone])
    await hide(clickhouse, gone)
    with pytest.raises(NotFoundError):
        await reading.get(tenant, gone.id, fields=FIELDS)
    for search in (RunsFilter(session=[session]), RunsFilter(id=[kept.id, gone.id])):
        found = await reading.query(tenant, search, fields=FIELDS)
        assert [row["id"] for row in found.runs] == [kept.id]


async def test_parents_show_what_the_runs_below_them_add_up_to(clickhouse, reading):
    root = make_run(start_time=NOW)
    middle = make_run(root)
    llm = [
        make_run(middle, run_type="llm", total_tokens=10, prompt_tokens=6, total_cost=Decimal("0.000001")),
        make_run(middle, run_type="llm", total_tokens=5, prompt_tokens=5, prompt_token_details={"cache_read": 2}),
    ]
    tool = make_run(root, run_type="tool")
    given = make_run(start_time=NOW, tenant_id=root.tenant_id, session_id=root.session_id, total_tokens=7)
    below_given = make_run(given, total_tokens=100, prompt_token_details={"cache_read": 3, "audio": 1})
    await insert_runs(clickhouse, [root, middle, *llm, tool, given, below_given])
    fields = ["total_tokens", "prompt_tokens", "total_cost", "prompt_token_details", "child_run_ids"]
    fields += ["direct_child_run_ids", "trace_times", "first_token_below", "trace_id"]
    found = await reading.query(root.tenant_id, RunsFilter(session=[root.session_id]), fields=fields)
    rows = {row["id"]: row for row in found.runs}

    def usage(run):
        row = rows[run.id]
        return row["total_tokens"], row["prompt_tokens"], row["total_cost"], row["prompt_token_details"]

    assert usage(root) == usage(middle) == (15, 11, Decimal("0.000001"), {"cache_read": 2})
    assert usage(llm[0]) == (10, 6, Decimal("0.000001"), None)
    assert usage(tool) == (None, None, None, None)
    assert usage(given) == (7, None, None, {"cache_read": 3, "audio": 1})
    assert set(rows[root.id]["child_run_ids"]) == {middle.id, tool.id, *(run.id for run in llm)}
    assert set(rows[root.id]["direct_child_run_ids"]) == {middle.id, tool.id}
    assert rows[tool.id]["child_run_ids"] == []
    assert rows[llm[0].id]["trace_times"] == (root.start_time, llm[0].start_time)


async def test_what_a_run_says_does_not_depend_on_the_runs_beside_it(clickhouse, reading):
    root = make_run(start_time=NOW)
    middles = [make_run(root) for _ in range(2)]
    leaves = [make_run(middle, total_tokens=at) for at, middle in enumerate([*middles, *middles], 1)]
    other = make_run(start_time=NOW, tenant_id=root.tenant_id, session_id=root.session_id)
    below_other = make_run(other, total_tokens=100)
    await insert_runs(clickhouse, [root, *middles, *leaves, other, below_other])
    search, fields = RunsFilter(session=[root.session_id]), ["total_tokens", "child_run_ids", "first_token_below"]
    together = (await reading.query(root.tenant_id, search, fields=fields)).runs
    assert {row["id"]: row["total_tokens"] for row in together} == {
        root.id: 10,
        middles[0].id: 4,
        middles[1].id: 6,
        **{leaf.id: at for at, leaf in enumerate(leaves, 1)},
        other.id: 100,
        below_other.id: 100,
    }
    for limit in (1, 2, 3):
        assert [row async for row in paged(reading, root.tenant_id, search, fields, limit)] == together
    of_trace, trace = [row for row in together if row["total_tokens"] != 100], RunsFilter(trace=root.id)
    for limit in (1, 2, 3, 7, 8):
        assert [row async for row in paged(reading, root.tenant_id, trace, fields, limit)] == of_trace


async def test_a_trace_that_grows_while_it_is_read_loses_no_run(clickhouse, reading, monkeypatch):
    root = make_run(id=id_made(NOW), start_time=NOW)
    await insert_runs(clickhouse, [root, make_run(root, total_tokens=1), make_run(root, total_tokens=2)])
    search, fields = RunsFilter(trace=root.id), ["total_tokens", "name"]
    whole = (await reading.query(root.tenant_id, search, fields=fields)).runs
    assert sorted(row["total_tokens"] for row in whole) == [1, 2, 3]
    at_once = reading._runs.rows_of_trace

    async def before_the_last_came(*args, **how):
        return dict(list((await at_once(*args, **how)).items())[:2])

    monkeypatch.setattr(reading._runs, "rows_of_trace", before_the_last_came)
    assert (await reading.query(root.tenant_id, search, fields=fields)).runs == whole


@pytest.mark.parametrize("lag", [timedelta(0), timedelta(days=2)])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_trace_is_whole_whether_or_not_its_id_says_when_it_was(clickhouse, reading, lag, order):
    begun = NOW.replace(microsecond=0)
    root = make_run(id=id_made(begun), start_time=begun + lag, inputs={"of": "root"})
    late = make_run(root, start_time=begun + lag + timedelta(minutes=5), total_tokens=3)
    below = [make_run(root, inputs={"n": n}) for n in range(4)]
    beside = make_run(start_time=begun + lag, tenant_id=root.tenant_id, session_id=root.session_id)
    await insert_runs(clickhouse, [root, late, *below, beside])
    for _ in range(5):  # more rows than a page with one run may read
        await insert_runs(clickhouse, below)
    await patch_alone(clickhouse, below[1], '{"said":"later"}')
    await patch_alone(clickhouse, beside, '{"said":"of another"}')
    await hide(clickhouse, below[2])
    search, fields = RunsFilter(trace=root.id), ["total_tokens", "inputs"]
    expected = [root, below[0], below[1], below[3], late]
    for limit in (1, 2, 5, 100):
        found = [row async for row in paged(reading, root.tenant_id, search, fields, limit, order=order)]
        assert {row["id"] for row in found} == {run.id for run in expected}
        inputs = {row["id"]: row["inputs"] for row in found}
        assert inputs[below[1].id] == '{"said":"later"}'
        assert inputs[below[3].id] == '{"n":3}'
        assert {row["id"]: row["total_tokens"] for row in found}[root.id] == 3


async def test_a_trace_of_more_than_memory_holds_is_shown_page_by_page(clickhouse, reading, monkeypatch):
    root = make_run(id=id_made(NOW), start_time=NOW)
    runs = [root, *(make_run(root, inputs={"n": n}) for n in range(4))]
    await insert_runs(clickhouse, runs)
    near = reading._runs.rows_of_trace

    async def with_little_memory(*args, **how):
        await clickhouse.rows("SELECT arraySort(range(1000000))", settings={"max_memory_usage": 1_000_000})
        return await near(*args, **how)

    monkeypatch.setattr(reading._runs, "rows_of_trace", with_little_memory)
    pages = await pages_of(reading, root.tenant_id, RunsFilter(trace=root.id), WHOLE, limit=2)
    assert {run_id for page in pages for run_id in page} == {run.id for run in runs}
    assert len(pages) == 3


async def test_feedback_of_runs(clickhouse, reading):
    run = make_run(
        start_time=NOW, feedback=[Feedback("score", 1.0), Feedback("score", 0.0), Feedback("tone", value="kind")]
    )
    await insert_runs(clickhouse, [run])
    row = await reading.get(run.tenant_id, run.id, fields=["feedback_stats"])
    assert row["feedback_stats"]["score"]["n"] == 2
    assert row["feedback_stats"]["score"]["avg"] == 0.5
    assert row["feedback_stats"]["tone"]["values"] == {"kind": 1}


@pytest.mark.parametrize(
    "made", [UUID("01a1fe57-34f3-7217-8456-17fd653c4dab"), UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")]
)
async def test_a_run_is_found_by_an_id_that_says_another_time(clickhouse, reading, made):
    run = make_run(id=made, start_time=NOW - timedelta(days=400))
    await insert_runs(clickhouse, [run])
    assert (await reading.get(run.tenant_id, made, fields=["name"]))["id"] == made
