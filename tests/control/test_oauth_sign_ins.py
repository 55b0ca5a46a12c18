"""`/v2/auth/authenticate`, `wait`, `callback` and the life of tokens, against a real OAuth server."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from moorage.cli import app as cli
from moorage.control.records.oauth_tokens import SEALED_TOKEN
from moorage.kernel.access import Scope
from tests.control.oauth_server import oauth_server
from tests.serving import ROOT, free_port
from tests.waiting import until

pytest_plugins = "tests.control.fixtures"

REDIRECT = "http://moorage.test/v2/auth/callback/acme"


@pytest.fixture(scope="module")
def running_server():
    with oauth_server() as server:
        yield server


@pytest.fixture
def server(running_server):
    records = running_server.records
    records.expires_in, records.is_down = 3600, False
    records.metadata, records.resource = {}, {}
    records.asked.clear()
    return running_server


@pytest.fixture
async def upkeep(control):
    """Run the job that refreshes and revokes."""
    control.auth.upkeep.start()
    yield control.auth.upkeep
    await control.auth.upkeep.stop()


async def make_provider(client, server, **changes):
    registered = server.register(REDIRECT, method=changes.get("token_endpoint_auth_method", "client_secret_post"))
    body = {
        "provider_id": "acme",
        "name": "Acme",
        "client_id": registered.client_id,
        "client_secret": registered.client_secret,
        "auth_url": f"{server.url}/authorize?access_type=offline",
        "token_url": f"{server.url}/token",
        "revocation_url": f"{server.url}/revoke",
        "uses_pkce": True,
    }
    answer = await client.post("/v2/auth/providers", json=body | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def provider(client, server):
    return await make_provider(client, server)


async def ask(client, status=200, **changes):
    body = {"provider": "acme", "scopes": ["mail"], "user_id": "alice"}
    answer = await client.post("/v2/auth/authenticate", json=body | changes)
    assert answer.status_code == status, answer.text
    return answer.json()


async def visit(url: str) -> str:
    """Visit the provider as a consenting user's browser, and return the address to which the provider sends the browser
    back.
    """
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(url)
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


async def sign_in(client, **changes):
    begun = await ask(client, **changes)
    page = await client.get(await visit(begun["url"]))
    assert page.status_code == 200, page.text
    waited = (await client.get(f"/v2/auth/wait/{begun['auth_id']}?timeout=5")).json()
    assert waited["status"] == "completed", waited
    return waited["token"]


async def tokens(client, **params):
    return (await client.get("/v2/auth/tokens", params=params)).json()


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic", "none"])
@pytest.mark.parametrize("challenge", ["S256", "plain"])
async def test_a_user_signs_in_and_agents_get_the_token(control, client, server, method, challenge):
    secret = {"client_secret": None} if method == "none" else {}
    await make_provider(client, server, token_endpoint_auth_method=method, code_challenge_method=challenge, **secret)
    begun = await ask(client)
    assert begun["status"] == "pending"
    assert begun["token"] is None
    asked = parse_qs(urlsplit(begun["url"]).query)
    assert asked["access_type"] == ["offline"]
    assert asked["redirect_uri"] == [REDIRECT]
    assert asked["code_challenge_method"] == [challenge]
    waiting = asyncio.create_task(client.get(f"/v2/auth/wait/{begun['auth_id']}?timeout=20"))
    async with control.house.client() as nobody:  # a browser brings no key
        page = await nobody.get(await visit(begun["url"]))
    assert page.status_code == 200
    assert page.headers["referrer-policy"] == "no-referrer"
    told = (await waiting).json()
    assert told["status"] == "completed"
    assert told["token"] == server.records.tokens[-1].access_token
    again = await ask(client)
    assert (again["status"], again["token"], again["user_id"]) == ("completed", told["token"], "alice")
    assert "code_verifier" in server.asked_of("/token")[-1]


async def test_a_token_is_stored_sealed_and_shown_in_no_list(control, client, provider):
    token = await sign_in(client)
    [summary] = await tokens(client, provider_id="acme")
    assert summary.keys() == {
        "id", "provider_id", "provider_account_label", "scopes", "expires_at", "is_default", "created_at", "updated_at",
    }  # fmt: skip
    assert (summary["provider_id"], summary["scopes"], summary["is_default"]) == ("acme", ["mail"], True)
    row = await control.rows.postgres.fetch_one("SELECT * FROM oauth_tokens WHERE id = %s", (summary["id"],))
    assert token not in str(row)
    assert token.encode() not in bytes(row["sealed_token"])
    assert SEALED_TOKEN in control_columns()


def control_columns():
    """Return the control plane's columns that a rotation of the master key wraps again."""
    from moorage.wiring import platform  # private to it

    return platform._SEALED


