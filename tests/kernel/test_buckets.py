"""The installation's own bucket: one class for any storage. tests/exports covers what destinations add."""

import os
from pathlib import Path

import pytest

from moorage.kernel.buckets import bucket as bucket_module
from moorage.kernel.buckets.bucket import Bucket, ObjectFacts, directory_bucket, url_bucket
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.errors import BadRequestError

KEY = "a/b c/ä=1.txt"


@pytest.fixture(params=["directory", "file", "memory"])
def bucket(request, tmp_path) -> Bucket:
    if request.param == "directory":
        return directory_bucket(tmp_path / "deep" / "bucket")
    return url_bucket("memory:///" if request.param == "memory" else f"file://{tmp_path}/bucket")


async def listed(bucket, prefix):
    return sorted([found.key async for found in bucket.list(prefix)])


async def test_what_was_put_comes_back(bucket):
    assert (await bucket.put(KEY, b"data")).size_bytes == 4
    assert await bucket.get(KEY) == b"data"
    assert b"".join([piece async for piece in bucket.stream(KEY)]) == b"data"
    facts = await bucket.head(KEY)
    assert (facts.key, facts.size_bytes) == (KEY, 4)
    await bucket.put(KEY, b"")
    assert await bucket.get(KEY) == b""


async def test_what_is_not_there_is_nothing(bucket):
    assert await bucket.get("none") is None
    assert await bucket.head("none") is None
    assert [piece async for piece in bucket.stream("none")] == []
    await bucket.delete(["none", "none/either"])
    assert await listed(bucket, "none/") == []


async def test_objects_are_listed_and_deleted_by_prefix(bucket):
    for key in ("a/1", "a/2/3", "ab/4", "b/5"):
        await bucket.put(key, b"x")
    assert await listed(bucket, "a/") == ["a/1", "a/2/3"]
    await bucket.delete(["a/1", "a/2/3"])
    assert await listed(bucket, "a/") == []
    assert await bucket.get("ab/4") == b"x"


async def test_a_file_is_put_in_pieces(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket_module, "CHUNK_BYTES", 6 * 2**20)
    for size in (10, 13 * 2**20):
        data = os.urandom(1024) * (size // 1024 + 1)
        (tmp_path / "file").write_bytes(data)
        assert await bucket.put_file("file", tmp_path / "file") == ObjectFacts(
            "file", len(data), (await bucket.head("file")).etag
        )
        assert await bucket.get("file") == data


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        "a/",
        "..",
        "a/../../b",
        "./a",
        "a/.",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "x" * 1025,
        "ä" * 600,
    ],
)
async def test_a_key_that_could_mean_another_place_is_refused(bucket, key):
    for call in (bucket.put(key, b""), bucket.get(key), bucket.head(key), bucket.delete([key])):
        with pytest.raises(BadRequestError):
            await call


async def test_what_lies_in_a_directory_is_on_the_disk_when_it_is_acknowledged(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def noted(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(bucket_module.os, "fsync", noted)
    bucket = directory_bucket(tmp_path / "bucket")
    await bucket.put("a/b", b"x")
    root = str(tmp_path / "bucket")
    assert synced == [f"{root}/a/b", f"{root}/a", root]


async def test_a_disk_that_fails_is_told_without_its_paths(tmp_path):
    (tmp_path / "bucket").mkdir()
    bucket = directory_bucket(tmp_path / "bucket")
    await bucket.put("a", b"x")
    with pytest.raises(BucketError) as failed:
        await bucket.put("a/b", b"x")  # a is no folder
    assert failed.value.fault is BucketFault.TRANSIENT
    assert failed.value.status == 503
    assert str(tmp_path) not in str(failed.value)
