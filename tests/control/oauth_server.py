"""A real OAuth server (authlib's) with the metadata of an MCP server, in a thread and on a port of its own."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import uvicorn
from authlib.common.security import generate_token
from authlib.oauth2 import AuthorizationServer, OAuth2Request
from authlib.oauth2.rfc6749 import ClientMixin, JsonRequest, TokenMixin, grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, JsonPayload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from tests.serving import free_port


@dataclass
class RegisteredClient(ClientMixin):
    client_id: str
    client_secret: str
    redirect_uris: list[str]
    method: str

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uris[0]

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return bool(self.client_secret) and client_secret == self.client_secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in {"authorization_code", "refresh_token"}


@dataclass
class Code:
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token(TokenMixin):
    access_token: str
    refresh_token: str
    client_id: str
    scope: str
    is_over: bool = False

    def check_client(self, client: RegisteredClient) -> bool:
        return client.client_id == self.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_expires_in(self) -> int:
        return 0

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return self.is_over


@dataclass
class Records:
    """The server's data and behaviour. `expires_in` is the life of future tokens, in seconds."""

    clients: dict[str, RegisteredClient] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    expires_in: int = 3600
    is_down: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)


class _Request(OAuth2Request):
    def __init__(self, method: str, uri: str, headers: Any, form: dict[str, str]) -> None:
        # The server is on loopback; the check is about requests that leave the machine.
        super().__init__(method, uri.replace("http://", "https://"), headers=headers)
        query = {name: values[0] for name, values in parse_qs(urlsplit(uri).query).items()}
        self._args, self._form = query, form
        self.payload = BasicOAuth2Payload(query | form)
        self.payload._datalist = defaultdict(list, {name: [value] for name, value in (query | form).items()})

    @property
    def args(self) -> dict[str, str]:
        return self._args

    @property
    def form(self) -> dict[str, str]:
        return self._form


class _Server(AuthorizationServer):
    def __init__(self, records: Records) -> None:
        super().__init__()
        self.records = records
        self.register_token_generator(
            "default",
            BearerTokenGenerator(
                lambda **_: generate_token(42),
                lambda **_: generate_token(48),
                expires_generator=lambda *_: records.expires_in,
            ),
        )

    def query_client(self, client_id: str) -> RegisteredClient | None:
        return self.records.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        scope = token.get("scope") or ""
        self.records.tokens.append(
            Token(token["access_token"], token.get("refresh_token", ""), request.client.client_id, scope)
        )

    def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
        return request

    def create_json_request(self, request: JsonRequest) -> JsonRequest:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if isinstance(body, dict):
            return JSONResponse(body, status, dict(headers))
        return Response(body or b"", status, dict(headers))

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass


class _CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        payload = request.payload
        self.server.records.codes[code] = Code(
            code,
            payload.client_id,
            payload.redirect_uri,
            payload.scope or "",
            payload.data.get("code_challenge"),
            payload.data.get("code_challenge_method"),
        )

    def query_authorization_code(self, code: str, client: RegisteredClient) -> Code | None:
        found = self.server.records.codes.get(code)
        return found if found and found.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.records.codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Code) -> str:
        return "alice"


class _RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        found = [token for token in self.server.records.tokens if token.refresh_token == refresh_token]
        return next((token for token in found if not token.is_over), None)

    def authenticate_user(self, refresh_token: Token) -> str:
        return "alice"

    def revoke_old_credential(self, refresh_token: Token) -> None:
        refresh_token.is_over = True


class _Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        found = self.server.records.tokens
        return next((token for token in found if token_string in {token.access_token, token.refresh_token}), None)

    def revoke_token(self, token: Token, request: OAuth2Request) -> None:
        token.is_over = True


class _Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request: JsonRequest) -> bool:
        return True

    def get_server_metadata(self) -> dict[str, Any]:
        return {}

    def save_client(self, client_info: dict[str, Any], client_metadata: dict[str, Any], request: Any) -> Any:
        method = client_metadata["token_endpoint_auth_method"]
        made = RegisteredClient(
            client_info["client_id"], client_info["client_secret"], client_metadata["redirect_uris"], method
        )
        self.server.records.clients[made.client_id] = made
        return made


@dataclass
class OAuthServer:
    url: str
    records: Records

    def register(self, redirect_uri: str, *, method: str = "client_secret_post") -> RegisteredClient:
        client = RegisteredClient(generate_token(16), "s3cret:with/odd chars", [redirect_uri], method)
        self.records.clients[client.client_id] = client
        return client

    def asked_of(self, path: str) -> list[dict[str, str]]:
        """Return the forms that were sent to a path, oldest first."""
        return [form for asked, form in self.records.asked if asked == path]


def _application(url: str, records: Records) -> FastAPI:
    app, server = FastAPI(), _Server(records)
    server.register_grant(_CodeGrant, [CodeChallenge(required=False)])
    server.register_grant(_RefreshGrant)
    server.register_endpoint(_Revocation)
    server.register_endpoint(_Registration)

    async def read(request: Request) -> _Request:
        form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
        records.asked.append((request.url.path, form))
        return _Request(request.method, str(request.url), request.headers, form)

    @app.get("/authorize")
    async def authorize(request: Request) -> Response:
        """Authorize every caller as Alice, who consents."""
        asked = await read(request)
        grant = server.get_consent_grant(asked, "alice")
        answer = server.create_authorization_response(asked, grant_user="alice", grant=grant)
        return RedirectResponse(answer.headers["location"], 302)

    @app.post("/token")
    async def token(request: Request) -> Response:
        asked = await read(request)
        if records.is_down:
            return Response("down", 503)
        return server.create_token_response(asked)

    @app.post("/revoke")
    async def revoke(request: Request) -> Response:
        asked = await read(request)
        return Response("down", 503) if records.is_down else server.create_endpoint_response("revocation", asked)

    @app.post("/register")
    async def register(request: Request) -> Response:
        asked = JsonRequest(request.method, str(request.url), request.headers)
        body = await request.json()

        class Payload(JsonPayload):
            @property
            def data(self) -> Any:
                return body

        asked.payload = Payload()
        return server.create_endpoint_response("client_registration", asked)

    @app.get("/mcp")
    async def mcp() -> Response:
        challenge = f'Bearer resource_metadata="{url}/.well-known/oauth-protected-resource/mcp"'
        return Response(status_code=401, headers={"www-authenticate": challenge})

    @app.get("/.well-known/oauth-protected-resource/mcp")
    async def resource() -> Response:
        return JSONResponse({"resource": f"{url}/mcp", "authorization_servers": [url]} | records.resource)

    @app.get("/.well-known/oauth-authorization-server")
    async def metadata() -> Response:
        told = {
            "issuer": url,
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
            "revocation_endpoint": f"{url}/revoke",
            "registration_endpoint": f"{url}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
        }
        return JSONResponse({name: value for name, value in (told | records.metadata).items() if value is not None})

    return app


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    records, port = Records(), free_port()
    url = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(_application(url, records), port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    give_up_at = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < give_up_at, "the OAuth server has not started"
        time.sleep(0.01)
    try:
        yield OAuthServer(url, records)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
