"""Records of exports: accepted values, the windows of partitions, and the paths of files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moorage.exports.partitions import days_of, part_name, partition_folder, place_of
from moorage.exports.records.destinations import DestinationCreate
from moorage.exports.records.exports import ExportCreate, ExportUpdate, FormatVersion
from moorage.exports.records.runs import ExportCursor, Window
from moorage.exports.records.words import EARLIEST_AT, LATEST_AT

# Naive, since hypothesis takes naive bounds.
MOMENTS = st.datetimes(
    EARLIEST_AT.replace(tzinfo=None), (LATEST_AT - timedelta(days=500)).replace(tzinfo=None), timezones=st.just(UTC)
)
ORDER = {"bulk_export_destination_id": uuid4(), "session_id": uuid4(), "start_time": "2026-01-01T00:00:00Z"}


@given(MOMENTS, st.timedeltas(timedelta(microseconds=1), timedelta(days=400)))
def test_days_tile_the_window_and_none_crosses_midnight(start, length):
    days = days_of(Window(start, start + length))
    assert (days[0].start_at, days[-1].end_at) == (start, start + length)
    assert all(before.end_at == after.start_at for before, after in pairwise(days))
    assert all(day.start_at < day.end_at for day in days)
    assert all((day.end_at - timedelta(microseconds=1)).date() == day.start_at.date() for day in days)


@given(MOMENTS, st.uuids())
def test_a_cursor_survives_its_text(at, run_id):
    assert ExportCursor.parse(str(ExportCursor(at, run_id))) == ExportCursor(at, run_id)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "end_time is required"),
        ({"end_time": "2026-01-02T00:00:00Z", "interval_hours": 1}, "end_time must be omitted"),
        ({"end_time": "2026-01-01T00:00:00Z"}, "later than start_time"),
        ({"end_time": "2025-01-01T00:00:00Z"}, "later than start_time"),
        ({"end_time": "2026-01-02", "start_time": "0001-01-01T00:00:00+14:00"}, "from 1970"),
        ({"end_time": "9999-12-31T23:59:59-14:00"}, "from 1970"),
        ({"end_time": "soon"}, "datetime"),
        ({"interval_hours": 0}, "greater than or equal to 1"),
        ({"interval_hours": 169}, "less than or equal to 168"),
        ({"interval_hours": True}, "valid integer"),
        ({"interval_hours": 6.0}, "valid integer"),
        ({"interval_hours": "6"}, "valid integer"),
        ({"end_time": "2026-01-02", "export_fields": ["id", "latency"]}, "Input should be"),
        ({"end_time": "2026-01-02", "export_fields": []}, "at least 1"),
        ({"end_time": "2026-01-02", "format_version": "v3"}, "Input should be"),
        ({"end_time": "2026-01-02", "compression": "zstd"}, "Input should be"),
        ({"end_time": "2026-01-02", "format": "CSV"}, "Input should be"),
        ({"end_time": "2026-01-02", "exprot_fields": ["id"]}, "Extra inputs"),
        ({"end_time": "2026-01-02", "all_experiments": True}, "either session_id or all_experiments"),
        ({"end_time": "2026-01-02", "session_id": None}, "either session_id or all_experiments"),
        ({"interval_hours": 1, "dry_run": True}, "neither changed_since nor dry_run"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(changes, part):
    with pytest.raises(ValidationError, match=part):
        ExportCreate.model_validate({**ORDER, **changes})


def test_words_come_in_in_any_case_and_times_without_zone_are_utc():
    order = ExportCreate.model_validate(
        {**ORDER, "start_time": "2026-01-01", "end_time": "2026-01-02T02:00:00+02:00", "format_version": "V2_Beta"}
        | {"compression": "GZIP", "export_fields": ["tags", "id", "tags"]}
    )
    assert (order.start_time, order.end_time) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    assert (order.format_version, order.compression) == ("v2_beta", "gzip")
    assert order.export_fields == ["tags", "id"]
    assert ExportUpdate.model_validate({"status": "CANCELLED"}).status == "Cancelled"


@pytest.mark.parametrize(
    "changes",
    [
        {"display_name": "no/slash"},
        {"display_name": ""},
        {"config": {"bucket_name": "x"}},
        {"config": {"bucket_name": "../../etc"}},
        {"config": {"bucket_name": "bucket", "prefix": "a/../b"}},
        {"config": {"bucket_name": "bucket", "prefix": "a//b"}},
        {"config": {"bucket_name": "bucket", "prefix": "a\nb"}},
        {"config": {"bucket_name": "bucket", "prefix": "x" * 2049}},
        {"config": {"bucket_name": "bucket", "region": ""}},
        {"config": {"bucket_name": "bucket", "s3_additional_kwargs": {"ACL": "public-read"}}},
        {"config": {"bucket_name": "bucket", "config_kwargs_s3": {"addressing_style": "sideways"}}},
        {"config": {}},
        {"destination_type": "ftp"},
        {"destination_type": "azure"},
        {"destination_type": "gcs", "credentials": {"access_key_id": "a", "secret_access_key": "b"}},
        {"credentials": {"access_key_id": "a"}},
        {"credentials": {"access_key_id": "a", "secret_access_key": "b", "password": "c"}},
        {"surprise": 1},
    ],
)
def test_a_destination_that_makes_no_sense_is_refused(changes):
    good = {"display_name": "My bucket's", "config": {"bucket_name": "bucket", "prefix": "/a/b/"}}
    assert DestinationCreate.model_validate(good).config.prefix == "a/b"
    with pytest.raises(ValidationError):
        DestinationCreate.model_validate({**good, **changes})


@pytest.mark.parametrize(
    ("config", "root", "reported"),
    [
        ({"prefix": ""}, "", "bucket/"),
        ({"prefix": "a/b"}, "a/b/", "bucket/a/b/"),
        ({"prefix": "a", "include_bucket_in_prefix": True}, "bucket/a/", "bucket/bucket/a/"),
        ({"prefix": "", "include_bucket_in_prefix": True}, "bucket/", "bucket/bucket/"),
        ({"prefix": "bucket/a", "include_bucket_in_prefix": True}, "bucket/a/", "bucket/bucket/a/"),
        ({"prefix": "bucket/a"}, "bucket/a/", "bucket/bucket/a/"),
        ({"prefix": "a", "include_bucket_in_prefix": True, "endpoint_url": "https://bucket.s3.x"}, "a/", "bucket/a/"),
        ({"prefix": "a", "include_bucket_in_prefix": True, "endpoint_url": "https://s3.x/bucket"}, "a/", "bucket/a/"),
        ({"prefix": "a", "bucket_name": None, "endpoint_url": "https://bucket.s3.x"}, "a/", "bucket/a/"),
        ({"prefix": "", "bucket_name": None, "endpoint_url": "https://s3.x/bucket"}, "", "bucket/"),
    ],
)
def test_a_reported_path_is_the_bucket_and_the_whole_key(config, root, reported):
    base = {"bucket_name": "bucket", "endpoint_url": None, "include_bucket_in_prefix": False}
    place = place_of({**base, **config})
    assert place.root == root
    assert place.reported(place.root + "x") == reported + "x"


def test_both_layouts_name_the_day_without_padding():
    ids = {"export_id": UUID(int=1), "tenant_id": UUID(int=2), "session_id": UUID(int=3)}
    place = place_of({"bucket_name": "bucket", "prefix": "p", "endpoint_url": None, "include_bucket_in_prefix": False})
    day = datetime(2026, 8, 9, tzinfo=UTC)
    base = f"p/export_id={UUID(int=1)}/tenant_id={UUID(int=2)}/session_id={UUID(int=3)}"
    v1, v2 = (partition_folder(place, version, **ids, day=day) for version in FormatVersion)
    assert v1 == f"{base}/runs/year=2026/month=8/day=9/"
    assert v2 == f"{base}/resource=runs/year=2026/month=8/day=9/"
    assert part_name(7, UUID(int=4)) == f"part-00007-{UUID(int=4)}.parquet"
    assert place.manifest(UUID(int=1)) == f"p/_manifests/export_id={UUID(int=1)}.json"