async def test_a_state_is_good_for_one_use(client, provider):
    begun = await ask(client)
    back = await visit(begun["url"])
    assert (await client.get(back)).status_code == 200
    replayed = await client.get(back)
    assert replayed.status_code == 400
    assert "used before" in replayed.text
    assert len(await tokens(client)) == 1


@pytest.mark.parametrize("wrong", ["", "x", "11111111-1111-4111-8111-111111111111.x", "changed", "\x00"])
async def test_a_wrong_state_brings_nothing_and_costs_the_sign_in_nothing(client, provider, server, wrong):
    begun = await ask(client)
    back = httpx.URL(await visit(begun["url"]))
    state = back.params["state"][:-2] + "zz" if wrong == "changed" else wrong
    answer = await client.get(back.copy_set_param("state", state))
    assert answer.status_code == 400
    assert not server.asked_of("/token")
    assert (await client.get(back)).status_code == 200


async def test_the_answer_of_one_provider_is_not_taken_for_anothers(client, provider, server):
    """Prevents mix-up attacks: each provider has a redirect URI and a state of its own."""
    registered = server.register("http://moorage.test/v2/auth/callback/evil")
    await make_provider(client, server, provider_id="evil", client_id=registered.client_id)
    begun = await ask(client)
    back = httpx.URL(await visit(begun["url"]))
    assert (await client.get(back.copy_with(path="/v2/auth/callback/evil"))).status_code == 400
    assert not server.asked_of("/token")
    assert (await client.get(back)).status_code == 200


async def test_a_provider_that_changed_meanwhile_is_asked_nothing(client, provider, server):
    begun = await ask(client)
    back = await visit(begun["url"])
    await client.patch("/v2/auth/providers/acme", json={"token_url": "https://elsewhere.example/token"})
    assert (await client.get(back)).status_code == 400
    assert not server.asked_of("/token")


async def test_only_who_began_a_sign_in_ends_it_by_post(control, client, provider):
    begun = await ask(client)
    back = parse_qs(urlsplit(await visit(begun["url"])).query)
    body = {"code": back["code"][0], "state": back["state"][0]}
    colleague = await control.house.make_key(control.workspace, Scope.OAUTH_TOKENS_USE)
    stranger = (await control.house.make_workspace())["api_key"]
    for key in (colleague, stranger):
        async with control.client(key) as other:
            assert (await other.post("/v2/auth/callback/acme", json=body)).status_code == 400
            waited = (await other.get(f"/v2/auth/wait/{begun['auth_id']}?timeout=0")).json()
            assert waited == {"status": "not_found", "token": None}
    assert (await client.post("/v2/auth/callback/acme", json=body)).status_code == 200


async def test_a_sign_in_that_the_user_declines_is_over(client, provider, server):
    begun = await ask(client)
    state = parse_qs(urlsplit(begun["url"]).query)["state"][0]
    declined = {"error": "access_denied", "error_description": "<script>alert(1)</script>", "state": state}
    page = await client.get("/v2/auth/callback/acme", params=declined)
    assert page.status_code == 400
    assert "script" not in page.text
    waited = (await client.get(f"/v2/auth/wait/{begun['auth_id']}")).json()
    assert waited["status"] == "not_found"
    assert not server.asked_of("/token")


