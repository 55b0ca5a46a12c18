from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given, note, settings

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.text import parse
from moorage.traces.filter_language.tree import FIELDS, And, Compare, Has, In, Search
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.selections import RunScope
from tests.traces.filter_strategies import expressions, written
from tests.traces.naive_filter import Feedback, World
from tests.traces.trace_data import insert_runs, make_run, random_runs

pytest_plugins = "tests.traces.fixtures"

TENANT, SESSION = UUID(int=1), UUID(int=2)
SINCE = datetime(2026, 10, 1, 12, tzinfo=UTC)
_WHERE = "tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}"
SCOPE = RunScope(_WHERE, _WHERE)
RUNS = random_runs(3, 18, TENANT, SESSION, SINCE)
WORLD = World(RUNS)
EXPRESSIONS = expressions([run.id for run in RUNS[:10]], [SINCE, RUNS[5].start_time, SINCE + timedelta(hours=9)])
_ENGINE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def store(clickhouse: ClickHouse) -> ClickHouse:
    if not await clickhouse.value("SELECT count() FROM trace_run_rows WHERE tenant_id = {id:UUID}", {"id": TENANT}):
        await insert_runs(clickhouse, RUNS)
    return clickhouse


async def _select(store, condition, tenant=TENANT, session=SESSION):
    parameters = {"tenant_id": tenant, "session_id": session, **condition.parameters}
    sql = f"SELECT id FROM trace_runs WHERE {_WHERE} AND {condition.sql}"
    return {row[0] for row in await store.rows(sql, parameters)}


@settings(_ENGINE, max_examples=80)
@given(expression=EXPRESSIONS)
async def test_sql_selects_what_the_plain_reading_selects(store, expression):
    note(written(expression))
    selected = WORLD.select(expression)
    assert await _select(store, compile_filter(expression, SCOPE)) == selected
    confirming = compile_filter(expression, SCOPE, indexed=True)
    if confirming.candidates:
        assert await _select(store, confirming) == selected
        candidates = f"id IN (SELECT id FROM trace_run_rows WHERE {_WHERE} AND {confirming.candidates})"
        assert await _select(store, replace(confirming, sql=candidates)) >= selected
        if left := confirming.alone:  # each of the runs is a single row
            assert await _select(store, replace(confirming, sql=f"{candidates} AND {left}")) == selected


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ('search("quartz")', True),
        ('and(search("quartz"), eq(name, "kept"))', True),
        ("has(metadata, '{\"user\": 7}')", True),
        ('and(has(metadata, \'{"user": 7}\'), search("quartz"))', False),
        ('and(search("quartz"), like(outputs, "%vein%"))', False),
        ('and(search("quartz"), eq(feedback_key, "score"))', False),
    ],
)
def test_candidates_are_judged_where_they_are_found_unless_that_reads_what_may_be_long(text, judged):
    condition = compile_filter(parse(text), SCOPE, indexed=True)
    assert condition.candidates
    assert bool(condition.alone) is judged


@settings(_ENGINE, max_examples=15)
@given(own=EXPRESSIONS, of_root=EXPRESSIONS, of_any=EXPRESSIONS)
async def test_the_three_scopes_hold_together(store, own, of_root, of_any):
    note(f"{written(own)}\n{written(of_root)}\n{written(of_any)}")
    of_root_alone = And((Compare("eq", FIELDS["is_root"], True), of_root))
    found = await _select(store, compile_filter(own, SCOPE, of_traces=[of_root_alone, of_any]))
    assert found == WORLD.select(own, of_root, of_any)


async def test_the_example_of_the_documentation_for_three_scopes(clickhouse):
    def trace(score, *names, tenant=uuid4(), session=uuid4()):  # noqa: B008 - one workspace for all
        root = make_run(tenant_id=tenant, session_id=session, feedback=[Feedback("user_score", score)])
        return [root, *(make_run(root, name=name) for name in names)]

    liked = trace(1, "RetrieveDocs", "ExpandQuery")
    runs = [*liked, *trace(0, "RetrieveDocs", "ExpandQuery"), *trace(1, "RetrieveDocs"), *trace(1, "ExpandQuery")]
    await insert_runs(clickhouse, runs)
    found = await _select(
        clickhouse,
        compile_filter(
            parse('eq(name, "RetrieveDocs")'),
            SCOPE,
            of_traces=[
                parse('and(eq(is_root, true), and(eq(feedback_key, "user_score"), eq(feedback_score, 1)))'),
                parse('eq(name, "ExpandQuery")'),
            ],
        ),
        tenant=liked[0].tenant_id,
        session=liked[0].session_id,
    )
    assert found == {liked[1].id}


