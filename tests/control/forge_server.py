"""Forges for tests: the parts of the APIs of GitHub, GitLab and Gitea that integrations use, in the shapes of their public
documentation (docs.github.com/rest/repos, docs.gitlab.com/api/projects, docs.gitea.com/api), and their repositories over
git's own HTTP with basic authentication.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.control.repositories import Backend, git

TOKEN = "forge-token-very-secret"
_API = {"github": "/api/v3", "gitlab": "/api/v4", "gitea": "/api/v1"}
_PROOF = {
    "github": ("Authorization", f"Bearer {TOKEN}"),
    "gitlab": ("PRIVATE-TOKEN", TOKEN),
    "gitea": ("Authorization", f"token {TOKEN}"),
}


@dataclass
class Forge:
    """A forge with the repositories of a folder: `<root>/<owner>/<name>`, and `more` that are only listed."""

    kind: str
    root: Path
    url: str = ""
    more: int = 0
    statuses: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # path and body of each
    status_answer: int = 201
    moved_to: str = ""  # where git's requests are redirected to
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path and Authorization of git's requests

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
        """The rows behind a path below the API's root; None when there is nothing."""
        if path in {"/user/repos", "/projects"}:
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
        if password != TOKEN:
            self._send(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
            return
        # Forges serve a repository with and without its suffix; a working copy has its own in .git.
        self.path = (
            self.path.replace(".git/", "/", 1)
            .replace("/info/refs", "/.git/info/refs")
            .replace("/git-upload-pack", "/.git/git-upload-pack")
        )
        super()._serve()

    def _serve_api(self, path: str, query: dict[str, list[str]]) -> None:
        name, proof = _PROOF[self.forge.kind]
        if self.headers.get(name) != proof:
            self._send(401, {}, b'{"message": "Bad credentials"}')
            return
        if self.command == "POST" and "/statuses/" in path:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.forge.statuses.append((path, body))
            self._send(self.forge.status_answer, {"Content-Type": "application/json"}, b"{}")
            return
        rows = self.forge.answer(path)
        if rows is None:
            self._send(404, {}, b'{"message": "Not Found"}')
            return
        size = int(query["limit" if self.forge.kind == "gitea" else "per_page"][0])
        start = (int(query["page"][0]) - 1) * size
        self._send(200, {"Content-Type": "application/json"}, json.dumps(rows[start : start + size]).encode())

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
