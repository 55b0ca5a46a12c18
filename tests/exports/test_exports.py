"""Exports over HTTP, from the order to the files in a real S3."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pyarrow.parquet as pq
import pytest

from moorage.kernel.buckets.s3 import S3Address, s3_bucket
from moorage.kernel.ids import uuid7
from moorage.traces.store import exported_runs
from tests.exports.platform import make_platform
from tests.exports.seaweed import BUCKET, EXPORTER
from tests.traces.trace_data import insert_runs, make_run, random_runs

pytest_plugins = "tests.exports.fixtures"

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
START, END = "2026-01-05T00:00:00Z", "2026-01-09T12:00:00Z"


@pytest.fixture
async def platform(platform_conninfo, clickhouse_url, clickhouse, tmp_path):
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, part_bytes_max=40_000) as platform:
        yield platform


@pytest.fixture
async def idle(platform_conninfo, clickhouse_url, clickhouse, tmp_path):
    """Start a platform that accepts orders and does no work."""
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, works=False) as platform:
        yield platform
        # Otherwise the next platform of this module would execute them.
        await platform.postgres.execute("DELETE FROM exports")


@pytest.fixture
def bucket(s3):
    address = S3Address(BUCKET, endpoint_url=s3.url)
    return s3_bucket(address, EXPORTER.lend, patience_s=1)


class Traced:
    """A workspace with a project of some random runs, its client, and a destination."""

    def __init__(self, platform, s3):
        self.platform = platform
        self.key, self.tenant_id = platform.keys.add()
        self.client = platform.client(self.key)
        self.session_id = uuid4()
        self.config = {"bucket_name": BUCKET, "prefix": f"t/{self.tenant_id}", "endpoint_url": s3.url}

    async def prepare(self, clickhouse, traces=100, seed=1):
        self.runs = random_runs(seed, traces, self.tenant_id, self.session_id, SINCE)
        await insert_runs(clickhouse, self.runs)
        self.destination_id = await self.client.make_destination(self.config, EXPORTER.as_credentials())
        return self

    async def export(self, start=START, end=END, **more):
        return await self.client.make_export(self.destination_id, self.session_id, start, end, **more)


async def rows_in(bucket, runs):
    """Return the rows in the files that the export runs name."""
    rows = []
    for run in runs:
        for path in run["metadata"]["result"]["exported_files"]:
            name, _, key = path.partition("/")
            assert name == BUCKET
            rows += pq.read_table(io.BytesIO(await bucket.get(key))).to_pylist()
    return rows


async def test_an_export_writes_every_run_of_its_window_once_and_proves_it(platform, clickhouse, s3, bucket):
    traced = await Traced(platform, s3).prepare(clickhouse)
    made = await traced.export(format_version="v2_beta")
    assert made["status"] == "Created"
    assert made["finished_at"] is None
    assert (made["format"], made["format_version"], made["compression"]) == ("Parquet", "v2_beta", "zstandard")
    done = await traced.client.ended(made["id"])
    assert done["status"] == "Completed"
    assert done["finished_at"] is not None

    runs = await traced.client.runs(made["id"])
    days = [(run["start_time"], run["end_time"]) for run in runs]
    assert days[0][0] == "2026-01-05T00:00:00+00:00"
    assert days[-1][1] == "2026-01-09T12:00:00+00:00"
    assert all(before[1] == after[0] for before, after in pairwise(days))
    folder = f"{BUCKET}/t/{traced.tenant_id}/export_id={made['id']}/tenant_id={traced.tenant_id}"
    for run in runs:
        result = run["metadata"]["result"]
        day = datetime.fromisoformat(run["start_time"])
        path = f"{folder}/session_id={traced.session_id}/resource=runs/year=2026/month=1/day={day.day}"
        assert result["export_path"] == path
        names = [f"{path}/part-{number:05}-{run['id']}.parquet" for number in range(len(result["exported_files"]))]
        assert result["exported_files"] == names
        assert result["pending_upload"] is None
        assert (run["status"], run["retry_number"], run["errors"]) == ("Completed", 0, None)
        assert run["metadata"]["prefix"] == f"t/{traced.tenant_id}"
        assert (await traced.client.get(f"/{made['id']}/runs/{run['id']}")).json() == run
    assert len(runs[0]["metadata"]["result"]["exported_files"]) > 1

    until = datetime(2026, 1, 9, 12, tzinfo=UTC)
    expected = {str(run.id) for run in traced.runs if run.start_time < until}
    rows = await rows_in(bucket, runs)
    assert Counter(row["id"] for row in rows) == Counter(expected)
    assert sum(run["metadata"]["result"]["rows_written"] for run in runs) == len(expected)

    manifest = json.loads(await bucket.get(done["manifest"].partition("/")[2]))
    assert manifest["rows"] == len(expected)
    assert [file["path"] for file in manifest["files"]] == [
        path for run in runs for path in run["metadata"]["result"]["exported_files"]
    ]
    proof = (await traced.client.post(f"/{made['id']}/verify", None)).json()
    assert (proof["verified"], proof["differences"], proof["stale"]) == (True, [], [])


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "zstandard"])
async def test_the_default_is_v1_and_every_compression_is_what_it_says(platform, clickhouse, s3, bucket, compression):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=10)
    made = await traced.export(compression=compression, export_fields=["total_tokens", "id", "tags", "start_time"])
    assert made["format_version"] == "v1"
    assert made["export_fields"] == ["total_tokens", "id", "tags", "start_time"]
    assert (await traced.client.ended(made["id"]))["status"] == "Completed"
    [path] = (await traced.client.runs(made["id"]))[0]["metadata"]["result"]["exported_files"]
    assert "/runs/year=2026/" in path
    file = pq.ParquetFile(io.BytesIO(await bucket.get(path.partition("/")[2])))
    assert file.schema_arrow.names == ["id", "start_time", "tags", "total_tokens"]
    codec = {"none": "UNCOMPRESSED", "zstandard": "ZSTD"}.get(compression, compression.upper())
    assert file.metadata.row_group(0).column(0).compression == codec


async def test_a_filter_and_an_empty_day_are_exported_as_ordered(platform, clickhouse, s3, bucket):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=60)
    made = await traced.export(
        "2026-01-04T00:00:00Z", filter='and(eq(run_type, "llm"), gt(total_tokens, 4))', export_fields=["id"]
    )
    assert (await traced.client.ended(made["id"]))["status"] == "Completed"
    runs = await traced.client.runs(made["id"])
    empty = runs[0]["metadata"]["result"]
    assert (empty["rows_written"], empty["exported_files"], runs[0]["status"]) == (0, [], "Completed")
    found = {row["id"] for row in await rows_in(bucket, runs)}
    own = {str(run.id) for run in traced.runs if run.run_type == "llm" and (run.total_tokens or 0) > 4}
    assert own <= found
    assert all(run.run_type == "llm" for run in traced.runs if str(run.id) in found)


async def test_what_makes_no_sense_or_is_not_the_callers_is_refused(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    stranger = await Traced(idle, s3).prepare(clickhouse, traces=1)
    body = {
        "bulk_export_destination_id": traced.destination_id,
        "session_id": str(traced.session_id),
        "start_time": START,
        "end_time": END,
    }

    async def status(**changes):
        answer = await traced.client.post("", {**body, **changes})
        if answer.status_code == 422:
            assert all(set(item) == {"loc", "msg", "type"} for item in answer.json()["detail"])
        return answer.status_code

    assert await status() == 200
    assert await status(interval_hours=1) == 422
    assert await status(interval_hours=0, end_time=None) == 422
    assert await status(interval_hours=169, end_time=None) == 422
    assert await status(end_time=START) == 422
    assert await status(export_fields=["id", "nonsense"]) == 422
    assert await status(filter="eq(") == 422
    assert await status(filter='eq(nonsense, "x")') == 422
    assert await status(unknown=1) == 422
    assert await status(start_time="1990-01-01", end_time="2020-01-01") == 422  # more days than one export may have
    assert await status(bulk_export_destination_id=stranger.destination_id) == 404
    assert await status(bulk_export_destination_id=str(uuid4())) == 404
    idle.projects.denied.add(stranger.session_id)
    assert await status(session_id=str(stranger.session_id)) == 404
    assert await status(webhook={"url": "ftp://example.com"}) == 422

    made = (await traced.client.get("", limit=1)).json()[0]
    run = (await traced.client.runs(made["id"]))[0]
    for path in (f"/{made['id']}", f"/{made['id']}/runs", f"/{made['id']}/runs/{run['id']}"):
        assert (await stranger.client.get(path)).status_code == 404
    assert (await stranger.client.patch(f"/{made['id']}", {"status": "Cancelled"})).status_code == 404
    assert (await stranger.client.post(f"/{made['id']}/verify", None)).status_code == 404
    assert (await stranger.client.get("/runs", source_bulk_export_id=made["id"])).status_code == 404
    assert (await traced.client.get(f"/{made['id']}/runs/{uuid4()}")).status_code == 404
    assert (await traced.client.get("/runs")).status_code == 422
    assert (await traced.client.get("/not-an-id")).status_code == 422
    assert (await traced.client.get("", limit=0)).status_code == 422
    assert (await traced.client.patch(f"/{made['id']}", {"status": "Running"})).status_code == 422


async def test_what_is_wrong_in_the_path_or_the_query_is_named_there(idle, s3, clickhouse):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    for path, place in (
        (f"/{uuid7()}x", ["path", "bulk_export_id"]),
        ("/destinations/x", ["path", "destination_id"]),
        (f"/{uuid7()}/runs/x", ["path", "run_id"]),
        ("/runs", ["query", "source_bulk_export_id"]),
    ):
        answer = await traced.client.get(path)
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, place)
    for path, name in (("", "limit"), ("/runs", "source_bulk_export_id")):
        answer = await traced.client.get(path, **{name: "x"})
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["query", name])


async def test_an_export_that_ends_in_the_future_says_so(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    now = datetime.now(UTC)
    start, end = ((now + timedelta(days=days)).isoformat() for days in (-1, 1))
    made = await traced.export(start, end)
    [warning] = made["warnings"]
    assert "end_time" in warning
    assert "in the future" in warning
    assert (await traced.client.get(f"/{made['id']}")).json()["warnings"] == [warning]
    assert (await traced.export(start, end, dry_run=True))["warnings"] == [warning]
    assert (await traced.export(start, now.isoformat()))["warnings"] == []
    assert (await traced.export(start, None, interval_hours=1))["warnings"] == []


async def test_lists_honour_limit_and_offset_newest_first(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    made = [(await traced.export())["id"] for _ in range(5)]
    assert [each["id"] for each in (await traced.client.get("")).json()] == made[::-1]
    assert [each["id"] for each in (await traced.client.get("", limit=2, offset=1)).json()] == made[::-1][1:3]
    assert (await traced.client.get("", limit=1000, offset=5)).json() == []
    runs = await traced.client.runs(made[0])
    assert (await traced.client.get(f"/{made[0]}/runs", limit=2, offset=3)).json() == runs[3:5]


async def test_cancelling_ends_an_export_once_and_for_all(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    made = await traced.export()
    cancelled = (await traced.client.patch(f"/{made['id']}", {"status": "CANCELLED"})).json()
    assert cancelled["status"] == "Cancelled"
    assert cancelled["finished_at"] is not None
    assert {run["status"] for run in await traced.client.runs(made["id"])} == {"Cancelled"}
    again = await traced.client.patch(f"/{made['id']}", {})
    assert (again.status_code, again.json()) == (200, cancelled)
    done = await traced.export()
    await idle.postgres.execute("UPDATE exports SET status = 'Completed' WHERE id = %s", (done["id"],))
    assert (await traced.client.patch(f"/{done['id']}", {"status": "Cancelled"})).status_code == 400


async def test_a_schedule_is_scheduled_until_it_is_cancelled(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=1)
    made = await traced.export(START, None, interval_hours=6)
    assert (made["status"], made["interval_hours"], made["end_time"]) == ("IntervalScheduled", 6, None)
    assert await traced.client.runs(made["id"]) == []
    assert (await traced.client.get("/runs", source_bulk_export_id=made["id"])).json() == []
    cancelled = (await traced.client.patch(f"/{made['id']}", {"status": "Cancelled"})).json()
    assert cancelled["status"] == "Cancelled"


async def test_a_schedule_that_is_behind_spawns_exports_that_complete(platform, clickhouse, s3):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=10)
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=7, minutes=11)
    made = await traced.export(since.isoformat(), None, interval_hours=3)
    exports = []
    async with asyncio.timeout(30):
        while len(exports) < 2 or any(export["status"] != "Completed" for export in exports):
            listed = (await traced.client.get("")).json()
            exports = [export for export in listed if export["source_bulk_export_id"] == made["id"]]
            await asyncio.sleep(0.05)
    assert len(exports) == 2
    runs = (await traced.client.get("/runs", source_bulk_export_id=made["id"])).json()
    assert {run["bulk_export_id"] for run in runs} == {export["id"] for export in exports}
    await traced.client.patch(f"/{made['id']}", {"status": "Cancelled"})


async def test_a_dry_run_counts_and_makes_nothing(idle, clickhouse, s3):
    traced = await Traced(idle, s3).prepare(clickhouse, traces=50)
    estimate = await traced.export(dry_run=True)
    until = datetime(2026, 1, 9, 12, tzinfo=UTC)
    assert estimate["dry_run"] is True
    assert estimate["rows"] == sum(run.start_time < until for run in traced.runs)
    assert estimate["export_runs"] == len(estimate["partitions"]) == 5
    assert (await traced.client.get("")).json() == []


async def test_only_days_that_changed_since_are_exported_again(platform, clickhouse, s3, bucket):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=80)
    first = await traced.client.ended((await traced.export())["id"])
    late = make_run(
        start_time=SINCE + timedelta(days=2, hours=3), tenant_id=traced.tenant_id, session_id=traced.session_id
    )
    await insert_runs(clickhouse, [late])
    proof = (await traced.client.post(f"/{first['id']}/verify", None)).json()
    assert proof["verified"] is True
    assert [(day["start_time"][:10], day["rows"]) for day in proof["stale"]] == [("2026-01-07", 1)]
    second = await traced.export(changed_since=first["cutoff_at"])
    assert (await traced.client.ended(second["id"]))["status"] == "Completed"
    [run] = await traced.client.runs(second["id"])
    assert run["start_time"] == "2026-01-07T00:00:00+00:00"
    assert str(late.id) in {row["id"] for row in await rows_in(bucket, [run])}


async def test_all_experiments_are_exported_each_to_its_folder(platform, clickhouse, s3):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=1)
    platform.projects.of_experiments = [traced.session_id, uuid4()]
    body = {
        "bulk_export_destination_id": traced.destination_id,
        "all_experiments": True,
        "start_time": START,
        "end_time": "2026-01-06T00:00:00Z",
    }
    made = (await traced.client.post("", body)).json()
    assert (made["all_experiments"], made["session_id"]) == (True, None)
    assert (await traced.client.ended(made["id"]))["status"] == "Completed"
    runs = await traced.client.runs(made["id"])
    assert {UUID(run["session_id"]) for run in runs} == set(platform.projects.of_experiments)
    platform.projects.of_experiments = []
    nothing = (await traced.client.post("", body)).json()
    done = await traced.client.ended(nothing["id"])
    assert (done["status"], await traced.client.runs(nothing["id"])) == ("Completed", [])
    assert done["manifest"] is not None


async def test_an_unfinished_or_changed_export_does_not_verify(platform, clickhouse, s3, bucket):
    traced = await Traced(platform, s3).prepare(clickhouse, traces=80)
    made = await traced.export(format_version="v2_beta")
    await traced.client.ended(made["id"])
    files = [
        path.partition("/")[2]
        for run in await traced.client.runs(made["id"])
        for path in run["metadata"]["result"]["exported_files"]
    ]
    whole = await bucket.get(files[1])
    await bucket.delete([files[0]])
    await bucket.put(files[1], whole[:-1] + b"?")
    await bucket.put(files[2], b"short")
    await bucket.put(files[3].rpartition("/")[0] + "/stranger.parquet", b"x")
    proof = (await traced.client.post(f"/{made['id']}/verify", None)).json()
    assert proof["verified"] is False
    assert sorted(each["problem"] for each in proof["differences"]) == ["checksum", "missing", "size", "unexpected"]
    await bucket.delete([f"t/{traced.tenant_id}/_manifests/export_id={made['id']}.json"])
    proof = (await traced.client.post(f"/{made['id']}/verify", None)).json()
    assert proof["differences"][0]["file"].endswith(f"_manifests/export_id={made['id']}.json")
    cancelled = await traced.export()
    await traced.client.patch(f"/{cancelled['id']}", {})
    assert (await traced.client.post(f"/{cancelled['id']}/verify", None)).status_code == 400


async def test_the_end_is_told_to_a_webhook_with_a_signature(platform, clickhouse, s3):
    async def listen(reader, writer):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        received.append((headers, body))
        status = 500 if len(received) == 1 else 204  # the first attempt fails, so there is a second
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        writer.close()
        if status == 204:
            told.set()

    received, told = [], asyncio.Event()
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    traced = await Traced(platform, s3).prepare(clickhouse, traces=3)
    made = await traced.export(webhook={"url": f"http://localhost:{port}/hook"})
    secret = made["webhook_secret"]
    assert secret.startswith("whsec_")
    await asyncio.wait_for(told.wait(), 30)
    headers, body = received[1]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    data = json.loads(body)["data"]
    assert (data["id"], data["status"]) == (made["id"], "Completed")
    again = (await traced.client.get(f"/{made['id']}")).json()
    assert "webhook_secret" not in again
    assert again["webhook_url"].endswith("/hook")
    server.close()


async def test_a_part_is_made_smaller_when_the_engine_lacks_the_memory_for_it(
    platform_conninfo, clickhouse_url, clickhouse, s3, bucket, tmp_path, monkeypatch
):
    settings = exported_runs._settings
    monkeypatch.setattr(exported_runs, "_settings", lambda *about: f"{settings(*about)}, max_memory_usage = 130000000")
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, part_bytes_max=2**28) as platform:
        traced = await Traced(platform, s3).prepare(clickhouse, traces=0)
        where = {"tenant_id": traced.tenant_id, "session_id": traced.session_id}
        runs = [
            make_run(
                start_time=SINCE + timedelta(seconds=number), inputs={"text": random.randbytes(250_000).hex()}, **where
            )
            for number in range(120)
        ]
        for start in range(0, len(runs), 10):
            await insert_runs(clickhouse, runs[start : start + 10])
        made = await traced.export(end="2026-01-06T00:00:00Z", export_fields=["id", "inputs"])
        assert (await traced.client.ended(made["id"]))["status"] == "Completed"
        [run] = await traced.client.runs(made["id"])
        assert run["retry_number"] == 0
        assert len(run["metadata"]["result"]["exported_files"]) > 1
        assert {row["id"] for row in await rows_in(bucket, [run])} == {str(each.id) for each in runs}
