"""Programs that read the files from the bucket as the documentation's recipes say: without a cast,
and with partitions.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import duckdb
import duckdb_extension_httpfs
import pandas as pd
import polars as pl
import pytest
from pyarrow.fs import S3FileSystem

from tests.exports.platform import make_platform
from tests.exports.seaweed import BUCKET, EXPORTER
from tests.traces.trace_data import insert_runs, random_runs

pytest_plugins = "tests.exports.fixtures"

DOCS = Path(__file__).parents[2] / "docs" / "exports.md"
SINCE = datetime(2026, 1, 5, tzinfo=UTC)
_HTTPFS = next(Path(duckdb_extension_httpfs.__file__).parent.rglob("*.duckdb_extension"))


class Exported:
    """Two exports of the same runs, one of each version, and a folder for a test."""

    def __init__(self, s3, prefix, runs):
        self.s3, self.prefix, self.runs = s3, prefix, runs
        self.folders = {}

    def export_id(self, version):
        """Return the id in the form that keys contain."""
        return self.folders[version].rpartition("/")[2]

    @property
    def by_day(self):
        days = {}
        for run in self.runs:
            days[run.start_time.day] = days.get(run.start_time.day, 0) + 1
        return days


@pytest.fixture(scope="module")
def known():
    return []


@pytest.fixture
async def exported(known, platform_conninfo, clickhouse_url, clickhouse, s3, tmp_path):
    if known:
        return known[0]
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, part_bytes_max=30_000) as platform:
        key, tenant_id = platform.keys.add()
        client, session_id = platform.client(key), uuid4()
        found = Exported(s3, uuid4().hex, random_runs(6, 60, tenant_id, session_id, SINCE))
        await insert_runs(clickhouse, found.runs)
        config = {"bucket_name": BUCKET, "prefix": found.prefix, "endpoint_url": s3.url}
        destination_id = await client.make_destination(config, EXPORTER.as_credentials())
        for version in ("v1", "v2_beta"):
            made = await client.make_export(
                destination_id, session_id, "2026-01-05", "2026-01-08", format_version=version
            )
            assert (await client.ended(made["id"]))["status"] == "Completed"
            found.folders[version] = f"{BUCKET}/{found.prefix}/export_id={made['id']}"
    known.append(found)
    return found


def _connect(s3):
    connection = duckdb.connect()
    connection.execute(f"LOAD '{_HTTPFS}'")
    connection.execute(
        f"""
        CREATE SECRET (
            TYPE s3, KEY_ID '{EXPORTER.access_key_id}', SECRET '{EXPORTER.secret_access_key}',
            ENDPOINT '127.0.0.1:{s3.port}', URL_STYLE 'path', USE_SSL false
        )
        """
    )
    return connection


def recipe(language, exported, which=0):
    """Return a block of the documentation, with the bucket and the prefix of the test in place of its own."""
    found = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)[which]
    assert "traces/prod" in found
    return found.replace("traces/prod", f"{BUCKET}/{exported.prefix}")


async def test_the_recipe_for_duckdb_runs(exported):
    with _connect(exported.s3) as connection:
        # Exports of one version at a time, since the versions have different types for times and lists.
        found = connection.execute(
            recipe("sql", exported).replace("export_id=*", exported.export_id("v2_beta"))
        ).fetchall()
    assert {day: runs for _, _, day, runs, _ in found} == exported.by_day


async def test_duckdb_reads_both_versions_with_their_partitions(exported):
    with _connect(exported.s3) as connection:
        for version, folder in exported.folders.items():
            files = f"read_parquet('s3://{folder}/**/*.parquet', hive_partitioning = true, union_by_name = true)"
            days = connection.execute(f"SELECT day, count(DISTINCT id), count(*) FROM {files} GROUP BY day").fetchall()
            assert {day: rows for day, _, rows in days} == {day: ids for day, ids, _ in days} == exported.by_day
            kinds = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE FROM {files})").fetchall())
            assert kinds["start_time"] == ("TIMESTAMP WITH TIME ZONE" if version == "v2_beta" else "TIMESTAMP_NS")
            assert kinds["tags"] == ("VARCHAR[]" if version == "v2_beta" else "VARCHAR")
            assert (kinds["total_tokens"], kinds["total_cost"], kinds["is_root"]) == ("BIGINT", "DOUBLE", "BOOLEAN")
            assert (kinds["year"], kinds["month"], kinds["day"]) == ("BIGINT", "BIGINT", "BIGINT")
        # All exports of the destination at once, without the test files and the manifests.
        glob = f"s3://{BUCKET}/{exported.prefix}/export_id=*/**/*.parquet"
        [[rows]] = connection.execute(f"SELECT count(*) FROM '{glob}'").fetchall()
        assert rows == 2 * len(exported.runs)


async def test_polars_reads_them_lazily(exported):
    options = {
        "aws_access_key_id": EXPORTER.access_key_id,
        "aws_secret_access_key": EXPORTER.secret_access_key,
        "aws_endpoint_url": exported.s3.url,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    # Tags are text in v1 and lists in v2_beta, so one scan reads only one version.
    told = {"storage_options": options}
    exec(recipe("python", exported).replace("export_id=E", exported.export_id("v2_beta")), told)  # noqa: S102 - our own page
    assert len(told["table"]) == sum(run.run_type == "llm" for run in exported.runs)
    lazy = pl.scan_parquet(
        f"s3://{exported.folders['v2_beta']}/**/*.parquet", storage_options=options, hive_partitioning=True
    )
    table = lazy.filter(pl.col("day") == 6).select("id", "start_time", "tags", "inputs").collect()
    assert len(table) == exported.by_day[6]
    assert table.schema["start_time"] == pl.Datetime("us", "UTC")
    assert table.schema["tags"] == pl.List(pl.String)
    by_id = {str(run.id): run for run in exported.runs}
    for row in table.iter_rows(named=True):
        run = by_id[row["id"]]
        assert (row["start_time"], row["tags"]) == (run.start_time, run.tags)
        assert (row["inputs"] and json.loads(row["inputs"])) == run.inputs


async def test_pandas_reads_them_with_integers_that_may_be_missing(exported):
    filesystem = S3FileSystem(
        access_key=EXPORTER.access_key_id,
        secret_key=EXPORTER.secret_access_key,
        endpoint_override=f"127.0.0.1:{exported.s3.port}",
        scheme="http",
    )
    told = {"filesystem": filesystem}
    exec(recipe("python", exported, 1).replace("export_id=E", exported.export_id("v2_beta")), told)  # noqa: S102 - our own page
    assert len(told["table"]) == len(exported.runs)
    for folder in exported.folders.values():
        # tenant_id and session_id are in the path and in the file: pyarrow has to be told which of them to use.
        table = pd.read_parquet(folder, filesystem=filesystem, partitioning=None, dtype_backend="pyarrow")
        assert len(table) == len(exported.runs)
        by_id = {str(run.id): run for run in exported.runs}
        own = [run for run in exported.runs if run.total_tokens is not None]
        assert own
        tokens = dict(zip(table["id"], table["total_tokens"], strict=True))
        assert all(tokens[str(run.id)] == run.total_tokens for run in own)
        assert set(table["id"]) == set(by_id)
