"""Bearer tokens: the installation's own, and those of an identity provider, which here is a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from moorage.accounts.records import WrongWorkspaceError
from moorage.accounts.tokens import IdentityProvider, Tokens, identity_provider
from moorage.kernel.access import Scope
from moorage.kernel.crypto import KEY_BYTES, MasterKeys
from moorage.kernel.errors import ForbiddenError, StartupError, UnauthenticatedError, UnavailableError
from tests.accounts.houses import MASTER_KEYS, REMEMBER_S, House, make_house

pytest_plugins = "tests.accounts.fixtures"

ISSUER, AUDIENCE = "https://id.example.com", "moorage"
RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig", "alg": "RS256"})
EC = ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"})


@dataclass
class Provider:
    """An identity provider that serves a JWKS, and counts requests for it."""

    keys: list = field(default_factory=lambda: [RSA])
    status: int = 200
    asked: int = 0
    url: str = ""

    def trusted(self) -> IdentityProvider:
        return IdentityProvider(self.url, ISSUER, AUDIENCE)

    def sign(self, key=RSA, alg="RS256", header=None, **claims) -> str:
        given = {"iss": ISSUER, "aud": [AUDIENCE, "other"], "sub": "ann", "exp": int(time.time()) + 60, **claims}
        given = {name: value for name, value in given.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": key.kid, **(header or {})}, given, key, algorithms=[alg])


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            provider.asked += 1
            body = json.dumps(KeySet(provider.keys).as_dict(private=False)).encode()
            self.send_response(provider.status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        provider.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        yield provider
        server.shutdown()


async def admit(house: House, token: str, scope: Scope = Scope.RUNS_READ, tenant_id: str | None = None):
    return await house.access.admit(api_key=None, bearer=token, tenant_id=tenant_id, scope=scope)


class TestOurOwn:
    async def test_a_key_is_exchanged_for_a_token_with_fewer_scopes(self, house):
        workspace = await house.make_workspace()
        async with house.client(workspace["api_key"]) as http:
            answer = await http.post("/auth/token", json={"scopes": ["runs:read"], "expires_in": 60})
        made = answer.json()
        assert (made["token_type"], made["expires_in"], made["scope"]) == ("bearer", 60, "runs:read")
        assert answer.headers["cache-control"] == "no-store"
        caller = await admit(house, made["access_token"])
        assert caller.workspace_id == workspace["id"]
        assert caller.actor.startswith("key:")
        with pytest.raises(ForbiddenError):
            await admit(house, made["access_token"], Scope.RUNS_WRITE)

    async def test_a_token_cannot_hold_more_than_its_maker(self, house):
        key = await house.make_key(await house.make_workspace(), Scope.WORKSPACES_READ)
        async with house.client(key) as http:
            assert (await http.post("/auth/token", json={"scopes": ["runs:read"]})).status_code == 403
            assert (await http.post("/auth/token", json={"expires_in": 10**6})).status_code == 422

    async def test_a_token_ends_with_its_key(self, house):
        workspace = await house.make_workspace()
        async with house.client(workspace["api_key"]) as http:
            [row] = (await http.get("/api-key")).json()
            token = (await http.post("/auth/token", json={})).json()["access_token"]
            await admit(house, token)
            await http.delete(f"/api-key/{row['id']}")
        await asyncio.sleep(REMEMBER_S)
        with pytest.raises(UnauthenticatedError, match="revoked"):
            await admit(house, token)

    async def test_a_token_is_not_accepted_when_it_has_expired(self, house):
        [key] = await house.store.read_keys((await house.make_workspace())["id"], 1)
        issue = house.accounts.tokens.issue
        await admit(house, issue(key["id"], frozenset(Scope), 60))
        with pytest.raises(UnauthenticatedError, match="expired"):
            await admit(house, issue(key["id"], frozenset(Scope), -60))

    async def test_another_installations_token_is_not_accepted(self, house):
        [key] = await house.store.read_keys((await house.make_workspace())["id"], 1)
        other = Tokens(MasterKeys([b"x" * KEY_BYTES]), None)
        with pytest.raises(UnauthenticatedError, match="not accepted"):
            await admit(house, other.issue(key["id"], frozenset(Scope), 60))

    async def test_a_new_master_key_leaves_tokens_good(self, house):
        [key] = await house.store.read_keys((await house.make_workspace())["id"], 1)
        old = house.accounts.tokens.issue(key["id"], frozenset(Scope), 60)
        rotated = Tokens(MasterKeys([b"x" * KEY_BYTES, bytes(KEY_BYTES)]), None)
        assert (await rotated.read(old)).key_id == key["id"]

    async def test_an_unsigned_token_is_not_accepted(self, house):
        [key] = await house.store.read_keys((await house.make_workspace())["id"], 1)
        token = house.accounts.tokens.issue(key["id"], frozenset(Scope), 60)
        _, claims, _ = token.split(".")
        with pytest.raises(UnauthenticatedError):
            await admit(house, f"eyJhbGciOiJub25lIn0.{claims}.")


class TestAnIdentityProviders:
    async def test_its_claims_say_where_and_what(self, platform_postgres, provider):
        house = make_house(platform_postgres, provider=provider.trusted())
        mine = await house.make_workspace()
        token = provider.sign(workspaces=[str(mine["id"])], scope="runs:read openid")
        caller = await admit(house, token)
        assert (caller.workspace_id, caller.scopes, caller.actor) == (mine["id"], {Scope.RUNS_READ}, "user:ann")
        async with house.client(Authorization=f"Bearer {token}") as http:
            assert (await http.get("/settings")).status_code == 403  # no workspaces:read
        assert provider.asked == 1

    async def test_of_several_workspaces_one_must_be_named(self, platform_postgres, provider):
        house = make_house(platform_postgres, provider=provider.trusted())
        one, two, foreign = [await house.make_workspace() for _ in range(3)]
        ids = [str(one["id"]), str(two["id"]), str(uuid4())]
        token = provider.sign(workspaces=ids, scope=["workspaces:read"])
        with pytest.raises(WrongWorkspaceError, match="requires workspace specification") as caught:
            await admit(house, token, Scope.WORKSPACES_READ)
        assert ids[0] in str(caught.value)
        assert ids[2] not in str(caught.value)  # there is no such workspace here
        assert (await admit(house, token, Scope.WORKSPACES_READ, ids[1])).workspace_id == two["id"]
        with pytest.raises(WrongWorkspaceError):
            await admit(house, token, Scope.WORKSPACES_READ, str(foreign["id"]))
        async with house.client(Authorization=f"Bearer {token}", X_Tenant_Id=ids[0]) as http:
            listed = (await http.get("/workspaces")).json()
            exchanged = await http.post("/auth/token", json={})
        assert [workspace["id"] for workspace in listed] == ids[:2]
        assert listed[0]["permissions"] == ["workspaces:read"]
        assert exchanged.status_code == 403

    @pytest.mark.parametrize(
        ("claims", "told"),
        [
            ({"iss": "https://evil.example.com"}, "iss"),
            ({"aud": "another"}, "aud"),
            ({"aud": None}, "aud"),
            ({"exp": int(time.time()) - 3600}, "expired"),
            ({"exp": None}, "exp"),
            ({"sub": None}, "sub"),
            ({"nbf": int(time.time()) + 3600}, "not yet valid"),
            ({"workspaces": ["not-an-id"]}, "malformed"),
        ],
    )
    async def test_a_claim_that_is_wrong_is_named(self, platform_postgres, provider, claims, told):
        house = make_house(platform_postgres, provider=provider.trusted())
        with pytest.raises(UnauthenticatedError, match=told):
            await admit(house, provider.sign(**claims))

    async def test_a_token_without_a_workspace_of_ours_is_403(self, platform_postgres, provider):
        house = make_house(platform_postgres, provider=provider.trusted())
        for workspaces in (None, [], str(uuid4()), 17):
            with pytest.raises(ForbiddenError, match="no workspace"):
                await admit(house, provider.sign(workspaces=workspaces, jti=str(uuid4())))

    async def test_a_token_signed_with_the_public_key_as_secret_is_refused(self, platform_postgres, provider):
        house = make_house(platform_postgres, provider=provider.trusted())
        secret = OctKey.import_key(RSA.as_dict(private=False)["n"].encode(), {"kid": "rsa"})
        for alg in ("HS384", "HS512", "HS256"):
            with pytest.raises(UnauthenticatedError):
                await admit(house, provider.sign(secret, alg))

    async def test_a_key_that_is_new_is_fetched_but_not_for_every_invented_one(
        self, platform_postgres, provider, monkeypatch
    ):
        house = make_house(platform_postgres, provider=provider.trusted())
        mine = await house.make_workspace()
        claims = {"workspaces": str(mine["id"]), "scope": "runs:read"}
        await admit(house, provider.sign(**claims))
        provider.keys = [EC]
        for _ in range(3):
            with pytest.raises(UnauthenticatedError):
                await admit(house, provider.sign(EC, "ES256", jti=str(uuid4()), **claims))
        assert provider.asked == 1
        monkeypatch.setattr(house.accounts.tokens._jwks, "_pause_until", 0.0)
        assert await admit(house, provider.sign(EC, "ES256", **claims))
        assert provider.asked == 2

    async def test_many_at_once_ask_it_once(self, platform_postgres, provider):
        house = make_house(platform_postgres, provider=provider.trusted())
        mine = await house.make_workspace()
        signed = [provider.sign(workspaces=str(mine["id"]), scope="runs:read", jti=str(n)) for n in range(8)]
        assert len(await asyncio.gather(*(admit(house, token) for token in signed))) == 8
        assert provider.asked == 1

    async def test_when_it_is_away_known_keys_stay_good(self, platform_postgres, provider, monkeypatch):
        house = make_house(platform_postgres, provider=provider.trusted())
        mine = await house.make_workspace()
        claims = {"workspaces": str(mine["id"]), "scope": "runs:read"}
        provider.status = 500
        with pytest.raises(UnavailableError):
            await admit(house, provider.sign(**claims))
        jwks = house.accounts.tokens._jwks
        provider.status = 200
        monkeypatch.setattr(jwks, "_pause_until", 0.0)
        await admit(house, provider.sign(**claims))
        provider.status = 500
        monkeypatch.setattr(jwks, "_pause_until", 0.0)
        monkeypatch.setattr(jwks, "_fresh_until", 0.0)
        assert await admit(house, provider.sign(**claims, jti="new"))
        assert provider.asked == 3

    async def test_without_one_its_tokens_are_refused_with_the_reason(self, house, provider):
        with pytest.raises(UnauthenticatedError, match="no identity provider"):
            await admit(house, provider.sign())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    st.one_of(
        st.text(max_size=60).map(lambda text: f"{text}.{text}.{text}"),
        st.tuples(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
                lambda inner: (
                    st.lists(inner, max_size=2)
                    | st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "x"]), inner, max_size=4)
                ),
            ),
            st.sampled_from(["HS256", "RS256", "none", 3, None]),
        ).map(lambda made: _nonsense(*made)),
    )
)
async def test_no_nonsense_is_anything_but_refused(token):
    reader = Tokens(MASTER_KEYS, IdentityProvider("http://127.0.0.1:9/", ISSUER, AUDIENCE))
    with pytest.raises((UnauthenticatedError, UnavailableError)):
        await reader.read(token)


def _nonsense(header, alg) -> str:
    header = {"alg": alg, "kid": "rsa", **header} if isinstance(header, dict) else header
    part = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"{part}.e30.AAAA"


def test_settings_that_name_half_an_identity_provider_stop_the_start():
    assert identity_provider(None, None, "", "workspaces", "scope") is None
    assert identity_provider("https://id/jwks", "https://id", "moorage", "w", "s").workspaces_claim == "w"
    with pytest.raises(StartupError, match="MOORAGE_JWT_AUDIENCE"):
        identity_provider("https://id/jwks", "https://id", None, "w", "s")


def test_no_repr_shows_a_signing_key(provider):
    reader = Tokens(MASTER_KEYS, provider.trusted())
    derived = MASTER_KEYS.derive("bearer tokens")[MASTER_KEYS.ids[0]]
    assert repr(derived) not in repr(vars(reader))
    assert base64.urlsafe_b64encode(derived).decode().rstrip("=") not in repr(vars(reader))
