"""Pages of trace runs as Parquet: every run once, repeatable bytes, and the values that a reader expects."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from moorage.exports.parquet import drop_zones
from moorage.exports.records.exports import Compression, FormatVersion
from moorage.traces.exported_runs import ExportedRuns, ExportSelection, export_condition
from moorage.traces.records.run_catalogue import EXPORT_FIELDS
from tests.traces.naive_filter import Feedback
from tests.traces.trace_data import insert_runs, make_run, random_runs

pytest_plugins = "tests.exports.fixtures"

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
GOLDEN = Path(__file__).parents[1] / "exports" / "golden"


@pytest.fixture
async def store(clickhouse):
    return ExportedRuns(clickhouse)


def selection(runs, *, days=20, cutoff_at=None, condition=None):
    until = SINCE + timedelta(days=days)
    return ExportSelection(
        runs[0].tenant_id, runs[0].session_id, SINCE, until, cutoff_at or datetime.now(UTC), condition
    )


async def read_pages(store, selected, bytes_max, *, fields=EXPORT_FIELDS, version=FormatVersion.V2_BETA):
    """Return the pages, and each as a file."""
    pages, files, after = [], [], None
    while page := await store.next_page(selected, after, fields, bytes_max):
        file = io.BytesIO()
        await store.write_parquet(selected, page, fields, file, version=version, compression=Compression.ZSTANDARD)
        pages.append(page)
        files.append(file.getvalue())
        after = page.last
    return pages, files


def rows_of(files):
    return [row for file in files for row in pq.read_table(io.BytesIO(file)).to_pylist()]


async def test_pages_of_any_size_hold_every_run_once_in_order(store, clickhouse):
    runs = random_runs(1, 80, uuid4(), uuid4(), SINCE)
    await insert_runs(clickhouse, runs)
    for bytes_max in (1, 20_000, 10**9):
        some = runs[:40] if bytes_max == 1 else runs
        ends = SINCE + timedelta(days=20) if len(some) == len(runs) else None
        until = ends or max(run.start_time for run in some) + timedelta(microseconds=1)
        selected = ExportSelection(runs[0].tenant_id, runs[0].session_id, SINCE, until, datetime.now(UTC))
        expected = {str(run.id) for run in runs if SINCE <= run.start_time < until}
        pages, files = await read_pages(store, selected, bytes_max, fields=("id", "start_time"))
        rows = rows_of(files)
        assert Counter(row["id"] for row in rows) == Counter(expected)
        assert [row["start_time"] for row in rows] == sorted(row["start_time"] for row in rows)
        assert [page.rows for page in pages] == [pq.read_metadata(io.BytesIO(file)).num_rows for file in files]


async def test_the_same_page_is_the_same_bytes_however_the_engine_has_merged(store, clickhouse):
    runs = random_runs(2, 120, uuid4(), uuid4(), SINCE)
    for start in range(0, len(runs), 37):
        await insert_runs(clickhouse, runs[start : start + 37])
    before = await read_pages(store, selection(runs), 60_000)
    await clickhouse.command("OPTIMIZE TABLE trace_run_rows FINAL")
    await clickhouse.command("OPTIMIZE TABLE feedback_rows FINAL")
    assert len(before[0]) > 2
    assert await read_pages(store, selection(runs), 60_000) == before


async def test_a_run_that_was_there_at_the_cutoff_stays_when_more_of_it_arrives_and_a_later_one_stays_out(
    store, clickhouse
):
    tenant_id, session_id = uuid4(), uuid4()
    known = make_run(start_time=SINCE, tenant_id=tenant_id, session_id=session_id)
    await insert_runs(clickhouse, [known])
    cutoff_at = datetime.now(UTC)
    late = make_run(start_time=SINCE, tenant_id=tenant_id, session_id=session_id)
    await insert_runs(clickhouse, [late, known])
    await clickhouse.command("OPTIMIZE TABLE trace_run_rows FINAL")
    _, files = await read_pages(store, selection([known], cutoff_at=cutoff_at), 10**9)
    assert [row["id"] for row in rows_of(files)] == [str(known.id)]
    assert await store.changed(selection([known]), cutoff_at) == {SINCE.date(): 2}
    assert await store.changed(selection([known]), datetime.now(UTC)) == {}


async def test_a_filter_selects_the_rows_and_their_count(store, clickhouse):
    runs = random_runs(3, 60, uuid4(), uuid4(), SINCE)
    await insert_runs(clickhouse, runs)
    text = 'and(eq(name, "alpha"), neq(error, null), eq(feedback_key, "score"))'
    condition = export_condition(text)
    expected = {
        str(run.id)
        for run in runs
        if run.name == "alpha" and run.error and any(each.key == "score" for each in run.feedback)
    }
    assert expected
    selected = selection(runs, condition=condition)
    _, files = await read_pages(store, selected, 2_000)
    assert {row["id"] for row in rows_of(files)} == expected
    assert sum((await store.count(selected)).values()) == len(expected)


async def test_values_are_those_of_the_run(store, clickhouse):
    root = make_run(
        start_time=SINCE,
        name="root",
        end_time=SINCE + timedelta(seconds=2),
        first_token_time=SINCE + timedelta(seconds=1),
        inputs={"a": "ü"},
        outputs={"b": [1, 2.5]},
        metadata={"k": "v"},
        extra={"runtime": {"x": 1}},
        events=[{"name": "new_token", "time": "2026-01-05T00:00:01"}],
        tags=["x", "y"],
        trace_tier=None,
    )
    child = make_run(
        root, run_type="llm", error="boom", total_tokens=7, prompt_tokens=3, total_cost=Decimal("0.000001")
    )
    leaf = make_run(child, run_type="llm", total_tokens=5, feedback=[
        Feedback("score", 0.5, None, None, "api", id=uuid4()),
        Feedback("score", 1.0, "good", None, "api", id=uuid4()),
        Feedback("note", None, None, "why", "model", id=uuid4()),
    ])  # fmt: skip
    await insert_runs(clickhouse, [root, child, leaf])
    _, [file] = await read_pages(store, selection([root]), 10**9)
    first, second, third = rows_of([file])
    assert first["id"] == first["trace_id"] == str(root.id)
    assert (first["tenant_id"], first["session_id"]) == (str(root.tenant_id), str(root.session_id))
    assert (first["is_root"], first["parent_run_id"], first["parent_run_ids"]) == (True, None, [])
    assert (third["parent_run_id"], third["parent_run_ids"]) == (str(child.id), [str(root.id), str(child.id)])
    assert (first["name"], first["run_type"], first["status"]) == ("root", "chain", "success")
    assert (second["status"], second["error"], third["status"]) == ("error", "boom", "pending")
    assert first["start_time"] == root.start_time
    assert first["start_time"].tzinfo is not None
    assert first["end_time"] - first["start_time"] == timedelta(seconds=2)
    assert first["first_token_time"] == root.first_token_time
    assert json.loads(first["inputs"]) == {"a": "ü"}
    assert json.loads(first["outputs"]) == {"b": [1, 2.5]}
    assert json.loads(first["extra"]) == {"metadata": {"k": "v"}, "runtime": {"x": 1}}
    assert json.loads(first["events"]) == root.events
    assert first["tags"] == ["x", "y"]
    assert first["trace_tier"] == "longlived"
    assert first["dotted_order"] == root.dotted_order
    # A parent without values of its own shows the sums of the runs below it.
    assert [row["total_tokens"] for row in (first, second, third)] == [12, 7, 5]
    assert [row["prompt_tokens"] for row in (first, second, third)] == [3, 3, None]
    assert [row["total_cost"] for row in (first, second, third)] == [1e-6, 1e-6, None]
    assert first["feedback_stats"] is None
    stats = json.loads(third["feedback_stats"])
    assert list(stats) == ["note", "score"]
    assert stats["score"] == {
        "n": 2, "avg": 0.75, "min": 0.5, "max": 1, "stdev": 0.25, "errors": 0, "values": {"good": 1}, "comments": [],
        "sources": [{"type": "api"}], "contains_thread_feedback": False,
    }  # fmt: skip
    assert (stats["note"]["comments"], stats["note"]["avg"]) == (["why"], None)


@pytest.mark.parametrize("version", FormatVersion)
async def test_the_schema_of_a_file_is_the_golden_one(store, clickhouse, version, tmp_path):
    run = make_run(start_time=SINCE, tags=["x"])
    await insert_runs(clickhouse, [run])
    _, [file] = await read_pages(store, selection([run]), 10**9, version=version)
    path = tmp_path / "file.parquet"
    path.write_bytes(file)
    if version is FormatVersion.V1:
        with path.open("r+b") as target:
            drop_zones(target, 3)
    with pq.ParquetFile(path) as parquet:
        lines = [f"{column.name}: {column.physical_type} {column.logical_type}" for column in _columns(parquet)]
        lines += ["", str(parquet.schema_arrow.remove_metadata())]
        assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"
    golden = GOLDEN / f"schema_{version}.txt"
    assert "\n".join(lines) + "\n" == golden.read_text()


def _columns(parquet):
    return [parquet.schema.column(number) for number in range(len(parquet.schema))]


async def test_v1_has_the_same_rows_with_times_without_zone_and_lists_as_text(store, clickhouse, tmp_path):
    runs = random_runs(4, 40, uuid4(), uuid4(), SINCE)
    await insert_runs(clickhouse, runs)
    _, [raw] = await read_pages(store, selection(runs), 10**9, version=FormatVersion.V1)
    _, [v2] = await read_pages(store, selection(runs), 10**9)
    (tmp_path / "v1").write_bytes(raw)
    with (tmp_path / "v1").open("r+b") as target:
        drop_zones(target, 3)
    table = pq.read_table(tmp_path / "v1")
    for old, new in zip(table.to_pylist(), rows_of([v2]), strict=True):
        assert json.loads(old["tags"]) == new["tags"]
        assert json.loads(old["parent_run_ids"]) == new["parent_run_ids"]
        for name in ("start_time", "end_time", "first_token_time"):
            assert (old[name] and old[name].to_pydatetime().replace(tzinfo=UTC)) == new[name]
        for name in ("id", "inputs", "outputs", "extra", "feedback_stats", "total_tokens", "total_cost"):
            assert old[name] == new[name]


async def test_another_workspace_or_project_is_never_read(store, clickhouse):
    run = make_run(start_time=SINCE)
    await insert_runs(clickhouse, [run])
    for tenant_id, session_id in ((uuid4(), run.session_id), (run.tenant_id, uuid4())):
        other = ExportSelection(tenant_id, session_id, SINCE, SINCE + timedelta(days=20), datetime.now(UTC))
        assert await store.next_page(other, None, EXPORT_FIELDS, 10**9) is None
        assert await store.count(other) == {}
        assert await store.changed(other, SINCE) == {}


async def test_no_value_of_a_row_is_taken_for_the_zone_of_a_column(store, clickhouse, tmp_path):
    zone = bytes.fromhex("8c111c3c00000000").decode("latin-1")
    run = make_run(start_time=SINCE, name=zone, inputs={"a": zone})
    await insert_runs(clickhouse, [run])
    for fields, times in ((["name", "inputs", "end_time"], 1), (["name", "inputs"], 0)):
        _, [file] = await read_pages(store, selection([run]), 10**9, fields=fields, version=FormatVersion.V1)
        path = tmp_path / "v1"
        path.write_bytes(file)
        with path.open("r+b") as target:
            drop_zones(target, times)
        [row] = pq.read_table(path).to_pylist()
        assert row["name"] == zone
        assert row.get("end_time") is None
    _, [file] = await read_pages(store, selection([run]), 10**9, fields=["id"], version=FormatVersion.V1)
    path.write_bytes(file)
    with path.open("r+b") as target, pytest.raises(ValueError, match="another form"):
        drop_zones(target, 1)


async def test_what_a_row_says_that_it_holds_is_the_same_before_and_after_it_is_merged(store, clickhouse):
    runs = random_runs(6, 50, uuid4(), uuid4(), SINCE)
    await insert_runs(clickhouse, runs)
    held = """
    SELECT id, sum(payload_bytes) FROM trace_run_rows
    WHERE tenant_id = {tenant_id:UUID} GROUP BY id ORDER BY id
    """
    before = await clickhouse.rows(held, {"tenant_id": runs[0].tenant_id})
    await clickhouse.command("OPTIMIZE TABLE trace_run_rows FINAL")
    assert await clickhouse.rows(held, {"tenant_id": runs[0].tenant_id}) == before
    assert all(size for _, size in before)
