"""The registry of pushed images: the protocol by hand, hostile clients, and the removal of images."""

import asyncio
import hashlib
import json
import os
import time
from uuid import UUID, uuid4

import httpx
import pytest

from moorage.control.records.pushed_images import USERNAME, push_token
from tests.accounts.houses import MASTER_KEYS
from tests.control.houses import IMAGES_BYTES_MAX, created, make_control_house, to_upload

pytest_plugins = "tests.control.fixtures"

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
KEEP_S = 24 * 3600


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Pusher:
    """A client of registries with the token of one deployment."""

    def __init__(self, client: httpx.AsyncClient, made: dict) -> None:
        self.client, self.id, self.root = client, made["id"], f"/v2/images/{made['id']}"

    async def blob(self, data: bytes) -> str:
        place = (await self.client.post(f"{self.root}/blobs/uploads/")).headers["location"]
        half = len(data) // 2
        for piece in (data[:half], data[half:]):
            answer = await self.client.patch(place, content=piece)
            assert answer.status_code == 202, answer.text
        answer = await self.client.put(place, params={"digest": digest_of(data)})
        assert (answer.status_code, answer.headers["docker-content-digest"]) == (201, digest_of(data)), answer.text
        return digest_of(data)

    async def manifest(self, body: bytes, tag: str = "latest", media_type: str = MANIFEST) -> httpx.Response:
        return await self.client.put(f"{self.root}/manifests/{tag}", content=body, headers={"Content-Type": media_type})

    async def image(self, layer: bytes, tag: str = "latest") -> bytes:
        """Push an image of one layer and return its manifest."""
        parts = [await self.blob(b"{}"), await self.blob(layer)]
        body = manifest_of(*parts)
        answer = await self.manifest(body, tag)
        assert answer.status_code == 201, answer.text
        return body

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(f"{self.root}/{path}")


def manifest_of(config: str, *layers: str) -> bytes:
    document = {"schemaVersion": 2, "config": {"digest": config}, "layers": [{"digest": layer} for layer in layers]}
    return json.dumps(document).encode()


async def make_pusher(control, client) -> Pusher:
    made = await created(client, to_upload(source="internal_docker"))
    answer = await client.post(f"/v2/deployments/{made['id']}/push-token", json={"supports_registry_username": True})
    told = answer.json()
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert told["repository_url"] == f"{told['registry_url']}/images/{made['id']}"
    login = control.house.client()
    login.auth = httpx.BasicAuth(told["username"], told["token"])
    return Pusher(login, made)


@pytest.fixture
async def pusher(control, client):
    return await make_pusher(control, client)


@pytest.fixture
def registry(control):
    return control.room.image_registry


async def test_an_image_is_pushed_in_pieces_and_pulled_by_tag_and_digest(pusher):
    layer = os.urandom(100_000)
    body = await pusher.image(layer)
    for reference in ("latest", digest_of(body)):
        for method in ("GET", "HEAD"):
            found = await pusher.client.request(method, f"{pusher.root}/manifests/{reference}")
            assert (found.status_code, found.headers["content-type"]) == (200, MANIFEST)
            assert found.headers["docker-content-digest"] == digest_of(body)
            assert found.content == (body if method == "GET" else b"")
    found = await pusher.get(f"blobs/{digest_of(layer)}")
    assert (found.content, found.headers["content-length"]) == (layer, "100000")
    head = await pusher.client.head(f"{pusher.root}/blobs/{digest_of(layer)}")
    assert (head.status_code, head.headers["content-length"]) == (200, "100000")


async def test_an_index_names_manifests_that_were_pushed(pusher):
    body = await pusher.image(b"layer", "amd64")
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"digest": digest_of(body)}]}).encode()
    assert (await pusher.manifest(index, "all", INDEX)).status_code == 201
    assert (await pusher.get("manifests/all")).headers["content-type"] == INDEX