async def test_waiting_ends(client, provider):
    begun = await ask(client)
    assert (await client.get(f"/v2/auth/wait/{begun['auth_id']}?timeout=0")).json()["status"] == "timeout"
    assert (await client.get(f"/v2/auth/wait/{uuid4()}")).json()["status"] == "not_found"
    assert (await client.get("/v2/auth/wait/nothing")).json()["status"] == "not_found"
    assert (await client.get(f"/v2/auth/wait/{begun['auth_id']}?timeout=9999")).status_code == 422


async def test_a_sign_in_expires(control, client, provider):
    begun = await ask(client)
    back = await visit(begun["url"])
    await control.rows.postgres.execute("UPDATE oauth_sign_ins SET expires_at = now()")
    assert (await client.get(back)).status_code == 400
    assert (await client.get(f"/v2/auth/wait/{begun['auth_id']}")).json()["status"] == "not_found"


async def test_a_token_is_refreshed_before_it_ends(control, client, provider, server, upkeep):
    server.records.expires_in = 4
    first = await sign_in(client)

    async def renewed():
        told = await ask(client)
        return told["token"] if told["token"] not in {None, first} else None

    server.records.expires_in = 3600
    assert await until(renewed) == server.records.tokens[-1].access_token
    assert server.asked_of("/token")[-1]["grant_type"] == "refresh_token"
    assert len(await tokens(client)) == 1


async def test_who_asks_for_a_token_that_has_ended_gets_the_refreshed_one(control, client, provider, server, upkeep):
    first = await sign_in(client)
    await control.rows.postgres.execute("UPDATE oauth_tokens SET expires_at = now(), refresh_at = now()")
    told = await ask(client)
    assert told["status"] == "completed"
    assert told["token"] != first


async def test_a_refresh_waits_for_a_server_that_is_away(control, client, provider, server, upkeep):
    first = await sign_in(client)
    server.records.is_down = True
    await control.rows.postgres.execute("UPDATE oauth_tokens SET refresh_at = now()")
    await until(lambda: [form for form in server.asked_of("/token") if form["grant_type"] == "refresh_token"])
    assert (await ask(client))["token"] == first  # the refresh has not ended yet
    server.records.is_down = False

    async def is_other():
        return (await ask(client))["token"] != first

    await until(is_other)


async def test_a_refused_refresh_sends_the_user_to_sign_in_again_and_keeps_connections(
    control, client, provider, server, upkeep
):
    await sign_in(client)
    [summary] = await tokens(client)
    connected = await client.post("/v2/auth/agents/mailer/connections", json={"oauth_token_id": summary["id"]})
    assert connected.status_code == 201
    for token in server.records.tokens:
        token.is_over = True
    await control.rows.postgres.execute("UPDATE oauth_tokens SET expires_at = now(), refresh_at = now()")
    told = await ask(client)
    assert told["status"] == "token_expired"
    assert (await client.get(await visit(told["url"]))).status_code == 200
    assert (await ask(client, agent_id="mailer"))["status"] == "completed"
    assert [token["id"] for token in await tokens(client)] == [summary["id"]]


async def test_a_revoked_token_is_gone_here_and_at_its_provider(control, client, provider, server, upkeep):
    await sign_in(client)
    issued = server.records.tokens[-1]
    [summary] = await tokens(client)
    server.records.is_down = True
    assert (await client.delete(f"/v2/auth/tokens/{summary['id']}")).status_code == 204
    assert await tokens(client) == []
    assert (await ask(client))["status"] == "pending"
    assert (await client.delete(f"/v2/auth/tokens/{summary['id']}")).status_code == 404
    server.records.is_down = False
    await until(lambda: issued.is_over)

    async def is_forgotten():
        rows = await control.rows.postgres.fetch("SELECT 1 FROM oauth_tokens WHERE id = %s", (summary["id"],))
        return not rows

    await until(is_forgotten)


