"""Faults that must not change the files of an export: killed workers, and a store that fails in every way it can."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict

from moorage.kernel.buckets.faults import BucketError
from moorage.kernel.buckets.s3 import S3Address, s3_bucket
from moorage.kernel.crypto import MasterKeys
from tests.exports.platform import QUICK, make_platform
from tests.exports.proxy import Fault, proxy_of
from tests.exports.seaweed import ADMIN, BUCKET, EXPORTER
from tests.exports.worker_process import WorkerProcess
from tests.faults.full_disk import can_mount, fill, small_file_system
from tests.traces.trace_data import insert_runs, random_runs
from tests.waiting import until

pytest_plugins = "tests.exports.fixtures"

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
START, END = "2026-01-05T00:00:00Z", "2026-01-08T00:00:00Z"
PART_BYTES = 20_000
SECRET = os.urandom(32)


@pytest.fixture(scope="module")
def traced():
    """Create one project for all tests. Every disturbed export must equal its undisturbed one."""
    return random_runs(5, 72, uuid4(), uuid4(), SINCE)


@pytest.fixture
async def runs(traced, clickhouse):
    if not await clickhouse.value("SELECT 1 FROM trace_run_rows LIMIT 1"):
        await insert_runs(clickhouse, traced)
    return traced


@pytest.fixture
def make(platform_conninfo, clickhouse_url, tmp_path):
    def make(works, **changed):
        keys = MasterKeys([SECRET])
        where = (platform_conninfo, clickhouse_url, tmp_path)
        return make_platform(*where, works=works, keys=keys, part_bytes_max=PART_BYTES, **changed)

    return make


@pytest.fixture
def worker_process(platform_conninfo, clickhouse_url, folder):
    """Return a function that makes a process that only works on exports, with its own options."""
    where = {
        "conninfo": platform_conninfo,
        "clickhouse_url": clickhouse_url,
        "folder": str(folder),
        "secret": SECRET.hex(),
    }

    def make(*, file_bytes_max=None, **options):
        return WorkerProcess(
            **where, options={**QUICK, "part_bytes_max": PART_BYTES, **options}, file_bytes_max=file_bytes_max
        )

    return make


@pytest.fixture
async def platform(make, runs):
    """Start a platform that accepts orders; the test starts its workers."""
    async with make(works=False) as platform:
        key, _ = platform.keys.add()
        # The client of the workspace that the runs belong to.
        caller = platform.keys.callers[key]
        platform.keys.callers[key] = type(caller)(runs[0].tenant_id, caller.plan, caller.scopes, caller.actor)
        platform.caller = platform.client(key)
        platform.session_id = runs[0].session_id
        yield platform
        await platform.parts.stop()


@pytest.fixture
async def proxy(s3):
    async with proxy_of(s3) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3):
    address = S3Address(BUCKET, endpoint_url=s3.url)
    return s3_bucket(address, EXPORTER.lend, patience_s=2)


async def order(platform, url, *, signs_payload=True, bucket_name=BUCKET, key=EXPORTER, **more):
    config = {"bucket_name": bucket_name, "prefix": uuid4().hex, "endpoint_url": url}
    if not signs_payload:
        config["config_kwargs_s3"] = {"payload_signing_enabled": False}
    destination_id = await platform.caller.make_destination(config, key.as_credentials())
    made = await platform.caller.make_export(
        destination_id, platform.session_id, START, END, format_version="v2_beta", **more
    )
    return made["id"], destination_id


async def files_of(platform, bucket, export_id):
    """Return day, number and digest of each file in the bucket. These must be the files that the runs name."""
    found, named = {}, set()
    for run in await platform.caller.runs(export_id):
        for number, path in enumerate(run["metadata"]["result"]["exported_files"]):
            key = path.partition("/")[2]
            named.add(key)
            data = await bucket.get(key)
            found[run["start_time"], number] = hashlib.sha256(data).hexdigest() if data else None
    prefix = key.partition("/")[0]
    assert {facts.key async for facts in bucket.list(f"{prefix}/export_id={export_id}/")} == named
    return found


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
async def undisturbed(platform, make, s3, bucket, known):
    """Return the files of an undisturbed export, made once by workers that then end."""
    if not known:
        export_id, _ = await order(platform, s3.url)
        async with make(works=True):
            assert (await platform.caller.ended(export_id))["status"] == "Completed"
        known.update(await files_of(platform, bucket, export_id))
        assert len(known) >= 9
    return known


# The export cannot end before it was disturbed.
ALL_BUT_TWO = dict.fromkeys(range(3, 1000), Fault.SLOW_DOWN)


def uploads(faults, counted=None):
    """Return a plan that decides by number what happens to the uploads of parts."""
    counted = [] if counted is None else counted

    def plan(method, path):
        if method != "PUT" or "/part-" not in path:
            return None
        counted.append(path)
        return faults.get(len(counted))

    return plan


async def test_a_store_that_fails_in_every_way_for_a_while_gets_the_same_files(platform, undisturbed, proxy, bucket):
    export_id, _ = await order(platform, proxy.url)
    faults = {1: Fault.ERROR, 3: Fault.SLOW_DOWN, 4: Fault.SLOW_DOWN, 6: Fault.CLOSE, 8: Fault.DROP, 10: Fault.LOSE}
    proxy.plan = uploads({**faults, 13: Fault.LOSE, 15: Fault.HANG})
    platform.parts.start()
    done = await platform.caller.ended(export_id)
    assert done["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    written = [path for method, path in proxy.requests if method == "PUT"]
    assert "/_manifests/" in written[-1]
    assert not any("/_manifests/" in path for path in written[:-1])
    runs = await platform.caller.runs(export_id)
    # A request that the client retries costs no attempt. A silence as long as the client waits costs one, and so does
    # an object that is gone after its upload.
    assert sorted(text for run in runs for text in (run["errors"] or {}).values()) == [
        "The store failed (an uploaded file is not there, or not whole)",
        "The store failed (an uploaded file is not there, or not whole)",
        "The store failed (no complete answer)",
    ]
    assert (await platform.caller.post(f"/{export_id}/verify", None)).json()["verified"] is True


async def test_a_store_that_fails_for_longer_uses_up_attempts_until_it_is_back(platform, undisturbed, proxy, bucket):
    export_id, _ = await order(platform, proxy.url)
    proxy.plan = uploads(dict.fromkeys(range(2, 30), Fault.SLOW_DOWN))
    platform.parts.start()

    async def tried_again():
        return any(run["retry_number"] for run in await platform.caller.runs(export_id))

    await until(tried_again)
    proxy.plan = uploads({})
    assert (await platform.caller.ended(export_id))["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    for run in await platform.caller.runs(export_id):
        assert set(run["errors"] or {}) == {f"retry_{number}" for number in range(run["retry_number"])}


@pytest.mark.parametrize("signs_payload", [True, False], ids=["signed", "not signed"])
@pytest.mark.parametrize("md5_etags", [True, False], ids=["MD5 as ETag", "no MD5"])
async def test_a_byte_that_changes_on_the_way_is_seen_whether_payloads_are_signed_or_not(
    platform, undisturbed, proxy, bucket, signs_payload, md5_etags
):
    export_id, destination_id = await order(platform, proxy.url, signs_payload=signs_payload)
    if not md5_etags:  # as if the store encrypted, since its ETags are no checksums then
        without = """UPDATE export_destinations SET permissions = permissions || '{"md5_etags": false}' WHERE id = %s"""
        await platform.postgres.execute(without, (destination_id,))
    proxy.plan = uploads({2: Fault.CHANGE, 5: Fault.CHANGE})
    platform.parts.start()
    assert (await platform.caller.ended(export_id))["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    runs = await platform.caller.runs(export_id)
    assert sum(run["retry_number"] for run in runs) == 2, [run["errors"] for run in runs]


async def test_a_byte_of_a_piece_of_a_large_file_that_is_not_signed_is_seen(proxy, s3, tmp_path):
    address = S3Address(BUCKET, endpoint_url=proxy.url, signs_payload=False, checks_md5=True)
    bucket, file = s3_bucket(address, EXPORTER.lend, patience_s=5), tmp_path / "large"
    file.write_bytes(os.urandom(20 * 2**20))
    await bucket.put_file("large", file)
    proxy.plan = lambda method, path: Fault.CHANGE if method == "PUT" and "partNumber=2" in path else None
    with pytest.raises(BucketError, match="something else than was sent"):
        await bucket.put_file("large", file)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.DENIED, "Access denied"),
        (Fault.NO_BUCKET, "Bucket is not valid"),
        (Fault.REVOKED, "Key ID you provided does not exist"),
    ],
)
async def test_what_only_people_can_put_right_fails_the_export_at_once(platform, proxy, fault, text):
    export_id, _ = await order(platform, proxy.url)
    proxy.plan = uploads(dict.fromkeys(range(4, 99), fault))
    platform.parts.start()
    done = await platform.caller.ended(export_id)
    assert done["status"] == "Failed"
    assert text in done["error"]
    runs = await platform.caller.runs(export_id)
    failed = [run for run in runs if run["status"] == "Failed"]
    assert [run["errors"] for run in failed] == [{"retry_0": text}]
    assert {run["status"] for run in runs} <= {"Failed", "Cancelled", "Completed"}


async def test_an_export_whose_bucket_is_deleted_on_the_way_fails_at_once(platform, proxy, s3):
    name = f"deleted-{uuid4().hex}"
    s3.make_bucket(name)
    export_id, _ = await order(platform, proxy.url, bucket_name=name, key=ADMIN)
    proxy.plan = uploads(ALL_BUT_TWO)
    platform.parts.start()

    async def two_are_written():
        results = [run["metadata"]["result"] for run in await platform.caller.runs(export_id)]
        return sum(len(result["exported_files"]) for result in results if result) == 2

    await until(two_are_written)  # a request under way would create the bucket again
    await asyncio.to_thread(s3.remove, name)
    proxy.plan = uploads({})
    done = await platform.caller.ended(export_id)
    assert done["status"] == "Failed"
    assert "Bucket is not valid" in done["error"]


async def test_how_far_a_run_is_can_be_seen_while_it_is_at_work_and_one_that_takes_too_long_is_tried_again(
    make, platform, undisturbed, proxy, bucket
):
    export_id, _ = await order(platform, proxy.url)
    hung = set()

    def third_file_of_each_run_once(method, path):
        if method != "PUT" or "/part-00002-" not in path or path in hung:
            return None
        hung.add(path)
        return Fault.HANG

    proxy.plan = third_file_of_each_run_once

    def hangs(run):
        result = run["metadata"]["result"]
        return run["status"] == "Running" and result and result["exported_files"] and result["pending_upload"]

    seen = []

    async def look():
        seen.extend(run for run in await platform.caller.runs(export_id) if hangs(run))
        return seen

    async with make(works=True, run_timeout_s=2.0, bucket_patience_s=10.0):
        await until(look)
        result = seen[0]["metadata"]["result"]
        assert result["rows_written"] > 0
        assert result["latest_cursor"] < result["pending_upload"]["target_cursor"]
        assert result["pending_upload"]["file_path"] not in result["exported_files"]
        assert (await platform.caller.ended(export_id))["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    texts = {text for run in await platform.caller.runs(export_id) for text in (run["errors"] or {}).values()}
    assert texts == {"The run took longer than a run may take"}


async def test_an_export_whose_destination_is_deleted_on_the_way_fails_at_once(platform, proxy):
    export_id, destination_id = await order(platform, proxy.url)
    counted = []
    proxy.plan = uploads(ALL_BUT_TWO, counted)
    platform.parts.start()
    await until(lambda: len(counted) >= 2)
    assert (await platform.caller.delete(f"/destinations/{destination_id}")).status_code == 204
    done = await platform.caller.ended(export_id)
    assert done["status"] == "Failed"
    assert "destination was deleted" in done["error"]


async def test_a_cancelled_export_stops_within_the_part_that_it_is_at(platform, proxy):
    export_id, _ = await order(platform, proxy.url)
    counted = []
    proxy.plan = uploads(dict.fromkeys(range(1, 99), Fault.HANG), counted)
    platform.parts.start()
    await until(lambda: counted)
    await platform.caller.patch(f"/{export_id}", {"status": "Cancelled"})
    await until(lambda: not platform.parts.runs._held)
    sent = len(counted)
    await asyncio.sleep(0.5)
    assert len(counted) == sent
    assert {run["status"] for run in await platform.caller.runs(export_id)} == {"Cancelled"}


async def test_workers_that_are_killed_at_random_leave_the_files_of_an_undisturbed_export(
    platform, undisturbed, proxy, bucket, worker_process
):
    random_ = random.Random(3)
    export_id, _ = await order(platform, proxy.url)
    with worker_process(slots=2, lease_s=1.0) as worker:
        for _ in range(4):
            proxy.requests.clear()
            await until(lambda: proxy.requests)  # the run is at work
            await asyncio.sleep(random_.random() * 0.1)
            worker.kill()
            worker.start()
        done = await platform.caller.ended(export_id)
    assert done["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    assert {run["retry_number"] for run in await platform.caller.runs(export_id)} == {0}


# A function for the current time that hides the system's own from all connections while the search path says so.
CLOCK = """
CREATE SCHEMA clock;
CREATE TABLE clock.jump (ahead interval NOT NULL);
INSERT INTO clock.jump VALUES ('0');
CREATE FUNCTION clock.now() RETURNS timestamptz STABLE LANGUAGE sql AS
    'SELECT pg_catalog.now() + (SELECT ahead FROM clock.jump)';
