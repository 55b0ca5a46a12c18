"""Forges for tests: parts of the APIs of GitHub, GitLab and Gitea, and their repositories over git's own HTTP.

Integrations use these parts, in the forms of the public documentation (docs.github.com/rest/repos,
docs.gitlab.com/api/projects, docs.gitea.com/api). Repositories need basic authentication. GitHub has an app, too
(docs.github.com/apps): `Forge.app`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from tests.control.repositories import Backend, git

TOKEN = "forge-token-very-secret"
_API = {"github": "/api/v3", "gitlab": "/api/v4", "gitea": "/api/v1"}
_PROOF = {"github": ("Authorization", "Bearer "), "gitlab": ("PRIVATE-TOKEN", ""), "gitea": ("Authorization", "token ")}


@dataclass
class App:
    """A GitHub app with one installation. If it is `suspended`, it refuses tokens, as GitHub does."""

    app_id: str
    installation_id: int
    public_key: RSAKey
    suspended: bool = False
    tokens: list[str] = field(default_factory=list)

    def claims(self, proof: str) -> dict[str, Any] | None:
        """Return the claims of the app's JWT, checked as GitHub documents it; None for one that is refused."""
        try:
            claims = jwt.decode(proof, self.public_key, algorithms=["RS256"]).claims
        except JoseError:
            return None
        now = time.time()
        sound = claims["iss"] == self.app_id and claims["iat"] <= now < claims["exp"] <= now + 600
        return claims if sound else None

    def answer(self, path: str, proof: str) -> tuple[int, dict[str, Any]]:
        if self.claims(proof) is None:
            return 401, {"message": "A JSON web token could not be decoded"}
        if path != f"/app/installations/{self.installation_id}/access_tokens":
            return 404, {"message": "Not Found"}
        if self.suspended:
            return 403, {"message": "This installation has been suspended"}
        self.tokens.append(f"ghs_{len(self.tokens)}-very-secret")
        ends = datetime.now(UTC) + timedelta(hours=1)
        return 201, {"token": self.tokens[-1], "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ"), "permissions": {}}


@dataclass
class Forge:
    """A forge with the repositories of a folder, `<root>/<owner>/<name>`, and `more` that are only listed."""

    kind: str
    root: Path
    url: str = ""
    more: int = 0
    statuses: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # path and body of each status
    status_answer: int = 201
    moved_to: str = ""  # where git's requests are redirected to
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path and Authorization of git's requests
    app: App | None = None
    hold: threading.Event | None = None  # statuses are not answered before it is set

    def takes(self, token: str) -> bool:
        return token == TOKEN or (self.app is not None and token in self.app.tokens)

    def names(self) -> list[tuple[str, str]]:
        real = [(path.parent.name, path.name) for path in sorted(self.root.glob("*/*"))]
        return real + [("many", f"r{number}") for number in range(self.more)]

    def repository(self, number: int, owner: str, name: str) -> dict[str, Any]:
        page = f"{self.url}/{owner}/{name}"
        if self.kind == "gitlab":
            return {
                "id": number, "path": name, "path_with_namespace": f"{owner}/{name}", "default_branch": "main",
                "namespace": {"id": 1, "path": owner, "full_path": owner}, "web_url": page, "http_url_to_repo": f"{page}.git",
            }  # fmt: skip
        return {
            "id": number, "name": name, "full_name": f"{owner}/{name}", "owner": {"id": 1, "login": owner},
            "html_url": page, "clone_url": f"{page}.git", "default_branch": "main", "private": True,
        }  # fmt: skip

    def branches(self, name: str) -> list[dict[str, Any]] | None:
        folder = self.root / name
        if not folder.is_dir():
            return None
        lines = git(folder, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        key = "sha" if self.kind == "github" else "id"
        return [{"name": line.split()[0], "commit": {key: line.split()[1]}} for line in lines]

    def answer(self, path: str) -> Any:
        """Return the rows for a path below the API's root, or None when there is nothing."""
        if path in {"/user/repos", "/projects", "/installation/repositories"}:
            return [self.repository(number, *each) for number, each in enumerate(self.names(), 1)]
        if self.kind == "gitlab" and path.startswith("/projects/") and path.endswith("/repository/branches"):
            return self.branches(unquote(path.split("/")[2]))
        if path.startswith("/repos/") and path.endswith("/branches"):
            return self.branches(path.removeprefix("/repos/").removesuffix("/branches"))
        return None


class _Handler(Backend):
    forge: Forge

    def _serve(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith(_API[self.forge.kind]):
            self._serve_api(url.path.removeprefix(_API[self.forge.kind]), parse_qs(url.query))
            return
        given = self.headers.get("Authorization")
        if self.forge.moved_to:
            self._send(302, {"Location": f"{self.forge.moved_to}{self.path}"}, b"")
            return
        self.forge.seen.append((url.path, given))
        password = base64.b64decode((given or "").removeprefix("Basic ")).decode().partition(":")[2]
        if not self.forge.takes(password):
            self._send(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
            return
        # Forges serve a repository with and without the suffix; a working copy has its repository in .git.
        self.path = (
            self.path.replace(".git/", "/", 1)
            .replace("/info/refs", "/.git/info/refs")
            .replace("/git-upload-pack", "/.git/git-upload-pack")
        )
        super()._serve()

    def _serve_api(self, path: str, query: dict[str, list[str]]) -> None:
        name, prefix = _PROOF[self.forge.kind]
        token = (self.headers.get(name) or "").removeprefix(prefix)
        if self.forge.app and path.startswith("/app/"):
            self._send_json(*self.forge.app.answer(path, token))
            return
        # Only an installation can list an installation's repositories, and only a user a user's.
        wrong_place = {"/installation/repositories": token == TOKEN, "/user/repos": token != TOKEN}
        if not self.forge.takes(token) or wrong_place.get(path):
            self._send(401, {}, b'{"message": "Bad credentials"}')
            return
        if self.command == "POST" and "/statuses/" in path:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.forge.statuses.append((path, body))
            if self.forge.hold:
                self.forge.hold.wait(30)
            self._send(self.forge.status_answer, {"Content-Type": "application/json"}, b"{}")
            return
        rows = self.forge.answer(path)
        if rows is None:
            self._send(404, {}, b'{"message": "Not Found"}')
            return
        size = int(query["limit" if self.forge.kind == "gitea" else "per_page"][0])
        start = (int(query["page"][0]) - 1) * size
        shown = rows[start : start + size]
        of_installation = path == "/installation/repositories"
        self._send_json(200, {"total_count": len(rows), "repositories": shown} if of_installation else shown)

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def forge_server(kind: str, root: Path, more: int = 0) -> Iterator[Forge]:
    forge = Forge(kind, root, more=more)
    handler = type("Handler", (_Handler,), {"root": root, "forge": forge})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    forge.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