async def test_tokens_are_their_users_own(control, client, provider):
    await sign_in(client)
    [summary] = await tokens(client)
    colleague = await control.house.make_key(control.workspace, Scope.OAUTH_TOKENS_USE, Scope.OAUTH_TOKENS_READ)
    stranger = (await control.house.make_workspace())["api_key"]
    for key in (colleague, stranger):
        async with control.client(key) as other:
            assert await tokens(other) == []
            path = f"/v2/auth/tokens/{summary['id']}"
            assert (await other.delete(path)).status_code == 404
            assert (await other.patch(f"{path}/metadata", json={"is_default": False})).status_code == 404
            connection = {"oauth_token_id": summary["id"]}
            assert (await other.post("/v2/auth/agents/a/connections", json=connection)).status_code == 404
            assert (await other.delete("/v2/auth/tokens?provider_id=acme")).status_code == 200
    assert (await ask(client))["status"] == "completed"
    assert (await ask(client, user_id="bob"))["status"] == "pending"
    async with control.client(stranger) as other:
        assert (await ask(other, 404))["detail"] == "OAuth provider acme not found"


async def test_a_person_acts_for_themselves_only(control):
    from moorage.control.oauth.users import acting_user, own_user  # they keep a person from others' tokens
    from moorage.kernel.access import Caller, Plan
    from moorage.kernel.errors import ForbiddenError

    person = Caller(uuid4(), Plan.PLUS, frozenset(), "user:alice")
    assert acting_user(person, None) == acting_user(person, "alice") == "alice"
    with pytest.raises(ForbiddenError):
        acting_user(person, "bob")
    key = Caller(uuid4(), Plan.PLUS, frozenset(), "key:1")
    assert acting_user(key, "bob") == "bob"
    assert acting_user(key, None) == "key:1"
    with pytest.raises(ForbiddenError):
        acting_user(key, "key:2")
    with pytest.raises(ForbiddenError):
        own_user(Caller(uuid4(), Plan.PLUS, frozenset(), "user:key:1"))


async def test_an_agent_with_connections_uses_only_these(client, provider):
    work, private = await sign_in(client), await sign_in(client, force_new=True, is_default=False)
    assert work != private
    newest, oldest = await tokens(client)
    assert (oldest["is_default"], newest["is_default"]) == (True, False)
    assert (await ask(client))["token"] == work
    assert (await ask(client, token_id=newest["id"]))["token"] == private
    body = {"oauth_token_id": newest["id"]}
    made = await client.post("/v2/auth/agents/mailer/connections", json=body)
    assert made.status_code == 201
    assert (await client.post("/v2/auth/agents/mailer/connections", json=body)).json() == made.json()
    assert (await client.get("/v2/auth/agents/mailer/connections")).json() == {"data": [made.json()]}
    assert (await ask(client, agent_id="mailer"))["token"] == private
    assert (await ask(client, agent_id="other"))["token"] == work
    more = await ask(client, agent_id="mailer", scopes=["calendar"])
    assert more["status"] == "connection_required"
    assert (await client.get(await visit(more["url"]))).status_code == 200
    assert (await ask(client, agent_id="mailer", scopes=["calendar"]))["status"] == "completed"
    gone = f"/v2/auth/agents/mailer/connections/{made.json()['id']}"
    assert (await client.delete(gone)).status_code == 204
    assert (await client.delete(gone)).status_code == 404


async def test_a_token_is_labelled_and_made_the_default(client, provider):
    await sign_in(client)
    second = await sign_in(client, force_new=True, is_default=False)
    newest, oldest = await tokens(client)
    change = {"provider_account_label": "alice@acme", "is_default": True}
    changed = await client.patch(f"/v2/auth/tokens/{newest['id']}/metadata", json=change)
    assert changed.json() == newest | change | {"updated_at": changed.json()["updated_at"]}
    assert (await ask(client))["token"] == second
    assert [token["is_default"] for token in await tokens(client)] == [True, False]
    assert oldest["id"] != newest["id"]


