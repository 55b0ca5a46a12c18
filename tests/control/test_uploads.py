"""Source archives: from an upload address to the bucket, and from there to a build."""

import asyncio
import gzip
import os
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from moorage.kernel.errors import NotFoundError
from tests.control.houses import UPLOAD_BYTES_MAX, created, from_git, to_upload

pytest_plugins = "tests.control.fixtures"

ARCHIVE = gzip.compress(os.urandom(1000))


@pytest.fixture
async def made(client):
    return await created(client, to_upload())


async def _address(client, made):
    answer = await client.post(f"/v2/deployments/{made['id']}/upload-url", json={"supports_upload_headers": True})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _use(client, made, path, **source):
    config = {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"} | source
    patch = {"revision_source": "internal_source", "source_revision_config": config, "secrets": []}
    return await client.patch(f"/v2/deployments/{made['id']}", json={**patch, "tracked_packages": ["langgraph"]})


async def test_an_archive_is_put_without_a_key_and_becomes_a_revision(client, control, made, tmp_path):
    address = await _address(client, made)
    assert address["upload_headers"] == {"Content-Type": "application/gzip"}
    early = await _use(client, made, address["object_path"])
    assert early.status_code == 400
    assert "Nothing was uploaded" in early.json()["detail"]
    async with control.house.client() as keyless:
        put = await keyless.put(address["upload_url"], content=ARCHIVE, headers=address["upload_headers"])
        assert put.status_code == 200, put.text
        again = await keyless.put(address["upload_url"], content=ARCHIVE)
        assert again.status_code == 409
        assert "used already" in again.json()["detail"]
    patched = (await _use(client, made, address["object_path"])).json()
    assert patched["source_revision_config"]["source_tarball_path"] == address["object_path"]
    [revision] = (await client.get(f"/v2/deployments/{made['id']}/revisions")).json()["resources"]
    assert revision["status"] == "AWAITING_BUILD"
    assert revision["source"] == "internal_source"
    await control.room.uploads.fetch(address["object_path"], tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == ARCHIVE
    assert not list((tmp_path / "spool").iterdir()), "nothing is left of it"


async def test_an_address_opens_one_path_until_it_expires(client, control, made):
    address = await _address(client, made)
    url, query = address["upload_url"].split("?")[0], parse_qs(urlsplit(address["upload_url"]).query)
    signed = {name: values[0] for name, values in query.items()}
    for change in (
        {"signature": "0" * 64},
        {"signature": "\u00fc"},
        {"expires": str(int(signed["expires"]) + 1)},
    ):
        assert (await client.put(url, params=signed | change, content=ARCHIVE)).status_code == 403, change
    other = url.replace(address["object_path"], address["object_path"] + "x")
    assert (await client.put(other, params=signed, content=ARCHIVE)).status_code == 403
    assert (await client.put(url, content=ARCHIVE)).status_code == 422
    await control.rows.postgres.execute(
        "UPDATE uploads SET expires_at = now() WHERE path = %s", (address["object_path"],)
    )
    assert (await client.put(url, params=signed, content=ARCHIVE)).status_code == 409


async def test_what_is_no_archive_or_too_large_is_refused_and_the_address_stays_good(client, control, made, tmp_path):
    address = await _address(client, made)
    too_large = gzip.compress(b"") + bytes(UPLOAD_BYTES_MAX)
    assert (await client.put(address["upload_url"], content=too_large)).status_code == 413

    async def unannounced():
        for start in range(0, len(too_large), 2**16):
            yield too_large[start : start + 2**16]

    assert (await client.put(address["upload_url"], content=unannounced())).status_code == 413
    for wrong in (b"", b"PK\x03\x04"):
        assert (await client.put(address["upload_url"], content=wrong)).status_code == 400
    assert not list((tmp_path / "spool").iterdir())
    assert not list((tmp_path / "bucket").rglob("*.gz"))
    assert (await client.put(address["upload_url"], content=ARCHIVE)).status_code == 200


async def test_of_two_that_bring_something_at_once_one_wins(client, control, made, tmp_path):
    address = await _address(client, made)
    archives = [gzip.compress(os.urandom(200_000)) for _ in range(4)]
    puts = await asyncio.gather(*(client.put(address["upload_url"], content=archive) for archive in archives))
    statuses = [put.status_code for put in puts]
    assert sorted(statuses) == [200, 409, 409, 409]
    await control.room.uploads.fetch(address["object_path"], tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == archives[statuses.index(200)]
    assert len(list((tmp_path / "bucket").rglob("*.gz"))) == 1


async def test_a_path_of_another_deployment_is_refused(client, made):
    other = await created(client, to_upload())
    address = await _address(client, other)
    assert (await client.put(address["upload_url"], content=ARCHIVE)).status_code == 200
    for path in (address["object_path"], "sources/../../etc/passwd", "x"):
        refused = await _use(client, made, path)
        assert refused.status_code == 400
        assert "none of this deployment's" in refused.json()["detail"]
    begins_with_one = to_upload(source_revision_config={"source_tarball_path": address["object_path"]})
    assert (await client.post("/v2/deployments", json=begins_with_one)).status_code == 400
    assert (await client.post(f"/v2/deployments/{other['id']}/upload-url", content=b"{}")).status_code == 200


async def test_a_repository_may_be_overtaken_by_an_upload_but_an_external_image_not(client):
    made = await created(client, from_git())
    address = await _address(client, made)
    await client.put(address["upload_url"], content=ARCHIVE)
    assert (await _use(client, made, address["object_path"])).status_code == 200
    image = {"image_uri": "registry.example.com/agent:1"}
    made = await created(client, to_upload(source="external_docker", source_revision_config=image))
    assert (await client.post(f"/v2/deployments/{made['id']}/upload-url")).status_code == 400


async def test_archives_go_when_nobody_needs_them(client, control, made, tmp_path):
    await control.rows.postgres.execute("DELETE FROM uploads")  # uploads of other tests
    unused, expired, used = [await _address(client, made) for _ in range(3)]
    for address in (unused, used):
        await client.put(address["upload_url"], content=ARCHIVE)
    await _use(client, made, used["object_path"])
    assert await control.room.uploads.sweep() == 0, "there is time to make something of them"
    await control.rows.postgres.execute("UPDATE uploads SET uploaded_at = uploaded_at - interval '2 days'")
    await control.rows.postgres.execute(
        "UPDATE uploads SET expires_at = now() - interval '1 s' WHERE path = %s", (expired["object_path"],)
    )
    assert await control.room.uploads.sweep() == 2
    assert await control.room.uploads.sweep() == 0
    with pytest.raises(NotFoundError, match="no longer kept"):
        await control.room.uploads.fetch(unused["object_path"], tmp_path / "archive")
    await control.room.uploads.fetch(used["object_path"], tmp_path / "archive")
    await control.room.uploads.remove_all(UUID(made["id"]))
    assert not list((tmp_path / "bucket").rglob("*.gz"))
