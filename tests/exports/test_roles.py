"""Destinations with a role, which a real Security Token Service grants: that of the S3 server itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl
from uuid import uuid4

import pytest

from moorage.kernel import aws_roles
from moorage.kernel.aws_roles import AssumedRole, AwsRole, sts_url_of
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.errors import BadRequestError
from tests.exports.platform import make_platform
from tests.exports.proxy import Fault, proxy_of
from tests.exports.seaweed import BUCKET, EXPORTER, ROLE, TRUSTED
from tests.traces.trace_data import insert_runs, random_runs

pytest_plugins = "tests.exports.fixtures"


@pytest.fixture
async def proxy(s3):
    async with proxy_of(s3) as proxy:
        yield proxy


@pytest.fixture
def make(platform_conninfo, clickhouse_url, clickhouse, tmp_path):
    def make(**changed):
        return make_platform(platform_conninfo, clickhouse_url, tmp_path, **changed)

    return make


def order(url, key=TRUSTED, role=ROLE, **more):
    config = {"bucket_name": BUCKET, "prefix": uuid4().hex, "endpoint_url": url, "aws_role_arn": role}
    return {"display_name": "d", "config": config, "credentials": key and key.as_credentials(), **more}


def asked(proxy):
    """Return the requests to the service."""
    return [dict(parse_qsl(form)) for form in proxy.forms]


async def test_an_export_goes_where_only_its_role_may_write_and_asks_for_it_once(make, clickhouse, proxy, caplog):
    async with make() as platform:
        key, workspace_id = platform.keys.add()
        client, session_id = platform.client(key), uuid4()
        await insert_runs(clickhouse, random_runs(1, 72, workspace_id, session_id, datetime(2026, 1, 5, tzinfo=UTC)))
        refused = await client.post("/destinations", order(proxy.url, role=None))
        assert refused.json()["detail"] == "Failed to validate S3 destination: Access denied"
        made = await client.post("/destinations", order(proxy.url))
        assert made.status_code == 200, made.text
        assert all(made.json()["permissions"].values())
        tested = len(proxy.forms)
        export = await client.make_export(made.json()["id"], session_id, "2026-01-05", "2026-01-08")
        assert (await client.ended(export["id"]))["status"] == "Completed"
        assert len(proxy.forms) == tested + 1, "three runs and a manifest"
        assert (await client.post(f"/{export['id']}/verify", None)).json()["verified"] is True
    assert asked(proxy) == [
        {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": ROLE,
            "RoleSessionName": f"moorage-{workspace_id}",
            "ExternalId": str(workspace_id),
            "DurationSeconds": "3600",
        }
    ] * (tested + 1)
    signed = [head for head in proxy.heads if head.startswith("POST / ")]
    assert all("/us-east-1/sts/aws4_request" in head for head in signed)
    told = made.text + caplog.text
    assert "trusted-secret" not in told
    assert "ASIA" not in told


@pytest.mark.parametrize("beside", [True, False], ids=["beside config", "in config"])
async def test_credentials_of_the_environment_take_on_a_role_where_a_setting_lends_them(make, proxy, beside):
    body = order(proxy.url, key=None)
    if beside:
        body["aws_role_arn"] = body["config"].pop("aws_role_arn")
    for allowed, lent, text in (
        (False, None, "MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS"),
        (True, None, "AWS_ACCESS_KEY_ID"),
    ):
        async with make(works=False, allow_environment_credentials=allowed, lent=lent) as platform:
            refused = await platform.client(platform.keys.add()[0]).post("/destinations", body)
            assert refused.status_code == 400
            assert text in refused.json()["detail"]
    async with make(works=False, allow_environment_credentials=True, lent=await TRUSTED.lend()) as platform:
        made = await platform.client(platform.keys.add()[0]).post("/destinations", body)
        assert made.status_code == 200, made.text
        assert made.json()["config"]["aws_role_arn"] == ROLE
        assert made.json()["credentials_keys"] == []


async def test_a_role_comes_and_goes_with_the_credentials_and_is_tested_each_time(make, s3):
    async with make(works=False) as platform:
        client = platform.client(platform.keys.add()[0])
        made = (await client.post("/destinations", order(s3.url, key=EXPORTER, role=None))).json()
        path = f"/destinations/{made['id']}"
        refused = await client.patch(path, {"credentials": EXPORTER.as_credentials(), "aws_role_arn": ROLE})
        assert refused.status_code == 400
        assert (await client.get(path)).json() == made
        role = {"credentials": TRUSTED.as_credentials(), "aws_role_arn": ROLE}
        assert (await client.patch(path, role)).json()["config"]["aws_role_arn"] == ROLE
        plain = await client.patch(path, {"credentials": EXPORTER.as_credentials()})
        assert plain.json()["config"]["aws_role_arn"] is None


async def _refusal(s3, key=TRUSTED, role=ROLE, url=None):
    asks = AssumedRole(AwsRole(role, str(uuid4()), url or f"{s3.url}/", "us-east-1", await key.lend()))
    with pytest.raises((BucketError, BadRequestError)) as refused:
        await asks.lend()
    return refused.value


async def test_what_keeps_a_role_from_being_taken_on_is_told_apart(s3, proxy):
    assert (await _refusal(s3, key=EXPORTER)).fault is BucketFault.ACCESS_DENIED
    assert (await _refusal(s3, role=f"{ROLE}s")).fault is BucketFault.ACCESS_DENIED
    assert (await _refusal(s3, key=type(TRUSTED)("nobody", "x", ()))).fault is BucketFault.INVALID_KEY_ID
    assert (await _refusal(s3, key=type(TRUSTED)("trusted-key", "x", ()))).fault is BucketFault.ACCESS_DENIED
    assert "no such role" in str(await _refusal(s3, role="arn:aws:iam::000000000000:user/exports"))
    assert (await _refusal(s3, url="http://127.0.0.1:1/")).fault is BucketFault.UNREACHABLE
    for fault in (Fault.ERROR, Fault.SLOW_DOWN):
        proxy.plan = lambda _method, _path, fault=fault: fault
        assert (await _refusal(s3, url=f"{proxy.url}/")).fault is BucketFault.TRANSIENT


async def test_credentials_of_a_role_are_asked_for_anew_before_they_run_out(s3, monkeypatch):
    role = AwsRole(ROLE, str(uuid4()), f"{s3.url}/", "us-east-1", await TRUSTED.lend())
    assumed = AssumedRole(role)
    first = await assumed.lend()
    assert await assumed.lend() is first
    assert timedelta(minutes=59) < first.expires_at - datetime.now(UTC) < timedelta(minutes=61)
    monkeypatch.setattr(aws_roles, "_EARLY", timedelta(hours=1, minutes=1))
    assert (await assumed.lend()).session_token != first.session_token
    assert "secret" not in repr(role)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, "https://sts.eu-west-1.amazonaws.com/"),
        ("https://bucket.vpce-1.s3.eu-west-1.vpce.amazonaws.com", "https://sts.eu-west-1.amazonaws.com/"),
        ("https://minio.example.com:9000/bucket", "https://minio.example.com:9000/"),
        ("https://amazonaws.com.example.com", "https://amazonaws.com.example.com/"),
    ],
)
def test_a_role_is_asked_for_at_aws_or_at_the_store_that_has_it(endpoint, url):
    assert sts_url_of(endpoint, "eu-west-1") == url