async def test_wrong_requests_are_refused_with_their_place(client, provider):
    for change, place in (
        ({"provider": "a/b"}, ["body", "provider"]),
        ({"scopes": ["a b"]}, ["body", "scopes", 0]),
        ({"scopes": ["x"] * 101}, ["body", "scopes"]),
        ({"user_id": "a\nb"}, ["body", "user_id"]),
        ({"token_id": "x"}, ["body", "token_id"]),
        ({"use_agent_builder_public_oauth": True}, ["body", "use_agent_builder_public_oauth"]),
    ):
        assert (await ask(client, 422, **change))["detail"][0]["loc"] == place, change
    assert (await ask(client, 404, token_id=str(uuid4())))["detail"].startswith("OAuth token")
    assert (await ask(client, 404, provider="nobody"))["detail"] == "OAuth provider nobody not found"
    assert (await ask(client, 403, user_id="key:1"))["detail"]
    for path in ("/v2/auth/tokens/exists", "/v2/auth/tokens?x=1"):
        method = "GET" if path.endswith("exists") else "DELETE"
        assert (await client.request(method, path)).json()["detail"][0]["loc"] == ["query", "provider_id"]


async def test_slack_tokens_of_a_workspace_are_revoked_together(control, client, server):
    await make_provider(client, server, provider_type="slack")
    path = "/v2/auth/tokens/workspace/slack"
    assert (await client.get(f"{path}/exists")).json() == {"has_token": False}
    await sign_in(client)
    assert (await client.get(f"{path}/exists")).json() == {"has_token": True}
    assert (await client.delete(path)).status_code == 200
    assert (await client.get(f"{path}/exists")).json() == {"has_token": False}


# --- discovery --------------------------------------------------------------------------------------------------------


async def discover(client, server, status=200, **changes):
    body = {"provider_id": "acme", "name": "Acme", "mcp_server_url": f"{server.url}/mcp"}
    answer = await client.post("/v2/auth/providers/mcp-discover", json=body | changes)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_an_mcp_servers_provider_is_discovered_and_signs_users_in(client, server):
    made = await discover(client, server)
    assert made["is_dynamic_client"] is True
    assert made["mcp_server_url"] == f"{server.url}/mcp"
    assert (made["uses_pkce"], made["token_endpoint_auth_method"]) == (True, "none")
    assert made["client_id"] in server.records.clients
    token = await sign_in(client)
    assert token == server.records.tokens[-1].access_token
    assert server.asked_of("/token")[-1]["resource"] == f"{server.url}/mcp"
    await discover(client, server, 409)


async def test_a_code_of_another_issuer_is_refused(client, server):
    await discover(client, server)
    begun = await ask(client)
    back = httpx.URL(await visit(begun["url"])).copy_set_param("iss", "https://evil.example")
    assert (await client.get(back)).status_code == 400
    assert not server.asked_of("/token")


@pytest.mark.parametrize(
    "lie",
    [
        {"metadata": {"issuer": "https://evil.example"}},
        {"metadata": {"registration_endpoint": None}},
        {"metadata": {"code_challenge_methods_supported": ["plain"]}},
        {"metadata": {"token_endpoint": "file:///etc/passwd"}},
        {"metadata": {"authorization_endpoint": "javascript:alert(1)"}},
        {"metadata": {"registration_endpoint": "http://user:word@127.0.0.1/"}},
        {"resource": {"resource": "https://evil.example/mcp"}},
        {"resource": {"authorization_servers": []}},
        {"resource": {"authorization_servers": ["file:///etc/passwd"]}},
    ],
)
async def test_what_a_server_says_wrongly_of_itself_makes_no_provider(client, server, lie):
    for name, value in lie.items():
        setattr(server.records, name, value)
    await discover(client, server, 400)
    assert (await client.get("/v2/auth/providers")).json() == []


# --- the official client ----------------------------------------------------------------------------------------------


async def test_the_official_client_works_unmodified(control, server, http_origin):
    from langchain_auth import Client  # its types are those of the wire

    official = Client(api_key=control.workspace["api_key"], api_url=http_origin)
    registered = server.register(REDIRECT)
    made = await official.create_oauth_provider(
        "acme", "Acme", registered.client_id, registered.client_secret, f"{server.url}/authorize", f"{server.url}/token"
    )
    assert (await official.get_oauth_provider("acme")).id == made.id
    assert [each.id for each in await official.list_oauth_providers()] == [made.id]
    assert (await official.update_oauth_provider("acme", name="Acme 2", uses_pkce=True)).name == "Acme 2"
    begun = await official.authenticate("acme", ["mail"], user_id="alice")
    with pytest.raises(TimeoutError):
        await official.wait_for_completion(begun.auth_id, timeout=1)
    waiting = asyncio.create_task(official.wait_for_completion(begun.auth_id, timeout=30))
    async with control.house.client() as browser:
        assert (await browser.get(await visit(begun.url))).status_code == 200
    token = (await waiting).token
    assert token == server.records.tokens[-1].access_token
    assert (await official.authenticate("acme", ["mail"], user_id="alice")).token == token
    assert (await official.check_token_exists("acme")).has_token
    assert (await official.revoke_tokens("acme")).provider_id == "acme"
    assert not (await official.check_token_exists("acme")).has_token
    assert (await official.delete_oauth_provider("acme")).message