async def test_a_push_goes_on_where_it_was(pusher):
    place = (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).headers["location"]
    await pusher.client.patch(place, content=b"12345", headers={"Content-Range": "0-4"})
    told = await pusher.client.get(place)
    assert (told.status_code, told.headers["range"]) == (204, "0-4")
    again = await pusher.client.patch(place, content=b"45", headers={"Content-Range": "3-4"})
    assert again.status_code == 400
    assert "has 5 bytes" in again.json()["errors"][0]["message"]
    assert (await pusher.client.patch(place, content=b"x", headers={"Content-Range": "all"})).status_code == 422
    ended = await pusher.client.put(place, content=b"67", params={"digest": digest_of(b"1234567")})
    assert ended.status_code == 201
    assert (await pusher.client.put(place, params={"digest": digest_of(b"1234567")})).status_code == 404


async def test_two_who_push_the_same_blob_at_once_both_have_it(pusher, tmp_path):
    data = os.urandom(50_000)
    await asyncio.gather(*(pusher.blob(data) for _ in range(5)))
    assert (await pusher.get(f"blobs/{digest_of(data)}")).content == data
    assert len(list((tmp_path / "bucket").rglob("*/*/*/*"))) == 1
    assert not list((tmp_path / "spool" / "images").glob("*/*"))


async def test_bytes_that_are_not_what_their_digest_says_are_not_kept(pusher):
    place = (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).headers["location"]
    answer = await pusher.client.put(place, content=b"other", params={"digest": digest_of(b"this")})
    assert answer.status_code == 400
    assert (await pusher.get(f"blobs/{digest_of(b'other')}")).status_code == 404
    assert (await pusher.client.put(place, params={"digest": digest_of(b"")})).status_code == 404, "it is over"


@pytest.mark.parametrize(
    ("body", "media_type", "told"),
    [
        (b"{", MANIFEST, ""),
        (b"[]", MANIFEST, "no manifest"),
        (b"{}", "text/html", "no type of manifest"),
        (b"{}", MANIFEST, "config and layers"),
        (b'{"mediaType": "text/html"}', MANIFEST, "its type is text/html"),
        (b'{"config": {"digest": "sha256:0"}, "layers": []}', MANIFEST, "config.digest"),
        (b'{"config": {}, "layers": 7}', MANIFEST, "layers"),
        (b'{"manifests": 7}', INDEX, "manifests"),
        (manifest_of(digest_of(b"absent")), MANIFEST, "were not pushed"),
    ],
)
async def test_what_is_no_manifest_is_refused_and_changes_nothing(pusher, body, media_type, told):
    answer = await pusher.manifest(body, "bad", media_type)
    assert answer.status_code in (400, 422)
    assert told in answer.text
    assert (await pusher.get("manifests/bad")).status_code == 404


@pytest.mark.parametrize("reference", ["a" * 129, ".hidden", "sha256:0", "%2e%2e", "a%2Fb"])
async def test_what_is_neither_tag_nor_digest_is_refused(pusher, reference):
    body = manifest_of(await pusher.blob(b"{}"))
    assert (await pusher.manifest(body, reference)).status_code in (400, 404, 405)
    assert (await pusher.get(f"manifests/{reference}")).status_code == 404


async def test_a_token_opens_one_deployments_images_until_it_expires(control, client, pusher):
    other = await make_pusher(control, client)
    body = await pusher.image(b"secret layer")
    keys = list(MASTER_KEYS.derive("push tokens").values())
    expired = push_token(keys[0], UUID(pusher.id), int(time.time()) - 1)
    forged = push_token(b"0" * 32, UUID(pusher.id), int(time.time()) + 99)
    good = pusher.client.auth._auth_header
    async with control.house.client() as keyless:
        for headers in (
            {},
            {"Authorization": "Basic %%%"},
            {"Authorization": good.replace("Basic", "Bearer")},
            *(
                {"Authorization": httpx.BasicAuth(user, token)._auth_header}
                for user, token in ((USERNAME, expired), (USERNAME, forged), (USERNAME, "a.b.c"), ("root", "x"))
            ),
        ):
            for path in ("/v2/", f"{pusher.root}/manifests/latest"):
                refused = await keyless.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Basic ")
                assert refused.json()["errors"][0]["code"] == "UNAUTHORIZED"
        assert (await keyless.get("/v2/", headers={"Authorization": good})).status_code == 200
    for path in (f"manifests/{digest_of(body)}", f"blobs/{digest_of(b'secret layer')}"):
        assert (await other.client.get(f"{pusher.root}/{path}")).status_code == 403
        assert (await other.get(path)).status_code == 404, "blobs of others are not there, by their digest either"
    assert (await other.client.post(f"{pusher.root}/blobs/uploads/")).status_code == 403


