"""Pages of runs: windows, candidates of an index, recent pages and cursors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain, product
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError
from moorage.traces.paging import PageCursor, read_cursor
from moorage.traces.records.runs import RunsFilter
from tests.traces.reads import FIELDS, NOW, WHOLE, hide, id_made, pages_of, patch_alone
from tests.traces.trace_data import StoredRun, insert_runs, make_run, random_runs

pytest_plugins = "tests.traces.fixtures"


async def test_a_list_goes_through_all_windows_page_by_page(clickhouse, reading):
    tenant, session = uuid4(), uuid4()
    ages = [timedelta(days=days) for days in (-1, 0, 0.5, 2, 6, 8, 20, 29, 31, 400, 2000)]
    runs = [make_run(start_time=NOW - age, tenant_id=tenant, session_id=session) for age in ages]
    # Runs with the same time are ordered by their ids.
    runs += [make_run(start_time=NOW - ages[3], tenant_id=tenant, session_id=session) for _ in range(5)]
    await insert_runs(clickhouse, runs)
    rows = await clickhouse.rows(
        "SELECT id FROM trace_runs WHERE tenant_id = {t:UUID} ORDER BY start_time DESC, id DESC", {"t": tenant}
    )
    newest_first = [row[0] for row in rows]
    for limit in (1, 3, 16, 100):
        pages = await pages_of(reading, tenant, RunsFilter(session=[session]), limit=limit)
        assert list(chain.from_iterable(pages)) == newest_first
        assert all(len(page) == limit for page in pages[:-1])
        pages = await pages_of(reading, tenant, RunsFilter(session=[session]), limit=limit, order="asc")
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
            pages = await pages_of(reading, tenant, search, limit=4, order=order)
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
    # Every other run is written as a PATCH.
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
                pages = await pages_of(reading, tenant, RunsFilter(session=[session], filter=text), fields, limit=limit)
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
                pages = await pages_of(reading, tenant, search, fields, limit=limit, order=order)
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
    cursor = PageCursor((NOW, uuid4()), "asc")
    assert read_cursor(cursor.text(), "asc") == cursor
    with pytest.raises(BadRequestError, match="same order"):
        read_cursor(cursor.text(), "desc")
    assert read_cursor("", "desc").after is None


async def _twelve_roots(
    clickhouse: ClickHouse, *, make_id: Callable[[datetime], UUID]
) -> tuple[list[StoredRun], RunsFilter]:
    """Create twelve roots in a project of their own, a minute apart, the newest first; some have a run below them with
    tokens.
    """
    tenant, session = uuid4(), uuid4()
    times = [NOW.replace(microsecond=0) - timedelta(minutes=n) for n in range(12)]
    roots = [
        make_run(id=make_id(at), start_time=at, tenant_id=tenant, session_id=session, inputs={"n": n})
        for n, at in enumerate(times)
    ]
    below = [make_run(root, total_tokens=n) for n, root in enumerate(roots) if n % 3]
    await insert_runs(clickhouse, [*roots, *below])
    return roots, RunsFilter(session=[session], is_root=True)


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
    roots, search = await _twelve_roots(clickhouse, make_id=id_made)
    late = make_run(roots[2], start_time=roots[2].start_time + timedelta(days=2), total_tokens=100)
    await insert_runs(clickhouse, [late])
    for _ in range(2):
        found = await reading.query(roots[0].tenant_id, search, fields=["total_tokens", "inputs"], limit=5)
        assert [row["id"] for row in found.runs] == [root.id for root in roots[:5]]
        assert [row["total_tokens"] for row in found.runs] == [None, 1, 102, None, 4]


@pytest.mark.parametrize("text", [None, "neq(name, 'another name')"], ids=["all roots", "a condition"])
@pytest.mark.parametrize("time_ordered", [False, True], ids=["random ids", "ids of their time"])
async def test_times_that_no_run_has_are_bounds_where_the_newest_page_is_known(clickhouse, reading, time_ordered, text):
    roots, search = await _twelve_roots(clickhouse, make_id=id_made if time_ordered else lambda at: uuid4())
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
    roots, search = await _twelve_roots(clickhouse, make_id=id_made)
    at, tenant, session = roots[0].start_time, roots[0].tenant_id, uuid4()
    crowd = [make_run(id=id_made(at), start_time=at, tenant_id=tenant, session_id=session) for _ in range(300)]
    await insert_runs(clickhouse, crowd)
    for _ in range(2):
        found = await reading.query(roots[0].tenant_id, search, fields=["total_tokens", "inputs"], limit=5)
        assert [row["total_tokens"] for row in found.runs] == [None, 1, 2, None, 4]


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
    # Runs are written again and again: each has many rows, so reading as many rows as the last page had is not enough.
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
    await patch_alone(clickhouse, roots[2], '{"said":"later"}')
    found = (await reading.query(tenant, search, fields=WHOLE, limit=5)).runs
    assert [row["id"] for row in found] == [root.id for root in roots[:5]]
    assert found[2]["inputs"] == '{"said":"later"}'


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(5, 40), order=st.sampled_from(["asc", "desc"]), text=st.sampled_from(["", "exists(error)"]))
async def test_pages_are_the_whole_in_any_size(clickhouse, reading, limit, order, text):
    tenant, session = UUID(int=31), UUID(int=32)
    if not await clickhouse.value("SELECT count() FROM trace_run_rows WHERE tenant_id = {t:UUID}", {"t": tenant}):
        await insert_runs(clickhouse, random_runs(9, 20, tenant, session, NOW - timedelta(hours=15)))
    search = RunsFilter(session=[session], filter=text)
    whole = await pages_of(reading, tenant, search, limit=1000, order=order)
    assert list(chain.from_iterable(await pages_of(reading, tenant, search, limit=limit, order=order))) == whole[0]
