"""Users by the signed tokens of an identity provider, which the test runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from langgraph_sdk import get_client

from tests.agents.guarded import GUARDED, credentials
from tests.javascript import install_packages, needs_npm
from tests.serving import Server, make_server

JAVASCRIPT = Path(__file__).parent / "javascript"


class Issuer:
    """An issuer that signs tokens, and serves the keys to check them with."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        issuer = self

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(KeySet([issuer.key]).as_dict(private=False)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, who: str, key: Any = None, **claims: Any) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": "agents", "sub": who, "exp": now + 600, "scope": "read write"}
        return jwt.encode({"alg": "RS256", "kid": "one"}, {**usual, **claims}, key or self.key)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def server(issuer: Issuer) -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), GUARDED.with_name("jwt.json"), TEST_ISSUER=issuer.url)
        running.start()
        yield running
        assert running.stop() == 0


async def test_the_python_sdk_with_tokens_of_an_issuer(server: Server, issuer: Issuer) -> None:
    async with (
        get_client(url=server.url, headers=credentials(issuer.token("ada"))) as ada,
        get_client(url=server.url, headers=credentials(issuer.token("bob"))) as bob,
    ):
        thread = await ada.threads.create()
        result: Any = await ada.runs.wait(thread["thread_id"], "whoami", input={})
        assert result["told"]["user_id"] == "ada"
        assert result["told"]["permissions"] == ["read", "write"]
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await bob.threads.get(thread["thread_id"])
        assert refused.value.response.status_code == 404


@pytest.mark.parametrize("wrong", ["expired", "audience", "issuer", "signature", "none", "garbage"])
def test_a_token_that_is_not_good_lets_nobody_in(server: Server, issuer: Issuer, wrong: str) -> None:
    tokens = {
        "expired": lambda: issuer.token("ada", exp=int(time.time()) - 1),
        "audience": lambda: issuer.token("ada", aud="others"),
        "issuer": lambda: issuer.token("ada", iss="http://evil.example"),
        "signature": lambda: issuer.token("ada", RSAKey.generate_key(2048, {"kid": "one"})),
        "none": lambda: "eyJhbGciOiJub25lIn0." + issuer.token("ada").split(".")[1] + ".",
        "garbage": lambda: "garbage",
    }
    answer = httpx.post(f"{server.url}/threads", json={}, headers=credentials(tokens[wrong]()))
    assert (answer.status_code, answer.json()) == (401, {"detail": "Invalid token"})


@needs_npm
async def test_the_javascript_sdk_with_tokens_of_an_issuer(
    server: Server, issuer: Issuer, tmp_path: Path, cache: pytest.Cache
) -> None:
    folder = shutil.copytree(JAVASCRIPT, tmp_path / "users")
    await asyncio.to_thread(install_packages, cache, folder)
    command = ["node", "users.mjs", server.url, issuer.token("ada"), issuer.token("bob")]
    ended = await asyncio.to_thread(
        subprocess.run, command, cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    assert json.loads(ended.stdout or f'"{ended.stderr}"') == {
        "owner": "ada", "identity": "ada", "permissions": ["read", "write"], "other": 404, "found": 0, "nobody": 401,
    }  # fmt: skip
