from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain, product
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError
from moorage.traces.paging import PageCursor, read_cursor
from moorage.traces.reading import Reading
from moorage.traces.records.runs import RunsFilter
from moorage.traces.searches import InvalidFiltersError, selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_columns import COLUMNS, READABLE, runs_for
from moorage.traces.store.selections import Position
from tests.traces.naive_filter import Feedback
from tests.traces.trace_data import StoredRun, insert_runs, make_run, random_runs

pytest_plugins = "tests.traces.fixtures"

NOW = datetime.now(UTC)
FIELDS = ("name",)
WHOLE = ("name", "inputs", "metadata_json", "total_tokens")


@pytest.fixture
async def reading(clickhouse: ClickHouse) -> Reading:
    return Reading(clickhouse, FeedbackStore(clickhouse))


async def _pages(reading: Reading, tenant: UUID, search: RunsFilter, fields=FIELDS, **how) -> list[list[UUID]]:
    pages, cursor = [], None
    while True:
        found = await reading.query(tenant, search, fields=fields, cursor=cursor, **how)
        pages.append([row["id"] for row in found.runs])
        cursor = found.next
        if cursor is None:
            return pages


async def test_a_list_goes_through_all_windows_page_by_page(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    ages = [timedelta(days=days) for days in (-1, 0, 0.5, 2, 6, 8, 20, 29, 31, 400, 2000)]
    runs = [make_run(start_time=NOW - age, tenant_id=tenant, session_id=session) for age in ages]
    # Runs of one moment are told apart by their ids.
    runs += [make_run(start_time=NOW - ages[3], tenant_id=tenant, session_id=session) for _ in range(5)]
    await insert_runs(clickhouse, runs)
    rows = await clickhouse.rows(
        "SELECT id FROM trace_runs WHERE tenant_id = {t:UUID} ORDER BY start_time DESC, id DESC", {"t": tenant}
    )
    newest_first = [row[0] for row in rows]
    for limit in (1, 3, 16, 100):
        pages = await _pages(reading, tenant, RunsFilter(session=[session]), limit=limit)
        assert list(chain.from_iterable(pages)) == newest_first
        assert all(len(page) == limit for page in pages[:-1])
        pages = await _pages(reading, tenant, RunsFilter(session=[session]), limit=limit, order="asc")
        assert list(chain.from_iterable(pages)) == newest_first[::-1]


async def test_a_list_by_metadata_is_whole_whether_the_index_narrows_it_or_not(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    runs = [
        make_run(
            start_time=NOW - timedelta(minutes=n),
            tenant_id=tenant,
            session_id=session,
            name="rare" if n % 500 == 7 else "often",
            metadata={"env": "prod", "user": n % 100},
            inputs={"text": "needle" if n % 600 == 5 else "hay"},
        )
        for n in range(3000)
    ]
    await insert_runs(clickhouse, runs)
    for text, expected in (
        (
            'and(eq(metadata_key, "env"), eq(metadata_value, "prod"), eq(name, "rare"))',
            [7, 507, 1007, 1507, 2007, 2507],
        ),
        ('and(eq(metadata_key, "user"), eq(metadata_value, 42))', list(range(42, 3000, 100))),
        ('search("eedl")', [5, 605, 1205, 1805, 2405]),
        ('and(search("hay"), has(metadata, \'{"user": 7}\'), eq(name, "rare"))', [7, 507, 1007, 1507, 2007, 2507]),
        ('and(eq(metadata_key, "env"), eq(metadata_value, "dev"))', []),
    ):
        search = RunsFilter(session=[session], filter=text)
        for order, wanted in (("desc", expected), ("asc", expected[::-1])):
            pages = await _pages(reading, tenant, search, limit=4, order=order)
            assert list(chain.from_iterable(pages)) == [runs[n].id for n in wanted], (text, order)


async def test_a_word_is_looked_for_in_what_a_run_says_now_whether_it_is_one_row_or_several(clickhouse, reading):
    tenant, session = uuid4(), uuid4()

    def run(name: str, text: str, minutes: int, **fields: Any):
        at = NOW - timedelta(days=2, minutes=minutes)
        return make_run(start_time=at, tenant_id=tenant, session_id=session, name=name, inputs={"text": text}, **fields)

    said, taken_back, said_later = run("kept", "Quartzite", 1), run("kept", "quartzite", 2), run("kept", "hay", 3)
    deleted, other = run("kept", "quartzite", 4), run("other", "a quartzite vein", 5)
    await insert_runs(clickhouse, [said, run("kept", "hay", 6), other, run("kept", "needle", 7)])
    await insert_runs(clickhouse, [taken_back, run("kept", "hay", 8), said_later, run("kept", "hay", 9), deleted])
    # Every other run comes as a PATCH.
    await insert_runs(
        clickhouse,
        [
            run("kept", "hay", 10),
            run("kept", "hay", 2, id=taken_back.id),
            run("kept", "hay", 11),
            run("kept", "quartzite", 3, id=said_later.id),
        ],
    )
    key = {
        name: (kind, [getattr(deleted, name)])
        for name, kind in {
            "tenant_id": "UUID",
            "session_id": "UUID",
            "start_time": "DateTime64(6, 'UTC')",
            "id": "UUID",
        }.items()
    }
    await clickhouse.insert(
        "trace_run_rows", {**key, "deleted_at": ("Nullable(DateTime64(6, 'UTC'))", [datetime.now(UTC)])}
    )
    for merged in (False, True):
        if merged:
            await clickhouse.command("OPTIMIZE TABLE trace_run_rows FINAL")
        for text, expected in (
            ('search("quartzite")', [said, said_later, other]),
            ('and(search("quartzite"), eq(name, "kept"))', [said, said_later]),
            ('search("quartz")', [said, said_later, other]),
        ):
            for limit, fields in ((2, FIELDS), (2, WHOLE), (9, WHOLE)):
                pages = await _pages(reading, tenant, RunsFilter(session=[session], filter=text), fields, limit=limit)
                assert list(chain.from_iterable(pages)) == [each.id for each in expected], (text, merged, limit)


async def test_what_an_index_finds_is_whole_however_old_it_is_and_however_much_of_it_is_read(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    ages = [timedelta(hours=hours) for hours in (1, 2, 20, 100, 160, 170, 300, 1000, 9000)]

    def run(age: timedelta, user: str, **fields: Any):
        said = {"metadata": {"user": user}, "inputs": {"text": f"by {user}"}}
        return make_run(start_time=NOW - age, tenant_id=tenant, session_id=session, **said, **fields)

    runs = [run(age, "somebody") for age in ages]
    changed = runs[4]
    await insert_runs(clickhouse, [each for run_ in runs for each in (run_, run(timedelta(days=500), "another"))])
    await insert_runs(clickhouse, [run(ages[0], "another"), run(ages[4], "another", id=changed.id)])
    expected = [each.id for each in runs if each is not changed]
    by_user = 'and(eq(metadata_key, "user"), eq(metadata_value, "somebody"))'
    looks_up = (
        f'and({by_user}, or(eq(feedback_key, "k"), gt(total_tokens, 5), eq(id, "{uuid4()}"), eq(thread_id, "t"),'
        ' search("nothing"), has(tags, "none"), neq(latency, 7)))'
    )
    for text, others in (
        ('search("somebody")', {}),
        (by_user, {}),
        (looks_up, {"trace_filter": by_user, "tree_filter": 'neq(name, "other")'}),
    ):
        search = RunsFilter(session=[session], filter=text, **others)
        for limit, fields in (
            (1, FIELDS),
            (3, FIELDS),
            (3, WHOLE),
            (8, WHOLE),
            (9, WHOLE),
            (100, FIELDS),
            (100, WHOLE),
        ):
            for order, wanted in (("desc", expected), ("asc", expected[::-1])):
                pages = await _pages(reading, tenant, search, fields, limit=limit, order=order)
                assert list(chain.from_iterable(pages)) == wanted, (text, limit, fields, order)
                assert all(len(page) == limit for page in pages[:-1])


async def test_a_cursor_leads_back_as_well(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    runs = [make_run(start_time=NOW - timedelta(minutes=n), tenant_id=tenant, session_id=session) for n in range(7)]
    await insert_runs(clickhouse, runs)
    search = RunsFilter(session=[session])
    first = await reading.query(tenant, search, fields=FIELDS, limit=3)
    second = await reading.query(tenant, search, fields=FIELDS, limit=3, cursor=first.next)
    third = await reading.query(tenant, search, fields=FIELDS, limit=3, cursor=second.next)
    assert first.previous is None
    assert third.next is None
    back = await reading.query(tenant, search, fields=FIELDS, limit=3, cursor=third.previous)
    assert back.runs == second.runs
    back = await reading.query(tenant, search, fields=FIELDS, limit=3, cursor=back.previous)
    assert back.runs == first.runs
    assert back.previous is None
    assert (await reading.query(tenant, search, fields=FIELDS, limit=3, cursor=back.next)).runs == second.runs


@given(st.one_of(st.text(max_size=30), st.binary(max_size=30).map(lambda data: data.hex())))
def test_a_wrong_cursor_is_refused(text):
    if text:
        with pytest.raises(BadRequestError, match="Invalid cursor"):
            read_cursor(text, "desc")


def test_a_cursor_belongs_to_an_order():
    cursor = PageCursor(Position(NOW, uuid4()), "asc")
    assert read_cursor(cursor.text(), "asc") == cursor
    with pytest.raises(BadRequestError, match="same order"):
        read_cursor(cursor.text(), "desc")
    assert read_cursor("", "desc") is None


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
    # Times that no engine can hold are bounds all the same.
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
    # Ids override everything else, and what is another workspace's is not there.
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
    assert READABLE.keys() - set(names) == {"tenant_id", "extra_without_metadata", "inputs_head", "outputs_head"}


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


async def hide(clickhouse, run):
    await clickhouse.insert(
        "trace_run_rows",
        {
            "tenant_id": ("UUID", [run.tenant_id]),
            "session_id": ("UUID", [run.session_id]),
            "start_time": ("DateTime64(6, 'UTC')", [run.start_time]),
            "id": ("UUID", [run.id]),
            "deleted_at": ("Nullable(DateTime64(6, 'UTC'))", [NOW]),
        },
    )


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
    root = make_run(id=_made(NOW), start_time=NOW)
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
    root = make_run(id=_made(begun), start_time=begun + lag, inputs={"of": "root"})
    late = make_run(root, start_time=begun + lag + timedelta(minutes=5), total_tokens=3)
    below = [make_run(root, inputs={"n": n}) for n in range(4)]
    beside = make_run(start_time=begun + lag, tenant_id=root.tenant_id, session_id=root.session_id)
    await insert_runs(clickhouse, [root, late, *below, beside])
    for _ in range(5):  # more rows than a page of one run may take
        await insert_runs(clickhouse, below)
    await _patch_alone(clickhouse, below[1], '{"said":"later"}')
    await _patch_alone(clickhouse, beside, '{"said":"of another"}')
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
    root = make_run(id=_made(NOW), start_time=NOW)
    runs = [root, *(make_run(root, inputs={"n": n}) for n in range(4))]
    await insert_runs(clickhouse, runs)
    near = reading._runs.rows_of_trace

    async def with_little_memory(*args, **how):
        await clickhouse.rows("SELECT arraySort(range(1000000))", settings={"max_memory_usage": 1_000_000})
        return await near(*args, **how)

    monkeypatch.setattr(reading._runs, "rows_of_trace", with_little_memory)
    pages = await _pages(reading, root.tenant_id, RunsFilter(trace=root.id), WHOLE, limit=2)
    assert {run_id for page in pages for run_id in page} == {run.id for run in runs}
    assert len(pages) == 3


def _made(at: datetime) -> UUID:
    """An id that says this time."""
    other = uuid4().int & (1 << 80) - 1
    return UUID(int=int(at.timestamp() * 1000) << 80 | other & ~(0xF << 76) | 7 << 76)


async def _patch_alone(clickhouse: ClickHouse, run: Any, inputs: str) -> None:
    """An update that does not say where its run stands in its trace."""
    key = {"tenant_id": "UUID", "session_id": "UUID", "start_time": "DateTime64(6, 'UTC')", "id": "UUID"}
    columns = {name: (kind, [getattr(run, name)]) for name, kind in key.items()}
    await clickhouse.insert("trace_run_rows", columns | {"patched_inputs": ("Nullable(String)", [inputs])})


async def test_roots_are_the_same_whether_their_hours_are_known_to_be_busy_or_not(clickhouse, reading):
    roots, search = await _twelve_roots(clickhouse, make_id=lambda at: uuid4())
    tenant, fields = roots[0].tenant_id, ["total_tokens", "inputs", "name", "parent_run_id"]

    async def read(limit):
        return await reading.query(tenant, search, fields=fields, limit=limit)

    first = await read(5)
    assert [row["id"] for row in first.runs] == [root.id for root in roots[:5]]
    assert [row["total_tokens"] for row in first.runs] == [None, 1, 2, None, 4]
    assert await read(5) == first  # from the hours of the last page
    assert [row["id"] for row in (await read(12)).runs] == [root.id for root in roots]
    await hide(clickhouse, roots[1])
    assert [row["id"] for row in (await read(5)).runs] == [root.id for root in roots[:1] + roots[2:6]]


async def test_runs_below_roots_count_whenever_they_began(clickhouse, reading):
    roots, search = await _twelve_roots(clickhouse, make_id=_made)
    late = make_run(roots[2], start_time=roots[2].start_time + timedelta(days=2), total_tokens=100)
    await insert_runs(clickhouse, [late])
    for _ in range(2):
        found = await reading.query(roots[0].tenant_id, search, fields=["total_tokens", "inputs"], limit=5)
        assert [row["id"] for row in found.runs] == [root.id for root in roots[:5]]
        assert [row["total_tokens"] for row in found.runs] == [None, 1, 102, None, 4]


@pytest.mark.parametrize("text", [None, "neq(name, 'another name')"], ids=["all roots", "a condition"])
@pytest.mark.parametrize("time_ordered", [False, True], ids=["random ids", "ids of their time"])
async def test_times_that_no_run_has_are_bounds_where_the_newest_page_is_known(clickhouse, reading, time_ordered, text):
    roots, search = await _twelve_roots(clickhouse, make_id=_made if time_ordered else lambda at: uuid4())
    search = search.model_copy(update={"filter": text})
    tenant, newest = roots[0].tenant_id, [root.id for root in roots[:5]]
    years = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1900, 2299, 9999)]
    bounds = [None, *years, datetime.max.replace(tzinfo=UTC)]
    for start, end in product(bounds, bounds):
        for times in ({}, {"start_time": start, "end_time": end}):
            asked = search.model_copy(update=times)
            found = await reading.query(tenant, asked, fields=["total_tokens", "inputs"], limit=5)
            holds = not times or ((start is None or start < NOW) and (end is None or end > NOW))
            assert [row["id"] for row in found.runs] == (newest if holds else []), (start, end)


async def test_a_quiet_project_in_a_busy_workspace_shows_its_roots(clickhouse, reading):
    roots, search = await _twelve_roots(clickhouse, make_id=_made)
    at, tenant, session = roots[0].start_time, roots[0].tenant_id, uuid4()
    crowd = [make_run(id=_made(at), start_time=at, tenant_id=tenant, session_id=session) for _ in range(300)]
    await insert_runs(clickhouse, crowd)
    for _ in range(2):
        found = await reading.query(roots[0].tenant_id, search, fields=["total_tokens", "inputs"], limit=5)
        assert [row["total_tokens"] for row in found.runs] == [None, 1, 2, None, 4]


async def _twelve_roots(
    clickhouse: ClickHouse, *, make_id: Callable[[datetime], UUID]
) -> tuple[list[StoredRun], RunsFilter]:
    """Of a project of their own, a minute after one another, the newest first; some with a run below them that says tokens."""
    tenant, session = uuid4(), uuid4()
    times = [NOW.replace(microsecond=0) - timedelta(minutes=n) for n in range(12)]
    roots = [
        make_run(id=make_id(at), start_time=at, tenant_id=tenant, session_id=session, inputs={"n": n})
        for n, at in enumerate(times)
    ]
    below = [make_run(root, total_tokens=n) for n, root in enumerate(roots) if n % 3]
    await insert_runs(clickhouse, [*roots, *below])
    return roots, RunsFilter(session=[session], is_root=True)


@pytest.mark.parametrize("text", [None, "eq(is_root, true)", 'search("hay")', 'eq(name, "kept")', 'has(tags, "a")'])
@pytest.mark.parametrize("fields", [FIELDS, WHOLE])
async def test_a_search_that_is_asked_again_shows_what_is_there_now(clickhouse, reading, text, fields):
    tenant, session = uuid4(), uuid4()

    def run(seconds, **how):
        at = NOW - timedelta(seconds=seconds)
        inputs, tags = {"text": "hay"}, ["a"]
        return make_run(
            start_time=at,
            tenant_id=tenant,
            session_id=session,
            **{"name": "kept", "tags": tags, "inputs": inputs} | how,
        )

    runs = [run(n) for n in range(20, 60)]
    search = RunsFilter(session=[session], filter=text)

    async def ids(limit=5):
        return [row["id"] for row in (await reading.query(tenant, search, fields=fields, limit=limit)).runs]

    await insert_runs(clickhouse, runs)
    for _ in range(3):
        assert await ids() == [run.id for run in runs[:5]]
    newer = [run(n, tags=["a"]) for n in range(10, 13)]
    await insert_runs(clickhouse, newer)
    assert await ids() == [run.id for run in [*newer, *runs[:2]]]
    await hide(clickhouse, newer[1])
    # Runs are written again and again: many rows of each, so that as many as the last page had are too few.
    for _ in range(4):
        await insert_runs(clickhouse, [newer[0], *runs[:4]])
    for limit in (5, 5, 30):
        assert await ids(limit) == [run.id for run in [newer[0], newer[2], *runs][:limit]]


async def test_of_roots_that_are_read_at_once_each_says_all_that_its_rows_say(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    roots = [make_run(start_time=NOW - timedelta(seconds=n), tenant_id=tenant, session_id=session) for n in range(8)]
    await insert_runs(clickhouse, [*roots, make_run(roots[0])])
    search = RunsFilter(session=[session], is_root=True)
    await reading.query(tenant, search, fields=WHOLE, limit=5)
    await _patch_alone(clickhouse, roots[2], '{"said":"later"}')
    found = (await reading.query(tenant, search, fields=WHOLE, limit=5)).runs
    assert [row["id"] for row in found] == [root.id for root in roots[:5]]
    assert found[2]["inputs"] == '{"said":"later"}'


async def paged(reading, tenant_id, search, fields, limit, order="desc"):
    cursor, more = None, True
    while more:
        found = await reading.query(tenant_id, search, fields=fields, limit=limit, cursor=cursor, order=order)
        for row in found.runs:
            yield row
        cursor, more = found.next, found.next is not None


async def test_feedback_of_runs(clickhouse, reading):
    run = make_run(
        start_time=NOW, feedback=[Feedback("score", 1.0), Feedback("score", 0.0), Feedback("tone", value="kind")]
    )
    await insert_runs(clickhouse, [run])
    row = await reading.get(run.tenant_id, run.id, fields=["feedback_stats"])
    assert row["feedback_stats"]["score"]["n"] == 2
    assert row["feedback_stats"]["score"]["avg"] == 0.5
    assert row["feedback_stats"]["tone"]["values"] == {"kind": 1}


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


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(5, 40), order=st.sampled_from(["asc", "desc"]), text=st.sampled_from(["", "exists(error)"]))
async def test_pages_are_the_whole_in_any_size(clickhouse, reading, limit, order, text):
    tenant, session = UUID(int=31), UUID(int=32)
    if not await clickhouse.value("SELECT count() FROM trace_run_rows WHERE tenant_id = {t:UUID}", {"t": tenant}):
        await insert_runs(clickhouse, random_runs(9, 20, tenant, session, NOW - timedelta(hours=15)))
    search = RunsFilter(session=[session], filter=text)
    whole = await _pages(reading, tenant, search, limit=1000, order=order)
    assert list(chain.from_iterable(await _pages(reading, tenant, search, limit=limit, order=order))) == whole[0]


@pytest.mark.parametrize(
    "made", [UUID("01a1fe57-34f3-7217-8456-17fd653c4dab"), UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")]
)
async def test_a_run_is_found_by_an_id_that_says_another_time(clickhouse, reading, made):
    run = make_run(id=made, start_time=NOW - timedelta(days=400))
    await insert_runs(clickhouse, [run])
    assert (await reading.get(run.tenant_id, made, fields=["name"]))["id"] == made
