"""`/v2/auth/providers`."""

import pytest

from moorage.control.records.oauth import SEALED_CLIENT_SECRET
from tests.accounts.houses import MASTER_KEYS

pytest_plugins = "tests.control.fixtures"

PROVIDER = {
    "provider_id": "github",
    "name": "GitHub",
    "client_id": "Iv1.abc",
    "client_secret": "hush-hush",
    "auth_url": "https://github.com/login/oauth/authorize",
    "token_url": "https://github.com/login/oauth/access_token",
}


@pytest.fixture
async def made(client):
    answer = await client.post("/v2/auth/providers", json=PROVIDER)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_provider_is_read_with_all_of_its_fields_and_without_its_secret(client, control, made):
    assert made.keys() == {
        "id",
        "organization_id",
        "provider_id",
        "name",
        "client_id",
        "auth_url",
        "token_url",
        "uses_pkce",
        "code_challenge_method",
        "provider_type",
        "mcp_server_url",
        "token_endpoint_auth_method",
        "is_dynamic_client",
        "revocation_url",
        "created_at",
        "updated_at",
    }
    assert made["organization_id"] == control.workspace_id
    assert made["uses_pkce"] is False
    assert made["token_endpoint_auth_method"] == "client_secret_post"
    assert made["code_challenge_method"] == "S256"
    assert "hush" not in str(made)
    assert (await client.get("/v2/auth/providers/github")).json() == made
    assert (await client.get("/api-host/v2/auth/providers")).json() == [made]


async def test_a_patch_keeps_what_it_does_not_name(client, control, made):
    changes = {"name": "GitHub 2", "uses_pkce": True, "token_url": None}
    patched = (await client.patch("/v2/auth/providers/github", json=changes)).json()
    assert patched == made | {"name": "GitHub 2", "uses_pkce": True, "updated_at": patched["updated_at"]}

    async def secret():
        sql = "SELECT id, sealed_client_secret AS s FROM oauth_providers WHERE id = %s"
        row = await control.rows.postgres.fetch_one(sql, (made["id"],))
        return MASTER_KEYS.open(bytes(row["s"]), SEALED_CLIENT_SECRET.place(row["id"]))

    assert await secret() == b"hush-hush"
    await client.patch("/v2/auth/providers/github", json={"client_secret": "another"})
    assert await secret() == b"another"
    await client.delete("/v2/auth/providers/github")


async def test_a_provider_is_deleted_and_its_id_is_free_again(client, made):
    assert (await client.post("/v2/auth/providers", json=PROVIDER)).status_code == 409
    assert (await client.delete("/v2/auth/providers/github")).status_code == 200
    for method in ("GET", "DELETE"):
        answer = await client.request(method, "/v2/auth/providers/github")
        assert answer.status_code == 404
        assert answer.json()["detail"] == "OAuth provider github not found"
    assert (await client.patch("/v2/auth/providers/github", json={})).status_code == 404
    assert (await client.post("/v2/auth/providers", json=PROVIDER)).status_code == 200


async def test_what_is_wrong_is_said_without_repeating_it(client):
    for change, place in (
        ({"provider_id": "a/b"}, "provider_id"),
        ({"provider_id": ""}, "provider_id"),
        ({"auth_url": "javascript:alert(1)"}, "auth_url"),
        ({"token_url": "https://me:word@example.com"}, "token_url"),
        ({"token_endpoint_auth_method": "hush-hush"}, "token_endpoint_auth_method"),
        ({"provider_type": "other"}, "provider_type"),
        ({"client_secret": ["hush-hush"]}, "client_secret"),
    ):
        answer = await client.post("/v2/auth/providers", json=PROVIDER | change)
        assert answer.status_code == 422, answer.text
        [item] = answer.json()["detail"]
        assert item.keys() == {"loc", "msg", "type"}
        assert item["loc"] == ["body", place]
        assert "hush" not in answer.text
    # An invalid provider id.
    answer = await client.get("/v2/auth/providers/" + "x" * 300)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["path", "provider_id"]
    missing = {name: value for name, value in PROVIDER.items() if name != "client_id"}
    assert (await client.post("/v2/auth/providers", json=missing)).json()["detail"][0]["type"] == "missing"


async def test_a_provider_of_another_workspace_is_not_found(control, made):
    stranger = await control.house.make_workspace()
    async with control.client(stranger["api_key"]) as outside:
        assert (await outside.get("/v2/auth/providers")).json() == []
        for method in ("GET", "PATCH", "DELETE"):
            assert (await outside.request(method, "/v2/auth/providers/github", content="{}")).status_code == 404
        assert (await outside.post("/v2/auth/providers", json=PROVIDER)).status_code == 200


async def test_the_read_declares_its_three_schemes(control):
    document = control.house.app.openapi()
    read = document["paths"]["/v2/auth/providers/{provider_id}"]["get"]
    assert read["security"] == [{"API Key": []}, {"Tenant ID": []}, {"Bearer Auth": []}]
    assert {"200", "422"} <= read["responses"].keys()