async def test_images_of_a_deployment_take_so_much_and_no_more(pusher, tmp_path):
    await pusher.blob(os.urandom(2_000_000))
    place = (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).headers["location"]
    for _ in range(2):  # uploads under way count, too
        answer = await pusher.client.patch(place, content=os.urandom(IMAGES_BYTES_MAX // 4))
    assert answer.status_code == 413
    assert "MOORAGE_IMAGES_BYTES_MAX" in answer.json()["errors"][0]["message"]
    assert not list((tmp_path / "spool" / "images").glob("*/*"))
    for _ in range(100):
        assert (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).status_code == 202
    assert (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).status_code == 429


async def test_who_gets_no_token_is_told_why(control, client, platform_postgres, tmp_path):
    made = await created(client, to_upload())
    answer = await client.post(f"/v2/deployments/{made['id']}/push-token", json={})
    assert (answer.status_code, "only available for 'internal_docker' source" in answer.json()["detail"]) == (400, True)
    assert (await client.post(f"/v2/deployments/{uuid4()}/push-token", json={})).status_code == 404
    other = await make_control_house(platform_postgres, tmp_path / "other", runs_images=False)
    async with other.client() as elsewhere:
        made = await created(elsewhere, to_upload(source="internal_docker"))
        refused = await elsewhere.post(f"/v2/deployments/{made['id']}/push-token", json={})
        assert (refused.status_code, "--remote" in refused.json()["detail"]) == (400, True)
        assert (await client.post(f"/v2/deployments/{made['id']}/push-token", json={})).status_code == 404


async def test_images_that_no_revision_runs_are_removed_after_a_day(
    control, client, pusher, registry, platform_postgres, tmp_path
):
    layers = [os.urandom(1000) for _ in range(3)]
    bodies = [await pusher.image(layer, f"v{number}") for number, layer in enumerate(layers)]
    used = f"moorage.test/images/{pusher.id}@{digest_of(bodies[1])}"
    patch = {"revision_source": "internal_docker", "source_revision_config": {"image_uri": used}, "secrets": []}
    answer = await client.patch(f"/v2/deployments/{pusher.id}", json=patch)
    assert answer.status_code == 200, answer.text
    await registry.sweep()
    assert all([(await pusher.get(f"blobs/{digest_of(layer)}")).status_code == 200 for layer in layers])

    async def age() -> None:
        for table in ("pushed_blobs", "pushed_manifests"):
            await platform_postgres.execute(
                f"UPDATE {table} SET used_at = now() - interval '2 days' WHERE deployment_id = %s", (pusher.id,)
            )

    await age()
    await pusher.client.head(f"{pusher.root}/manifests/v2")  # a push begins, and finds the manifest
    await registry.sweep()
    statuses = [(await pusher.get(f"blobs/{digest_of(layer)}")).status_code for layer in layers]
    assert statuses == [404, 200, 200]
    await age()
    await registry.sweep()
    assert [(await pusher.get(f"manifests/v{number}")).status_code for number in range(3)] == [404, 200, 404]
    assert len(list((tmp_path / "bucket" / "images").rglob("*/*/*"))) == 2, "the configuration, and one layer"
    left = tmp_path / "spool" / "images" / "of nobody" / "x"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    os.utime(left, (0, time.time() - 2 * KEEP_S))
    await registry.sweep()
    assert not left.exists()


async def test_with_the_deployment_its_images_go(pusher, client, registry, tmp_path):
    await pusher.image(b"layer")
    assert (await client.delete(f"/v2/deployments/{pusher.id}")).status_code == 204
    place = (await pusher.client.post(f"{pusher.root}/blobs/uploads/")).headers["location"]
    await pusher.client.put(place, content=b"late", params={"digest": digest_of(b"late")})
    assert (await pusher.get(f"blobs/{digest_of(b'late')}")).status_code == 404
    await registry.remove_all(UUID(pusher.id))
    assert not [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]


def test_only_the_own_registry_gets_a_login(registry):
    made = uuid4()
    assert registry.login(made, "moorage.test")["username"] == USERNAME
    assert registry.login(made, "registry.example.com") is None
    assert registry.login(made, None) is None
