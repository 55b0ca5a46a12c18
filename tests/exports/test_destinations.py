"""Destinations over HTTP, against a real S3 server: tested before they are created, and silent
about their credentials.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from uuid import UUID, uuid4

import pytest

from moorage.exports import destinations
from moorage.exports.destinations import DestinationGoneError, DestinationRules, Destinations
from moorage.exports.records.destinations import DestinationType
from moorage.kernel.access import Plan, Scope
from moorage.kernel.buckets.faults import BucketError
from moorage.kernel.buckets.s3 import S3Address, endpoint_of, s3_bucket
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import BadRequestError
from tests.exports.platform import make_platform
from tests.exports.proxy import Fault, proxy_of
from tests.exports.seaweed import ADMIN, EXPORTER, READER, WRITER

pytest_plugins = "tests.exports.fixtures"


@pytest.fixture
async def platform(platform_conninfo, clickhouse_url, tmp_path):
    async with make_platform(platform_conninfo, clickhouse_url, tmp_path, works=False) as platform:
        yield platform


@pytest.fixture
def client(platform):
    return platform.client(platform.keys.add()[0])


def order(s3, key=EXPORTER, **config):
    config = {"bucket_name": "exports", "prefix": "some/where", "endpoint_url": s3.url, **config}
    return {"display_name": "Bucket", "config": config, "credentials": key.as_credentials() if key else None}


async def test_a_destination_is_tested_made_listed_and_never_tells_its_credentials(client, s3):
    made = await client.post("/destinations", order(s3))
    assert made.status_code == 200
    destination = made.json()
    assert destination["credentials_keys"] == ["access_key_id", "secret_access_key"]
    assert destination["destination_type"] == "s3"
    assert destination["config"]["prefix"] == "some/where"
    assert destination["permissions"] == {
        "put_object": True,
        "get_object": True,
        "delete_object": True,
        "abort_multipart_upload": True,
        "md5_etags": True,
        "sha256_checksums": True,
    }
    listed = await client.get("/destinations")
    assert listed.json() == [destination]
    assert (await client.get(f"/destinations/{destination['id']}")).json() == destination
    assert (await client.get("/destinations", limit=1, offset=1)).json() == []
    for answer in (made, listed):
        assert "export-secret" not in answer.text
        assert "export-key" not in answer.text


async def test_what_a_key_may_do_is_found_out(client, s3):
    made = await client.post("/destinations", order(s3, WRITER))
    found = made.json()["permissions"]
    assert (found["put_object"], found["get_object"]) == (True, False)


@pytest.mark.parametrize("may_delete", [True, False])
async def test_the_test_file_lies_below_tmp_and_goes_if_it_may(client, s3, may_delete):
    bucket = s3_bucket(S3Address("exports", endpoint_url=s3.url), EXPORTER.lend, patience_s=2)
    async with proxy_of(s3) as proxy:
        proxy.plan = lambda method, path: Fault.DENIED if method == "DELETE" and "uploadId" not in path else None
        made = await client.post(
            "/destinations", order(s3, endpoint_url=s3.url if may_delete else proxy.url, prefix=f"kept/{may_delete}")
        )
    assert made.json()["permissions"]["delete_object"] is may_delete
    left = [found.key async for found in bucket.list(f"kept/{may_delete}/")]
    assert [key.startswith(f"kept/{may_delete}/tmp/") for key in left] == [True] * (not may_delete)


async def test_a_store_that_does_not_take_checksums_is_sent_none(client, s3):
    async with proxy_of(s3) as proxy:
        proxy.plan = lambda _method, _path: Fault.NOT_TAKEN if "x-amz-checksum" in proxy.heads[-1] else None
        made = await client.post("/destinations", order(s3, endpoint_url=proxy.url))
    assert made.status_code == 200, made.text
    assert made.json()["permissions"]["sha256_checksums"] is False
    assert destinations._is_google("https://storage.googleapis.com/bucket"), "is not even asked"
    assert not destinations._is_google("https://googleapis.com.example.com")


async def test_credentials_of_the_environment_write_where_a_setting_lends_them(
    platform_conninfo, clickhouse_url, tmp_path, s3, monkeypatch
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", EXPORTER.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", EXPORTER.secret_access_key)
    for lends, status in ((False, 400), (True, 200)):
        async with make_platform(
            platform_conninfo, clickhouse_url, tmp_path, works=False, allow_environment_credentials=lends
        ) as platform:
            made = await platform.client(platform.keys.add()[0]).post("/destinations", order(s3, None))
        assert made.status_code == status, made.text
    assert made.json()["credentials_keys"] == []


async def test_what_a_destination_says_about_its_store_is_what_the_store_gets(client, s3):
    async with proxy_of(s3) as proxy:
        proxy.plan = lambda _method, _path: Fault.DENIED
        kwargs = {"ServerSideEncryption": "AES256", "BucketKeyEnabled": True}
        config = {"endpoint_url": proxy.url, "region": "eu-west-3", "s3_additional_kwargs": kwargs}
        config["config_kwargs_s3"] = {"addressing_style": "path", "payload_signing_enabled": False}
        await client.post("/destinations", order(s3, **config))
    put = next(head for head in proxy.heads if head.startswith("PUT /exports/some/where/tmp/"))
    assert "/eu-west-3/s3/aws4_request" in put
    assert "x-amz-server-side-encryption: AES256\r\n" in put
    assert "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n" in put


@pytest.mark.parametrize(
    ("address", "endpoint", "is_virtual"),
    [
        ({}, "https://b.s3.us-east-1.amazonaws.com", True),
        ({"region": "eu-west-1"}, "https://b.s3.eu-west-1.amazonaws.com", True),
        ({"region": "eu-west-1", "addressing": "path"}, "https://s3.eu-west-1.amazonaws.com", False),
        ({"bucket": "b.c"}, "https://s3.us-east-1.amazonaws.com", False),
        ({"legacy_global": True}, "https://b.s3.amazonaws.com", True),
        ({"legacy_global": True, "region": "eu-west-1"}, "https://b.s3.eu-west-1.amazonaws.com", True),
        ({"accelerate": True}, "https://b.s3-accelerate.amazonaws.com", True),
        ({"endpoint_url": "https://minio.example.com:9000"}, "https://minio.example.com:9000", False),
        ({"endpoint_url": "https://minio.example.com/b"}, "https://minio.example.com", False),
        ({"endpoint_url": "https://b.minio.example.com"}, "https://b.minio.example.com", True),
        ({"endpoint_url": "https://minio.example.com", "addressing": "virtual"}, "https://b.minio.example.com", True),
    ],
)
def test_the_address_of_a_bucket_is_the_one_that_its_options_make(address, endpoint, is_virtual):
    assert endpoint_of(S3Address(**{"bucket": "b", **address})) == (endpoint, is_virtual)


@pytest.mark.parametrize(
    ("key", "config", "text"),
    [
        (READER, {}, "Access denied"),
        (EXPORTER, {"bucket_name": "another"}, "Access denied"),
        (ADMIN, {"bucket_name": "nobodys"}, "Bucket is not valid"),
        (None, {}, "Key ID you provided does not exist"),
        (EXPORTER, {"endpoint_url": "http://127.0.0.1:1"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "http://no.such.host.invalid"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "ftp://127.0.0.1"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "http://[::1"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "http://user:pass@127.0.0.1"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "http://127.0.0.1.5:80"}, "Invalid endpoint"),
        (EXPORTER, {"endpoint_url": "http://not a host"}, "Invalid endpoint"),
        (EXPORTER, {"config_kwargs_s3": {"addressing_style": "virtual"}}, "Invalid endpoint"),
    ],
)
async def test_a_destination_that_cannot_be_written_is_refused_with_the_words_of_the_wire(
    client, s3, key, config, text
):
    body = order(s3, key or EXPORTER, **config)
    if key is None:
        body["credentials"]["access_key_id"] = "nobody"
    refused = await client.post("/destinations", body)
    assert refused.status_code == 400
    assert refused.json()["detail"] == f"Failed to validate S3 destination: {text}"


async def test_a_store_that_fails_is_told_with_its_own_code(client, s3):
    async with proxy_of(s3) as proxy:
        proxy.plan = lambda _method, _path: Fault.SLOW_DOWN
        refused = await client.post("/destinations", order(s3, endpoint_url=proxy.url))
    assert refused.json()["detail"] == "Failed to validate S3 destination: The store failed (503 SlowDown)"


async def test_new_credentials_are_tested_before_they_take_the_place_of_the_old(platform, client, s3):
    made = (await client.post("/destinations", order(s3))).json()
    path = f"/destinations/{made['id']}"
    refused = await client.patch(path, {"credentials": READER.as_credentials()})
    assert refused.status_code == 400
    assert refused.json()["detail"] == "Failed to validate S3 destination: Access denied"
    assert (await client.get(path)).json() == made
    changed = (await client.patch(path, {"credentials": {**WRITER.as_credentials(), "session_token": ""}})).json()
    assert changed["permissions"]["get_object"] is False
    assert changed["updated_at"] > made["updated_at"]
    assert (await client.patch(path, {})).status_code == 422
    assert (await client.patch(path, {"credentials": {"access_key_id": "only"}})).status_code == 422
    [row] = await platform.postgres.fetch("SELECT credentials FROM export_destinations WHERE id = %s", (made["id"],))
    assert b"writer-secret" not in row["credentials"]


async def test_a_destination_stays_open_until_something_of_it_changes(platform, s3):
    key, workspace_id = platform.keys.add()
    client, destinations = platform.client(key), platform.parts.room.destinations
    made = (await client.post("/destinations", order(s3))).json()
    opened = await destinations.open(workspace_id, UUID(made["id"]))
    assert await destinations.open(workspace_id, UUID(made["id"])) is opened
    await client.patch(f"/destinations/{made['id']}", {"credentials": WRITER.as_credentials()})
    changed = await destinations.open(workspace_id, UUID(made["id"]))
    assert changed is not opened
    with pytest.raises(BucketError):
        await changed.bucket.get("some/where/nothing")
    with pytest.raises(DestinationGoneError):
        await destinations.open(uuid4(), UUID(made["id"]))
    await client.delete(f"/destinations/{made['id']}")
    with pytest.raises(DestinationGoneError):
        await destinations.open(workspace_id, UUID(made["id"]))


async def test_deleting_a_destination_takes_its_credentials_along(platform, client, s3):
    made = (await client.post("/destinations", order(s3))).json()
    assert (await client.delete(f"/destinations/{made['id']}")).status_code == 204
    assert (await client.delete(f"/destinations/{made['id']}")).status_code == 404
    assert await platform.postgres.fetch("SELECT 1 FROM export_destinations WHERE id = %s", (made["id"],)) == []


async def test_a_directory_is_a_destination_where_the_installation_has_one(platform, client, tmp_path):
    body = {"display_name": "files", "destination_type": "local", "config": {"bucket_name": "runs", "prefix": "p"}}
    made = await client.post("/destinations", body)
    assert made.status_code == 200, made.text
    assert made.json()["permissions"]["get_object"] is True
    assert (tmp_path / "files" / made.json()["tenant_id"] / "runs").is_dir()


async def test_nobody_sees_or_changes_anothers_destination(platform, client, s3):
    made = (await client.post("/destinations", order(s3))).json()
    other = platform.client(platform.keys.add()[0])
    path = f"/destinations/{made['id']}"
    answers = [
        await other.get(path),
        await other.patch(path, {"credentials": EXPORTER.as_credentials()}),
        await other.delete(path),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert (await other.get("/destinations")).json() == []
    assert (await client.get(path)).status_code == 200


async def test_a_body_of_the_wrong_shape_is_told_field_by_field_without_values(client, s3):
    body = order(s3)
    body["credentials"]["secret_access_key"] = 17
    body["config"]["bucket_name"] = "x"
    answer = await client.post("/destinations", body)
    assert answer.status_code == 422
    items = answer.json()["detail"]
    assert {tuple(item["loc"]) for item in items} == {
        ("body", "credentials", "secret_access_key"),
        ("body", "config", "bucket_name"),
    }
    assert all(set(item) == {"loc", "msg", "type"} for item in items)
    assert "export-key" not in answer.text
    assert (await client.get("/destinations/not-an-id")).status_code == 422


async def test_the_plan_and_the_scopes_are_asked_on_every_route(platform, s3):
    free = platform.client(platform.keys.add(plan=Plan.DEVELOPER)[0])
    reader = platform.client(platform.keys.add(scopes=[Scope.BULK_EXPORTS_READ])[0])
    some = uuid4()
    calls = [
        ("GET", "/destinations"),
        ("GET", f"/destinations/{some}"),
        ("GET", ""),
        ("GET", f"/runs?source_bulk_export_id={some}"),
        ("GET", f"/{some}"),
        ("GET", f"/{some}/runs"),
        ("GET", f"/{some}/runs/{some}"),
        ("POST", f"/{some}/verify"),
        ("POST", "/destinations"),
        ("PATCH", f"/destinations/{some}"),
        ("DELETE", f"/destinations/{some}"),
        ("POST", ""),
        ("PATCH", f"/{some}"),
    ]
    for number, (method, path) in enumerate(calls):
        answer = await free.http.request(method, f"/api/v1/bulk-exports{path}", json={})
        assert answer.status_code == 403, (method, path)
        assert "plan" in answer.json()["detail"]
        answer = await reader.http.request(method, f"/api/v1/bulk-exports{path}", json={})
        assert (answer.status_code == 403) == (number > 7), (method, path)
        answer = await platform.client("nobody").http.request(method, f"/api/v1/bulk-exports{path}", json={})
        assert answer.status_code == 401


# --- what the installation allows -------------------------------------------------------------------------------------


class Elsewhere:
    """A store of destinations that must not be reached: each of these destinations is refused before."""


def _destinations(addresses=(), **rules):
    async def resolve(_):
        return [ip_address(address) for address in addresses]

    rules = {"allow_private_endpoints": False, "allow_environment_credentials": False, "local_root": None, **rules}
    return Destinations(Elsewhere(), MasterKeys([bytes(32)]), DestinationRules(**rules), resolve)


async def _refusal(destinations, config, credentials=EXPORTER, kind=DestinationType.S3):
    from moorage.exports.records.destinations import DestinationCreate
    from moorage.kernel.access import Caller

    new = DestinationCreate(
        display_name="d",
        destination_type=kind,
        config={"bucket_name": "bucket", **config},
        credentials=credentials and credentials.as_credentials(),
    )
    with pytest.raises(BadRequestError) as refused:
        await destinations.create(Caller(uuid4(), Plan.PLUS, frozenset(), "test"), new)
    return str(refused.value)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.7", "169.254.169.254", "192.168.1.1", "::1", "fd00::1", "::ffff:10.0.0.1", "100.64.0.1"],
)
async def test_an_endpoint_on_a_private_address_is_refused_unless_a_setting_allows_it(address):
    destinations = _destinations(["93.184.216.34", address])
    told = await _refusal(destinations, {"endpoint_url": "https://s3.example.com"})
    assert "private address" in told
    assert "MOORAGE_EXPORT_PRIVATE_ENDPOINTS" in told


async def test_the_host_with_the_buckets_name_is_checked_too():
    """A name may have public addresses while a name below it has private ones."""

    async def resolve(host):
        return [ip_address("127.0.0.1" if host == "bucket.s3.example.com" else "93.184.216.34")]

    rules = {"allow_private_endpoints": False, "allow_environment_credentials": False, "local_root": None}
    destinations = Destinations(Elsewhere(), MasterKeys([bytes(32)]), DestinationRules(**rules), resolve)
    config = {"endpoint_url": "http://s3.example.com:1", "config_kwargs_s3": {"addressing_style": "virtual"}}
    assert "private address" in await _refusal(destinations, config)


async def test_a_name_that_leads_elsewhere_after_its_check_is_not_followed():
    """The name is public when it is checked, and private when it is dialled."""
    asked = []

    async def resolve(host):
        asked.append(host)
        return [ip_address("93.184.216.34" if len(asked) == 1 else "127.0.0.1")]

    dialled = []

    async def accept(reader, writer):
        dialled.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    rules = {"allow_private_endpoints": False, "allow_environment_credentials": False, "local_root": None}
    destinations = Destinations(Elsewhere(), MasterKeys([bytes(32)]), DestinationRules(**rules), resolve)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await _refusal(destinations, {"endpoint_url": f"http://localhost:{port}"})
    assert len(asked) > 1
    assert dialled == []


async def test_credentials_of_the_environment_are_lent_only_by_a_setting():
    told = await _refusal(_destinations(), {}, credentials=None)
    assert "MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS" in told


@pytest.mark.parametrize("kind", [DestinationType.GCS, DestinationType.AZURE])
async def test_credentials_of_the_environment_are_not_sent_to_an_address_that_a_workspace_names(kind):
    destinations = _destinations(allow_private_endpoints=True, allow_environment_credentials=True)
    config = {"endpoint_url": "http://127.0.0.1:9", "account_name": "account"}
    told = await _refusal(destinations, config, credentials=None, kind=kind)
    assert "endpoint_url: this installation lends its credentials to the usual address alone" in told


async def test_a_directory_needs_one_of_the_installation():
    told = await _refusal(_destinations(), {}, credentials=None, kind=DestinationType.LOCAL)
    assert "MOORAGE_EXPORT_DIRECTORY" in told


@pytest.mark.parametrize(
    ("kind", "config", "credentials", "name"),
    [
        ("gcs", {}, {"service_account_key": "{}"}, "GCS"),
        ("gcs", {}, {"service_account_key": "no JSON"}, "GCS"),
        ("azure", {"account_name": "nobody"}, {"account_key": "no base64!"}, "Azure"),
    ],
    ids=["gcs without a key", "gcs with another text", "azure with another text"],
)
async def test_credentials_that_a_store_cannot_even_read_are_refused(client, kind, config, credentials, name):
    body = {"display_name": "d", "destination_type": kind, "config": {"bucket_name": "bucket", **config}}
    refused = await client.post("/destinations", {**body, "credentials": credentials})
    assert refused.status_code == 400, refused.text
    assert refused.json()["detail"] == f"Failed to validate {name} destination: Key ID you provided does not exist"
