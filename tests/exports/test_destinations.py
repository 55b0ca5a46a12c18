"""Destinations over HTTP, against a real S3 server: tested before they are made, and silent about their credentials."""

from __future__ import annotations

from ipaddress import ip_address
from uuid import uuid4

import pytest

from moorage.exports.destinations import DestinationRules, Destinations
from moorage.exports.records.destinations import DestinationType
from moorage.kernel.access import Plan, Scope
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
    """A store of destinations that nothing reaches: each of these is refused before."""


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


async def test_credentials_of_the_environment_are_lent_only_by_a_setting():
    told = await _refusal(_destinations(), {}, credentials=None)
    assert "MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS" in told


async def test_a_directory_needs_one_of_the_installation():
    told = await _refusal(_destinations(), {}, credentials=None, kind=DestinationType.LOCAL)
    assert "MOORAGE_EXPORT_DIRECTORY" in told


@pytest.mark.parametrize("beside", [True, False], ids=["beside config", "in config"])
async def test_a_role_is_refused_with_what_to_give_instead(client, s3, beside):
    role = {"aws_role_arn": "arn:aws:iam::123456789012:role/exports"}
    body = order(s3)
    body.update(role) if beside else body["config"].update(role)
    refused = await client.post("/destinations", body)
    assert refused.status_code == 400
    assert refused.json()["detail"].startswith("Failed to validate S3 destination: aws_role_arn is not supported")
    assert "session_token" in refused.json()["detail"]
    made = (await client.post("/destinations", order(s3))).json()
    assert (await client.patch(f"/destinations/{made['id']}", role)).status_code == 400
    assert (await client.get(f"/destinations/{made['id']}")).json() == made


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
