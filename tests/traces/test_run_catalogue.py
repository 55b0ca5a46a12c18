"""The run catalogue agrees with the schema, with the stored and read values, and with the wire."""

from __future__ import annotations

from typing import get_args
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.tree import FIELDS
from moorage.traces.parse_run import parse_run
from moorage.traces.records.run_catalogue import EXPORT_FIELDS, RUN_CATALOGUE, Role, columns_of
from moorage.traces.records.run_fields import RunSelect, RunSelectV2
from moorage.traces.records.run_rows import SentRun
from moorage.traces.store.run_columns import COLUMNS, READABLE
from moorage.traces.usage import Usage

pytest_plugins = "tests.traces.fixtures"

# Columns of the table that are no part of a run that is read.
_OF_THE_STORE = {"deleted_at", "payload_bytes"}
# Names of `select` that are made from several columns, from other tables, or from nothing yet.
_COMPOSED_V1 = {
    *("inputs_preview", "inputs_s3_urls", "inputs_or_signed_url", "outputs_preview", "outputs_s3_urls"),
    *("outputs_or_signed_url", "error_or_signed_url", "events_or_signed_url", "extra_or_signed_url"),
    *("serialized_or_signed_url", "manifest_id", "manifest_s3_id", "manifest", "reference_dataset_id"),
    *("price_model_id", "last_queued_at", "child_run_ids", "in_dataset", "app_path", "share_token", "ttl_seconds"),
    *("trace_upgrade", "trace_min_max_start_time", "messages", "inserted_at"),
}
_COMPOSED_V2 = {
    *("ERROR_PREVIEW", "INPUTS_PREVIEW", "OUTPUTS_PREVIEW", "REFERENCE_DATASET_ID", "PRICE_MODEL_ID", "APP_PATH"),
    *("THREAD_EVALUATION_TIME", "IS_IN_DATASET", "LAST_QUEUED_AT", "SHARE_URL", "LS_USER_ID"),
}


async def test_the_table_has_the_columns_of_the_catalogue(clickhouse: ClickHouse):
    sql = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = 'trace_run_rows'"
    stored = {name: kind for name, kind in await clickhouse.rows(sql) if name not in _OF_THE_STORE}
    listed = {column.name: column.type for column in RUN_CATALOGUE if column.role is not Role.DERIVED}
    listed |= {column.twin: column.type for column in columns_of(Role.PATCHABLE)}
    assert stored == listed


async def test_the_view_has_what_filters_and_exports_name(clickhouse: ClickHouse):
    sql = "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'trace_runs'"
    shown = {name for (name,) in await clickhouse.rows(sql)}
    assert set(EXPORT_FIELDS) - {"feedback_stats"} <= shown
    assert shown <= COLUMNS.keys()


def test_rows_have_the_columns_of_the_catalogue():
    names = [column.name for column in columns_of(Role.PATCHABLE)]
    run = parse_run(SentRun(str(UUID(int=1)), is_patch=True))
    assert {*run.values, "attachments", *Usage().columns()} == set(names)
    run.values, run.usage, run.sent.attachments = dict.fromkeys(run.values, "x"), Usage(), b"{}"
    run.trace_id = run.parent_run_id = run.dotted_order = run.start_us = run.session_id = "x"
    key_and_place = {column.name for column in columns_of(Role.KEY, Role.FIXED)}
    assert run.row(UUID(int=2), {}, place_only=True).keys() == key_and_place
    patched = {column.twin for column in columns_of(Role.PATCHABLE)}
    assert run.row(UUID(int=2), {}, place_only=False).keys() == key_and_place | patched
    run.sent.is_patch = False
    assert run.row(UUID(int=2), {}, place_only=False).keys() == key_and_place | set(names)


def test_every_stored_column_can_be_read():
    usage = {name for name in READABLE if name.endswith(("_tokens", "_cost", "_details"))}
    assert not usage, "tokens and costs are read from the index of traces"
    stored = {column.name for column in RUN_CATALOGUE if column.role is not Role.DERIVED}
    read = {column for columns in READABLE.values() for column in columns}
    assert {name for name in stored if not name.endswith(("_tokens", "_cost", "_details"))} <= read


def test_names_of_the_wire_are_those_of_the_catalogue():
    assert {column.v1 for column in RUN_CATALOGUE if column.v1} | _COMPOSED_V1 == set(get_args(RunSelect))
    assert {column.v2 for column in RUN_CATALOGUE if column.v2} | _COMPOSED_V2 == set(get_args(RunSelectV2))


def test_fields_of_filters_are_those_of_the_catalogue():
    pairs = {name for name, field in FIELDS.items() if field.pair}
    assert {column.name for column in RUN_CATALOGUE if column.filter} == FIELDS.keys() - pairs


def test_an_exported_file_has_no_gap_between_its_columns():
    places = sorted(column.export for column in RUN_CATALOGUE if column.export is not None)
    assert places == list(range(1, len(EXPORT_FIELDS) + 1))