"""


@pytest.fixture
async def clock(platform, platform_conninfo):
    database = conninfo_to_dict(platform_conninfo)["dbname"]
    async with platform.postgres.connection() as connection:
        await connection.execute(CLOCK.encode())
        await connection.execute(f"ALTER DATABASE {database} SET search_path = clock, pg_catalog, public".encode())
    yield
    await platform.postgres.execute(f"ALTER DATABASE {database} RESET search_path")


async def test_a_clock_that_jumps_takes_leases_away_and_changes_no_file(
    platform, undisturbed, proxy, bucket, clock, worker_process
):
    export_id, _ = await order(platform, proxy.url)
    sent = []
    proxy.plan = uploads({1: Fault.HANG, 2: Fault.HANG}, sent)
    with worker_process(slots=1, lease_s=0.6), worker_process(slots=1, lease_s=0.6):
        await until(lambda: len(sent) > 1)  # both are at work, and stay so for a while
        for ahead in ("1 hour", "-2 hours", "30 hours", "0"):
            await platform.postgres.execute("UPDATE clock.jump SET ahead = %s::interval", (ahead,))
            await asyncio.sleep(0.4)
        assert (await platform.caller.ended(export_id))["status"] == "Completed"
    assert await files_of(platform, bucket, export_id) == undisturbed
    taken_away = "SELECT max(attempt - retry_number - 1) AS n FROM export_runs WHERE export_id = %s"
    assert (await platform.postgres.fetch_one(taken_away, (export_id,)))["n"] > 0


@pytest.mark.skipif(not can_mount(), reason="a small file system can be mounted by root only")
async def test_a_disk_without_a_byte_left_costs_attempts_until_there_is_space(
    make, platform, undisturbed, s3, bucket, tmp_path
):
    export_id, _ = await order(platform, s3.url)

    async def failed():
        return any(run["errors"] for run in await platform.caller.runs(export_id))

    with small_file_system(tmp_path / "small", 1) as small, (small / "filler").open("wb") as filler:
        fill(filler.fileno())
        async with make(works=True, spool=small):
            await until(failed)
            filler.truncate(0)
            assert (await platform.caller.ended(export_id))["status"] == "Completed"
    texts = {text for run in await platform.caller.runs(export_id) for text in (run["errors"] or {}).values()}
    assert texts == {"Writing failed: OSError (No space left on device)"}
    assert await files_of(platform, bucket, export_id) == undisturbed


async def test_a_full_disk_is_an_attempt_and_the_next_worker_goes_on(platform, undisturbed, s3, bucket, worker_process):
    export_id, _ = await order(platform, s3.url)
    with worker_process(file_bytes_max=10_000):

        async def failed():
            return any(run["errors"] for run in await platform.caller.runs(export_id))

        await until(failed)
    with worker_process():
        assert (await platform.caller.ended(export_id))["status"] == "Completed"
    errors = [text for run in await platform.caller.runs(export_id) for text in (run["errors"] or {}).values()]
    assert "Writing failed: OSError (File too large)" in errors
    assert await files_of(platform, bucket, export_id) == undisturbed
