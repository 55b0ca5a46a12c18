"""Word search: it finds what a plain reading finds, for any words, wherever the row is, and whether the row has its
indexes yet or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.text import parse
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.selections import RunScope
from tests.traces.naive_filter import StoredRun, World
from tests.traces.trace_data import insert_runs, make_run

pytest_plugins = "tests.traces.fixtures"

_TENANT, _SESSION = uuid4(), uuid4()
_WHERE = "tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}"
_PLACE = {"tenant_id": _TENANT, "session_id": _SESSION}
_TEXTS = (
    "The face of a bad decade",
    "0bad4face12 and nothing else",
    "run-01a20108-33c4-7673-ab36-eaacaa6c163e",
    "RUN 01A20108-33C4-7673-AB36-EAACAA6C163F",
    "fp_deadbeef0",
    "fp_deadbeefab",
    "call_9Xk2LmZq",
    "gpt4omini, gpt-4o-mini",
    "snake_case_name2 snake_case",
    "été2026fin, é3f9aé, 日本face日本",
    "3f9a 2026 v1.22.333.4444",
    "abcd1234efgh5678",
    "abcd efgh 1234 5678",
    "ABCDefGH12",
    '"4Kelvin"\n\\Kelvin "İstanbul34"\tafter',
    f"{'a' * 300}1{'b' * 300}",
    " ".join(f"{number * 2654435761 % 2**32:08x}" for number in range(1500)),
)
_SEARCHED = [
    *("FACE", "deca", "deadbeef", "beefab", "eaacaa", "case", "kelvin", "abcd", "efgh", "aaaaab", "nowhere", "nafter"),
    *("elvi", "日本face", "0bad", "face1", "33C4", "aacaa6c163", "c163f", "eef0", "9xk2", "gpt4o", "name2", "2026fin"),
    *("3f9a", "4444", "d1234e", "efgh12", "4kelvin", "aa1bb", f"{1400 * 2654435761 % 2**32:08x}", "nowhere1"),
    *("fp_deadbeef0", "bad", "3f", "abcd 5678", "decade nothing", "face 4face12", "été2026fin kelvin"),
]


@pytest.fixture
async def store(empty_clickhouse_url: str) -> AsyncIterator[ClickHouse]:
    client = ClickHouse(empty_clickhouse_url)
    yield client
    await client.close()


def _run(**fields: object) -> StoredRun:
    return make_run(tenant_id=_TENANT, session_id=_SESSION, **fields)


async def _found(store: ClickHouse, where: str, parameters: dict[str, object], table: str = "trace_runs") -> set[UUID]:
    return {row[0] for row in await store.rows(f"SELECT id FROM {table} WHERE {_WHERE} AND {where}", parameters)}


async def _indexed_bytes(store: ClickHouse) -> list[int]:
    sql = """SELECT data_compressed_bytes FROM system.data_skipping_indices
        WHERE database = currentDatabase() AND name IN ('by_letters', 'by_digits')"""
    return [row[0] for row in await store.rows(sql)]


async def test_a_word_is_found_by_any_part_of_it_in_halves_of_runs_and_in_merged_ones(store):
    alone = [_run(**{name: {"text": text}}) for text in _TEXTS for name in ("inputs", "outputs")]
    asked = _run(inputs={"text": "face 3f9a nothing"})
    answered = replace(asked, inputs=None, outputs={"text": "decade 4face12"})
    world = World([*alone, replace(asked, outputs=answered.outputs)])

    await store.migrate()
    await store.command("SYSTEM STOP MERGES trace_run_rows")
    await insert_runs(store, alone)
    await insert_runs(store, [asked, answered])
    await _search_all(store, world, {asked.id})

    await store.command("SYSTEM START MERGES trace_run_rows")
    await store.command("OPTIMIZE TABLE trace_run_rows FINAL")
    assert min(await _indexed_bytes(store)) > 0
    await _search_all(store, world, set())


async def _search_all(store: ClickHouse, world: World, halves: set[UUID]) -> None:
    """Search for all words. `halves` are runs of two rows, about which an index proves nothing."""
    for words in _SEARCHED:
        expression = parse(f'search("{words}")')
        expected = world.select(expression)
        whole = compile_filter(expression, RunScope(_WHERE, _WHERE))
        parameters = {**_PLACE, **whole.parameters}
        assert await _found(store, whole.sql, parameters) == expected, words
        apart = compile_filter(expression, RunScope(_WHERE, _WHERE), indexed=True)
        assert bool(apart.candidates) == any(
            len(word) > 3 and word.isascii() and word.isalnum() for word in words.split()
        )
        if apart.candidates:
            parameters = {**_PLACE, **apart.parameters}
            candidates = await _found(store, apart.candidates, parameters, "trace_run_rows")
            assert candidates >= expected, words
            assert apart.alone.strip("()") != "true" or candidates - halves == expected - halves, words


@pytest.mark.parametrize(
    ("word", "index"),
    [("face", "by_letters"), ("Quartz", "by_letters"), ("4face", "by_digits"), ("2026", "by_digits")],
)
async def test_a_word_is_looked_for_in_one_index(clickhouse, word, index):
    condition = compile_filter(parse(f'search("{word}")'), RunScope(_WHERE, _WHERE), indexed=True)
    await insert_runs(clickhouse, [_run(inputs={"text": "nothing 12345"})])
    sql = f"EXPLAIN indexes = 1 SELECT id FROM trace_run_rows WHERE {_WHERE} AND {condition.candidates}"
    plan = "\n".join(row[0] for row in await clickhouse.rows(sql, {**_PLACE, **condition.parameters}))
    assert {name for name in ("by_letters", "by_digits", "by_metadata") if name in plan} == {index}