async def test_the_snippet_of_the_docs_runs(control, client, provider, http_origin, capsys):
    page = (ROOT / "docs" / "oauth.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    async def open_in_browser(url):
        assert (await client.get(await visit(url))).status_code == 200

    scope = {"api_key": control.workspace["api_key"], "platform": http_origin, "open_in_browser": open_in_browser}
    exec(f"async def snippet():\n{textwrap.indent(snippet, '    ')}", scope)  # noqa: S102 - our own page
    await scope["snippet"]()
    assert capsys.readouterr().out.endswith("True\n")


async def test_the_commands_show_providers_and_tokens(control, client, server, http_origin):
    registered = server.register(REDIRECT)
    told = {
        "MOORAGE_URL": http_origin,
        "MOORAGE_API_KEY": control.workspace["api_key"],
        "OAUTH_CLIENT_SECRET": registered.client_secret,
    }

    async def moorage(*arguments):
        result = await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=told)
        assert registered.client_secret not in result.output
        return result

    urls = ("--auth-url", f"{server.url}/authorize", "--token-url", f"{server.url}/token")
    made = await moorage("oauth", "providers", "create", "acme", "--client-id", registered.client_id, *urls)
    assert made.exit_code == 0, made.output
    token = await sign_in(client)
    listed = await moorage("oauth", "tokens", "list", "--provider", "acme", "-o", "json")
    [summary] = json.loads(listed.stdout)
    assert token not in listed.output
    assert (await moorage("oauth", "tokens", "revoke", summary["id"])).exit_code == 0
    assert (await moorage("oauth", "tokens", "revoke", summary["id"])).exit_code == 3
    assert (await moorage("oauth", "providers", "discover", "acme", f"{server.url}/mcp")).exit_code == 5
    assert (await moorage("oauth", "providers", "delete", "acme", "--yes")).exit_code == 0
    found = await moorage("oauth", "providers", "discover", "acme", f"{server.url}/mcp", "-o", "json")
    assert json.loads(found.stdout)["is_dynamic_client"]
    assert "acme" in (await moorage("oauth", "providers", "list")).stdout


@pytest.fixture
async def http_origin(control):
    """Serve the control plane on a port, for clients that bring their own HTTP."""
    import uvicorn  # for this test alone

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(control.house.app, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await task


# --- what must not be seen --------------------------------------------------------------------------------------------


async def test_tokens_are_in_no_log(control, client, provider, server, upkeep, capfd, caplog):
    caplog.set_level("WARNING")  # the level at which the platform logs libraries
    token = await sign_in(client)
    refresh = server.records.tokens[-1].refresh_token
    exchanged = [form for form in server.asked_of("/token") if "code" in form]
    codes = [value for form in exchanged for value in (form["code"], form["code_verifier"])]
    server.records.is_down = True
    await control.rows.postgres.execute("UPDATE oauth_tokens SET refresh_at = now()")
    await until(lambda: [form for form in server.asked_of("/token") if form.get("refresh_token") == refresh])
    server.records.is_down = False
    for issued in server.records.tokens:
        issued.is_over = True
    await control.rows.postgres.execute("UPDATE oauth_tokens SET refresh_at = now(), not_before = now()")

    seen = []

    def is_told():
        seen.extend(capfd.readouterr())
        return "has to sign in again" in "".join(seen)

    await until(is_told)
    shown = "".join(seen) + caplog.text
    for secret in (token, refresh, *codes, "s3cret"):
        assert secret not in shown