# The runs, by letter: each case says which of them its filter selects.
METADATA = {"a": {"k": "v"}, "b": {"k": "w"}, "c": {"j": "v"}, "d": {}, "e": {"k": 5, "j": "w"}, "f": {"k": True}}
LLM = {"generations": [[{"message": {"kwargs": {"content": "hi", "tool_calls": [{"name": "find"}, {"name": "go"}]}}}]]}
_SELECTED = [
    ('eq(metadata_key, "k")', "abef"),
    ('and(eq(metadata_key, "k"), eq(metadata_value, "v"))', "a"),
    ('and(in(metadata_key, ["k", "j"]), eq(metadata_value, "v"))', "ac"),
    ('and(eq(metadata_key, "k"), neq(metadata_value, "v"))', "bef"),
    ('neq(metadata_key, "k")', "cd"),
    ('and(neq(metadata_key, "k"), eq(metadata_value, "v"))', "c"),
    ('and(neq(metadata_key, "k"), neq(metadata_value, "v"))', "d"),
    ('neq(metadata_value, "v")', "bdef"),
    ('and(eq(metadata_key, "k"), eq(metadata_value, 5))', "e"),
    ('and(eq(metadata_key, "k"), eq(metadata_value, "5"))', "e"),
    ('and(eq(metadata_key, "k"), gt(metadata_value, 4.5))', "e"),
    ('and(eq(metadata_key, "k"), eq(metadata_value, true))', "f"),
    ('and(eq(metadata_key, "k"), like(metadata_value, "%v%"))', "a"),
    (
        'and(and(eq(metadata_key, "k"), eq(metadata_value, 5)), and(eq(metadata_key, "j"), eq(metadata_value, "w")))',
        "e",
    ),
    ('and(eq(metadata_key, "k"), eq(metadata_value, 5), eq(metadata_key, "j"))', ""),
    ('and(eq(name, "run"), eq(metadata_key, "k"), eq(metadata_value, "w"))', "b"),
    ("""has(metadata, '{"k": "v"}')""", "a"),
    ("""has(metadata, '{"k": 5, "j": "w"}')""", "e"),
    ('exists(metadata, "j")', "ce"),
    ("exists(metadata)", "abcef"),
    ('and(eq(input_key, "generations.message.kwargs.tool_calls.name"), eq(input_value, "go"))', "a"),
    ('and(eq(input_key, "generations.message.kwargs.content"), eq(input_value, "go"))', ""),
    ('and(like(input_key, "%.name"), like(input_value, "f%"))', "a"),
    ('eq(input_value, "hi")', "a"),
    ('exists(inputs, "generations.message.kwargs")', "a"),
    ('search("TOOL_CALLS find")', "a"),
    ('search("find absent")', ""),
    ('and(eq(feedback_key, "x"), gt(feedback_score, 4))', "b"),
    ('and(eq(feedback_key, "y"), gt(feedback_score, 4))', ""),
    ('and(eq(feedback_key, "y"), eq(feedback_score, null))', "b"),
    ('and(eq(feedback_key, "y"), eq(feedback_value, "good"))', "b"),
    ('neq(feedback_key, "x")', "acdef"),
]


@pytest.mark.parametrize(("text", "letters"), _SELECTED)
async def test_pairs(clickhouse, text, letters):
    tenant, session = UUID(int=20), UUID(int=21)
    if not await clickhouse.value("SELECT count() FROM trace_run_rows WHERE tenant_id = {id:UUID}", {"id": tenant}):
        runs = [
            make_run(id=UUID(int=ord(letter)), tenant_id=tenant, session_id=session, metadata=metadata)
            for letter, metadata in METADATA.items()
        ]
        runs[0].inputs = LLM
        runs[1].feedback = [Feedback("x", 4.5), Feedback("y", None, "good")]
        await insert_runs(clickhouse, runs)
    compiled = compile_filter(parse(text), SCOPE)
    found = await _select(clickhouse, compiled, tenant=tenant, session=session)
    assert "".join(sorted(chr(each.int) for each in found)) == letters


