"""Exports to Azure and Google Cloud, as far as they can be tested without an account.

Azure is its official emulator, which checks signatures. Google's storage accepts requests in the form of S3 with a
token; SeaweedFS without keys accepts those too. Nothing here issues such a token, so obtaining one is not tested.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from moorage.kernel.aws_signature import Credentials
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.buckets.clouds import azure_bucket, gcs_bucket
from moorage.kernel.buckets.s3 import Lent, S3Address, s3_bucket
from moorage.kernel.errors import BadRequestError
from tests.exports import azurite
from tests.exports.azurite import Azurite
from tests.exports.platform import make_platform
from tests.exports.seaweed import BUCKET, Seaweed
from tests.javascript import has_npm
from tests.traces.trace_data import insert_runs, random_runs

pytest_plugins = "tests.exports.fixtures"

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
START, END = "2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z"
ANOTHER_KEY = base64.b64encode(b"the key of another account").decode()
NO_TOKEN = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}


@dataclass(frozen=True)
class Cloud:
    kind: str
    config: dict[str, str]
    credentials: dict[str, str]
    bucket: Bucket
    tells_md5: bool

    def order(self, **config):
        config = {**self.config, **config}
        return {
            "display_name": "d",
            "destination_type": self.kind,
            "config": config,
            "credentials": self.credentials,
        }


def _azure(running):
    config = {"bucket_name": azurite.CONTAINER, "account_name": azurite.ACCOUNT, "endpoint_url": running.url}
    bucket = azure_bucket(azurite.CONTAINER, azurite.ACCOUNT, azurite.KEY, endpoint_url=running.url, patience_s=2)
    return Cloud("azure", config, {"account_key": azurite.KEY}, bucket, tells_md5=False)


def _gcs(running):
    # A key that names its own token address, where no server is. The address must not be asked.
    key = json.dumps({**NO_TOKEN, "gcs_base_url": "http://127.0.0.1:9"})
    config = {"bucket_name": BUCKET, "endpoint_url": running.url}
    bucket = gcs_bucket(BUCKET, key, endpoint_url=running.url, patience_s=2)
    return Cloud("gcs", config, {"service_account_key": key}, bucket, tells_md5=True)


@pytest.fixture(scope="module", params=["azure", "gcs"])
def cloud(request, tmp_path_factory):
    if request.param == "gcs":
        with Seaweed(has_keys=False) as running:
            yield _gcs(running)
        return
    if not has_npm:
        pytest.skip("needs Node.js and npm")
    with Azurite(request.config.cache, tmp_path_factory.mktemp("azurite")) as running:
        yield _azure(running)


@pytest.fixture
async def platform(platform_conninfo, clickhouse_url, clickhouse, tmp_path):
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, part_bytes_max=40_000) as platform:
        yield platform


async def keys_in(bucket, prefix):
    return {facts.key async for facts in bucket.list(f"{prefix}/")}


async def refusal_of(platform, order):
    client = platform.client(platform.keys.add()[0])
    refused = await client.post("/destinations", order)
    assert refused.status_code == 400, refused.text
    assert (await client.get("/destinations")).json() == []
    return refused.json()["detail"].partition(" destination: ")[2]


async def test_a_destination_is_tested_and_left_as_it_was_found(platform, cloud):
    client = platform.client(platform.keys.add()[0])
    made = await client.post("/destinations", cloud.order(prefix="some/where"))
    assert made.status_code == 200, made.text
    assert made.json()["credentials_keys"] == list(cloud.credentials)
    assert made.json()["permissions"] == {
        "put_object": True,
        "get_object": True,
        "delete_object": True,
        "abort_multipart_upload": None,
        "md5_etags": cloud.tells_md5,
        "sha256_checksums": False,
    }
    assert await keys_in(cloud.bucket, "some/where") == set()


async def test_a_bucket_that_is_not_there_is_refused(platform, cloud):
    assert await refusal_of(platform, cloud.order(bucket_name="absent")) == "Bucket is not valid"


async def test_a_key_that_the_store_does_not_know_is_refused(platform, cloud, s3):
    order = cloud.order()
    if cloud.kind == "azure":
        order["credentials"] = {"account_key": ANOTHER_KEY}
    else:
        order["config"]["endpoint_url"] = s3.url  # with keys, so that a request without a key is refused
    assert await refusal_of(platform, order) == "Access denied"


async def test_an_export_holds_every_run_and_verifies(platform, clickhouse, cloud):
    key, tenant_id = platform.keys.add()
    client, session_id, prefix = platform.client(key), uuid4(), f"t/{tenant_id}"
    runs = random_runs(1, 40, tenant_id, session_id, SINCE)
    await insert_runs(clickhouse, runs)
    order = cloud.order(prefix=prefix)
    destination_id = await client.make_destination(order["config"], order["credentials"], destination_type=cloud.kind)
    made = await client.make_export(destination_id, session_id, START, END, format_version="v2_beta")
    done = await client.ended(made["id"])
    assert done["status"] == "Completed", done
    files = [key for key in await keys_in(cloud.bucket, prefix) if key.endswith(".parquet")]
    rows = [row["id"] for key in files for row in pq.read_table(io.BytesIO(await cloud.bucket.get(key))).to_pylist()]
    assert sorted(rows) == sorted(str(run.id) for run in runs if run.start_time < datetime.fromisoformat(END))
    assert (await client.post(f"/{made['id']}/verify", None)).json()["verified"] is True

    await cloud.bucket.put(files[0], b"something else")
    assert (await client.post(f"/{made['id']}/verify", None)).json()["verified"] is False


async def test_a_file_that_is_sent_in_pieces_arrives_whole(cloud, tmp_path):
    content = bytes(range(256)) * 2**16 + b"and a last piece"
    (tmp_path / "large").write_bytes(content)
    put = await cloud.bucket.put_file("pieces/large", tmp_path / "large")
    assert await cloud.bucket.head("pieces/large") == put
    assert await cloud.bucket.get("pieces/large") == content


async def test_a_destination_is_asked_with_its_own_key_whatever_the_environment_holds(platform, cloud, monkeypatch):
    for name, value in {
        "AZURE_STORAGE_TOKEN": "of-the-installation",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
        "AZURE_SKIP_SIGNATURE": "true",
        "GOOGLE_BASE_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    client = platform.client(platform.keys.add()[0])
    assert (await client.post("/destinations", cloud.order())).status_code == 200


def _amazons(**options):
    address = S3Address("bucket", endpoint_url="http://127.0.0.1:9", **options)
    return s3_bucket(address, Lent(Credentials("id", "secret")), patience_s=1)


OPENED = {
    "GOOGLE_BEARER_TOKEN": lambda: gcs_bucket("bucket", json.dumps(NO_TOKEN), patience_s=1),
    "GOOGLE_SERVICE_ACCOUNT": lambda: gcs_bucket("bucket", json.dumps(NO_TOKEN), patience_s=1),
    "AZURE_STORAGE_ENCRYPTION_KEY": lambda: azure_bucket("bucket", "account", azurite.KEY, patience_s=1),
    "AWS_SERVER_SIDE_ENCRYPTION": _amazons,
    "AWS_CHECKSUM_ALGORITHM": _amazons,
}


@pytest.mark.parametrize("name", OPENED)
def test_what_the_environment_would_put_beside_a_key_is_refused(name, monkeypatch):
    OPENED[name]()
    monkeypatch.setenv(name, base64.b64encode(b"of-the-installation, 32 bytes...").decode())
    with pytest.raises(BadRequestError, match=name):
        OPENED[name]()


async def test_what_amazon_is_sent_is_not_of_the_environment(monkeypatch):
    """Rules of a destination override those of the environment."""
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        writer.close()

    for name, value in {
        "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
        "AWS_CHECKSUM_ALGORITHM": "crc64nvme",
        "AWS_REQUEST_PAYER": "true",
        "AWS_S3_EXPRESS": "true",
        "AWS_SESSION_TOKEN": "of-the-installation",
    }.items():
        monkeypatch.setenv(name, value)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = (("ServerSideEncryption", "AES256"),)
        address = S3Address("bucket", endpoint_url=endpoint, sends_sha256=True, put_options=options)
        await s3_bucket(address, Lent(Credentials("id", "secret")), patience_s=1).put("key", b"content")
    [sent] = asked
    assert b"x-amz-server-side-encryption: AES256" in sent
    assert b"x-amz-checksum-sha256: " in sent
    assert not [word for word in (b"kms", b"payer", b"token", b"crc64") if word in sent.lower()]