async def test_a_search_finds_what_was_written_with_escapes(clickhouse):
    run = make_run(name="été", inputs={"question": "Où est l'été ?"})
    await insert_runs(clickhouse, [run])
    ascii_only = replace(run, id=uuid4(), inputs=None)
    await insert_runs(clickhouse, [ascii_only])
    text = orjson.dumps(run.inputs).decode().encode("ascii", "backslashreplace").decode().replace("\\x", "\\u00")
    await clickhouse.insert(
        "trace_run_rows",
        {
            "tenant_id": ("UUID", [run.tenant_id]),
            "session_id": ("UUID", [run.session_id]),
            "start_time": ("DateTime64(6, 'UTC')", [run.start_time]),
            "id": ("UUID", [ascii_only.id]),
            "inputs": ("Nullable(String)", [text]),
        },
    )
    for text in ('search("été")', 'search("ÉTÉ")', 'search(inputs, "OÙ")'):
        found = await _select(
            clickhouse, compile_filter(parse(text), SCOPE), tenant=run.tenant_id, session=run.session_id
        )
        assert found == {run.id, ascii_only.id}, text


HOSTILE = (
    "'",
    "''",
    '"',
    "\\",
    "\\'",
    "') OR 1=1 --",
    "' OR '1'='1",
    "\\') OR 1=1 --",
    "{tenant_id:UUID}",
    "{f0:String}",
    "%(tenant_id)s",
    "%s %d %%",
    "$1",
    "/* */ ; DROP TABLE trace_run_rows",
    "\0",
    "a\0b",
    "\n\t\r",
    "\u2028",
    "￿",
    "😀" * 100,
    "x" * 10_000,
    "FORMAT Native",
    "SETTINGS max_threads=1",
    "%",
    "_",
    "\\%",
    "[]",
    "['a', 'b']",
    "NULL",
    "\\N",
)


async def test_a_hostile_value_is_only_ever_a_value(clickhouse):
    tenant, session = uuid4(), uuid4()
    runs = [
        make_run(
            tenant_id=tenant,
            session_id=session,
            name=value,
            tags=[value],
            metadata={value: value},
            inputs={"key": value},
            feedback=[Feedback(value, comment=value)],
        )
        for value in HOSTILE
    ]
    await insert_runs(clickhouse, runs)
    world = World(runs)
    for value in HOSTILE:
        filters = [
            f"and(eq(name, {_quoted(value)}), has(tags, {_quoted(value)}))",
            f"in(name, [{_quoted(value)}, 'other'])",
            f"and(eq(metadata_key, {_quoted(value)}), eq(metadata_value, {_quoted(value)}))",
            f"and(eq(input_key, 'key'), eq(input_value, {_quoted(value)}))",
            f"and(eq(feedback_key, {_quoted(value)}), eq(feedback_comment, {_quoted(value)}))",
        ]
        for text in filters:
            compiled = compile_filter(parse(text), SCOPE)
            found = await _select(clickhouse, compiled, tenant=tenant, session=session)
            assert found == {run.id for run in runs if run.name == value}, text
        for tree in (Compare("like", FIELDS["name"], value), Search(FIELDS["name"], value)):
            found = await _select(clickhouse, compile_filter(tree, SCOPE), tenant=tenant, session=session)
            assert found == world.select(tree), tree


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def test_a_filter_looks_at_nothing_of_another_workspace(store):
    """Indexes, feedback and other runs of a trace are read by id: guessing a foreign id must find nothing."""
    for text in (
        f'eq(trace_id, "{RUNS[0].trace_id}")',
        f'eq(id, "{RUNS[0].id}")',
        "exists(total_tokens)",
        'eq(feedback_key, "score")',
        'and(eq(metadata_key, "k"), eq(metadata_value, "alpha"))',
    ):
        compiled = compile_filter(parse(text), SCOPE)
        assert "{tenant_id:UUID}" in compiled.sql or "tenant_id" not in compiled.sql
        assert not await _select(store, compiled, tenant=uuid4())


def test_no_value_of_a_caller_stands_in_sql():
    value = "needle'"
    for tree in (
        Compare("eq", FIELDS["name"], value),
        Compare("like", FIELDS["metadata_value"], value),
        Compare("eq", FIELDS["input_key"], value),
        In(FIELDS["tags"], (value,)),
        Has(FIELDS["metadata"], orjson.dumps({value: [value]}).decode()),
        Search(None, value),
    ):
        assert "needle" not in compile_filter(tree, SCOPE).sql
