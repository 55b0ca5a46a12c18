"""The front door, on the real Caddy: its routes, its answers when no server is there, and its life."""

from __future__ import annotations

import json
import multiprocessing
import os
import pwd
import signal
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from moorage.embedded import caddy, processes
from moorage.embedded.caddy import EmbeddedCaddy
from moorage.embedded.front_door import BodyLimits
from moorage.kernel.errors import EngineError

FORK = multiprocessing.get_context("fork")
IS_ROOT = os.geteuid() == 0
LIMITS = BodyLimits(ingest_bytes_max=3000, upload_bytes_max=4000, else_bytes_max=2000, drained_bytes_max=0)
SECRET = "lsv2_pt_not-for-logs"


class Echo(BaseHTTPRequestHandler):
    """A server that answers with the request, and with its own name."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with suppress(OSError):  # the front door closes the connection when a body is too large
            size = self._read_body()
            told = {"by": self.server.name, "path": self.path, "headers": dict(self.headers), "size": size}  # type: ignore[attr-defined]
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            for cookie in filter(None, self.headers.get("X-Set", "").split("|")):
                self.send_header("Set-Cookie", cookie)
            self.end_headers()
            self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the base class calls

    def _read_body(self) -> int:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        size = 0
        while chunk := int(self.rfile.readline() or "0", 16):
            size += len(self.rfile.read(chunk + 2)) - 2
        return size

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        super().__init__(str(path), Echo)


@contextmanager
def serving(name: str, path: Path) -> Iterator[None]:
    with EchoServer(name, path) as server:
        path.chmod(0o666)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            path.unlink()


class FrontDoor:
    """A front door with its own home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "front-door"
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.caddy = self.another()

    def another(self, port: int | None = None) -> EmbeddedCaddy:
        """Return the object that the next owner of the home makes."""
        port = port or self.port
        return EmbeddedCaddy(self.home, f"http://127.0.0.1:{port}", LIMITS, lambda: [_listening(port)])

    @property
    def pid(self) -> int:
        [pid] = self.caddy._pids()
        return pid

    def link(self, name: str, target: Path) -> None:
        """Point the name to a socket, as a deploy does."""
        new = self.directory / "front" / ".new"
        new.symlink_to(target)
        new.replace(self.directory / "front" / name)

    def get(self, path: str, **options) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, **options)

    def post(self, path: str, **options) -> httpx.Response:
        return httpx.post(self.url + path, timeout=10, **options)


def _free_port() -> int:
    with closing(_listening(0)) as probe:
        return int(probe.getsockname()[1])


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(128)
    return listening


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def door(folder: Path) -> Iterator[FrontDoor]:
    """Start a front door that is shared by the tests that leave it unchanged."""
    door = FrontDoor(folder / "home")
    door.caddy.start()
    yield door
    door.caddy.stop()


@pytest.fixture
def platform(door: FrontDoor) -> Iterator[None]:
    with serving("platform", door.caddy.platform_socket):
        yield


@pytest.fixture
def own_door(folder: Path, request: pytest.FixtureRequest) -> Iterator[FrontDoor]:
    """Make a front door for a test that starts, stops or kills it. Its path is longer than a socket's may be."""
    door = FrontDoor(folder / ("long-" * 30) / request.node.name)
    yield door
    door.caddy.stop()


# --- where requests go --------------------------------------------------------------------------------------------------


def test_what_is_not_a_deployments_goes_to_the_platform_under_any_host_name(door, platform):
    for host in ("127.0.0.1", "localhost:8080", "eu.moorage.example", "UPPER.example", "[::1]:80"):
        told = door.get("/api-host/v2/deployments?limit=1", headers={"Host": host}).json()
        assert (told["by"], told["path"]) == ("platform", "/api-host/v2/deployments?limit=1")


def test_the_platform_learns_the_true_address_of_the_client(door, platform):
    lies = {"X-Real-IP": "9.9.9.9", "X-Forwarded-For": "8.8.8.8", "X-Forwarded-Host": "evil.example"}
    headers = door.get("/", headers=lies).json()["headers"]
    assert headers["X-Forwarded-For"] == "127.0.0.1"
    assert headers["X-Forwarded-Host"] == f"127.0.0.1:{door.port}"
    assert "X-Real-Ip" not in headers


def test_a_deployment_is_served_at_its_path_and_a_switch_moves_kept_connections_too(door, folder, platform):
    with (
        serving("old", folder / "r1.sock"),
        serving("new", folder / "r2.sock"),
        httpx.Client(base_url=door.url) as client,
    ):
        door.link("d-agent-1.sock", folder / "r1.sock")
        told = client.get("/d/agent-1/runs/wait?x=1").json()
        assert (told["by"], told["path"]) == ("old", "/runs/wait?x=1")
        door.link("d-agent-1.sock", folder / "r2.sock")
        assert client.get("/d/agent-1/ok").json()["by"] == "new"


@pytest.mark.parametrize("path", ["/d/unknown/ok", "/d/unknown", "/d/unknown%2f..%2fother/ok"])
def test_a_deployment_that_does_not_run_is_told_as_such(door, platform, path):
    answer = door.get(path)
    assert (answer.status_code, answer.json()) == (502, {"detail": "The deployment is not running"})
    assert answer.headers["Retry-After"] == "1"


# The console's own cookie: with another path, with a name that only browsers take for it, and with a similar name.
SESSIONS = [
    "moorage_session=mine; Path=/",
    "moorage_session=mine; Path=/o",
    "=moorage_session=mine",
    " moorage_session = x",
]


def test_an_agent_neither_sees_the_session_of_the_console_nor_puts_another_in_its_place(door, folder, platform):
    sent = {
        "Cookie": "a=1; moorage_session=secret; b=2",
        "X-Set": "|".join([*SESSIONS, "own=1; Path=/", "my_session=2"]),
    }
    with serving("chat", folder / "chat.sock"):
        door.link("d-chat.sock", folder / "chat.sock")
        answer = door.get("/d/chat/ok", headers=sent)
    assert answer.json()["headers"]["Cookie"] == "a=1; b=2"
    assert [value for value in answer.headers.get_list("set-cookie") if value] == ["own=1; Path=/", "my_session=2"]
    # Its pages have an origin of their own, so their scripts cannot use the session.
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    told = door.get("/login", headers=sent)  # the platform sees and sets it
    assert "moorage_session=secret" in told.json()["headers"]["Cookie"]
    assert len(told.headers.get_list("set-cookie")) == len(SESSIONS) + 2


@pytest.mark.parametrize("path", ["/d/../d-x", "/d/%2e%2e/x", "/d/UPPER/x", "/d/" + "a" * 64 + "/x"])
def test_a_path_that_names_no_deployment_is_the_platforms(door, folder, platform, path):
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert b'"by": "platform"' in b"".join(iter(lambda: raw.recv(65536), b""))


def test_a_host_name_is_a_deployments_own_once_it_is_marked(door, folder, platform):
    host = {"Host": "chat.example.test:8443"}
    assert door.get("/ok", headers=host).json()["by"] == "platform"
    with serving("chat", folder / "chat.sock"):
        door.link("d-chat.sock", folder / "chat.sock")
        door.link("l-chat.example.test", Path("d-chat.sock"))
        (door.directory / "front" / "h-chat.example.test").touch(0o644)
        told = door.get("/ok", headers=host | {"Cookie": "a=1; moorage_session=secret; b=2"}).json()
        assert (told["by"], told["headers"]["Cookie"]) == ("chat", "a=1; b=2")
        for path in ("/d/other/ok", "/v2/deployments", "/"):  # all paths at its own host name are its own
            told = door.get(path, headers=host).json()
            assert (told["by"], told["path"]) == ("chat", path)
        longest = f"{'a' * 60}.{'b' * 20}.example"
        door.link(f"l-{longest}", Path("d-chat.sock"))
        (door.directory / "front" / f"h-{longest}").touch(0o644)
        assert door.get("/ok", headers={"Host": longest}).json()["by"] == "chat"
    assert door.get("/ok", headers=host).status_code == 502


@pytest.mark.parametrize(
    "path, size_max",
    [
        ("/runs", 3000),
        ("/runs/batch", 3000),
        ("/api/v1/runs/multipart", 3000),
        ("/runs/0192e2c1-0000-7000-8000-000000000000", 3000),
        ("/otel/v1/traces", 3000),
        ("/runs/query", 2000),
        ("/api/v1/sessions", 2000),
        ("/v2/uploads/1", 4000),
    ],
)
def test_bodies_over_the_limit_of_their_path_are_413(door, platform, path, size_max):
    assert door.post(path, content=b"x" * size_max).json()["size"] == size_max
    for body in (b"x" * (size_max + 1), iter([b"x" * size_max, b"x"])):  # with and without the length of the body
        answer = door.post(path, content=body)
        assert (answer.status_code, "larger" in answer.json()["detail"]) == (413, True)


def test_agents_take_no_more_than_anyone(door, folder):
    with serving("agent", folder / "r3.sock"):
        door.link("d-small.sock", folder / "r3.sock")
        assert door.post("/d/small/runs/batch", content=b"x" * 2001).status_code == 413


def test_without_the_platform_it_is_503_and_nothing_of_the_request_is_logged(door):
    answer = door.get(f"/runs?key={SECRET}", headers={"X-Api-Key": SECRET})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "try again" in answer.json()["detail"]
    assert SECRET not in (door.directory / "log").read_text()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_waits_for_what_is_just_being_restarted_and_arrives_whole(door, folder, method):
    door.link("d-back.sock", folder / "back.sock")
    with ThreadPoolExecutor() as clients:
        content = b"x" * 1500 if method == "POST" else None
        asked = [clients.submit(httpx.request, method, f"{door.url}/d/back/", content=content) for _ in range(4)]
        time.sleep(0.5)
        assert not any(each.done() for each in asked)
        with serving("back", folder / "back.sock"):
            told = [each.result() for each in asked]
    assert {each.status_code for each in told} == {200}
    assert {each.json()["size"] for each in told} == {1500 if content else 0}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_was_sent_is_not_sent_again(door, folder, method):
    """The request may have taken effect before its server died."""
    taken: list[bytes] = []
    path = folder / f"dies-{method}.sock"
    with socket.socket(socket.AF_UNIX) as dies:
        dies.bind(str(path))
        path.chmod(0o666)
        dies.listen()

        def take() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = dies.accept()
                    taken.append(connection.recv(65536))
                    connection.close()

        threading.Thread(target=take, daemon=True).start()
        door.link("d-dies.sock", path)
        answer = httpx.request(method, f"{door.url}/d/dies/once", timeout=10)
        dies.shutdown(socket.SHUT_RDWR)
    assert (answer.status_code, len(taken)) == (502, 1)


# --- how it lives -------------------------------------------------------------------------------------------------------


def test_the_next_owner_adopts_it(door):
    pid, next_owner = door.pid, door.another()
    assert next_owner.is_running()
    next_owner.start()
    assert door.pid == pid
    assert not next_owner._listening


def test_one_for_another_address_replaces_it(own_door):
    own_door.caddy.start()
    old, moved = own_door.pid, own_door.another(_free_port())
    moved.start()
    assert own_door.pid != old
    moved.stop()
    assert not own_door.caddy.is_running()


def test_one_that_was_killed_comes_back_and_refuses_nobody_meanwhile(own_door):
    own_door.caddy.start()
    with serving("platform", _short(own_door.caddy.platform_socket)):
        os.kill(own_door.pid, signal.SIGKILL)
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(own_door.get("/ok").status_code))
        waiting.start()
        own_door.caddy.start()
        waiting.join(10)
        assert answers == [200]


def test_it_stops_within_its_bound_though_a_stream_is_open_and_frees_the_address(own_door, monkeypatch):
    monkeypatch.setattr(caddy, "STOP_BOUND_S", 0.5)
    own_door.caddy.start()
    with ExitStack() as stack:
        endless = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        endless.bind(str(_short(own_door.caddy.platform_socket)))
        endless.listen()
        own_door.caddy.platform_socket.chmod(0o666)
        client = stack.enter_context(socket.create_connection(("127.0.0.1", own_door.port), timeout=10))
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        stack.enter_context(closing(endless.accept()[0]))
        began = time.monotonic()
        own_door.caddy.stop()
        assert 0.5 < time.monotonic() - began < 3
    with closing(_listening(own_door.port)):
        pass
    own_door.caddy.stop()  # the second call changes nothing


def test_an_address_that_is_taken_is_told_before_anything_runs(own_door):
    def refuse() -> socket.socket:
        raise EngineError("Cannot listen on that")

    with pytest.raises(EngineError, match="Cannot listen"):
        EmbeddedCaddy(own_door.home, "http://x", LIMITS, refuse).start()
    assert not own_door.caddy._pids()


@pytest.mark.skipif(not IS_ROOT, reason="only root has a second user for engines")
def test_under_root_it_runs_as_the_engines_user_who_can_change_no_link(door):
    assert Path(f"/proc/{door.pid}").stat().st_uid == processes.ENGINE_UID
    for path in (door.directory, door.directory / "front", door.directory / "caddy.json"):
        found = path.stat()
        assert found.st_uid == 0
        assert not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    platform = door.caddy.platform_socket.parent.stat()
    assert (platform.st_gid, stat.S_IMODE(platform.st_mode)) == (processes.ENGINE_UID, 0o710)


@pytest.mark.skipif(not IS_ROOT, reason="the rest of this file is this test, for an ordinary user")
def test_an_ordinary_user_runs_it_too(folder):
    """It is started by fork, since the interpreter may be where that user could not start it."""
    user = pwd.getpwnam("nobody").pw_uid
    home = folder / "ordinary"
    home.mkdir()
    os.chown(home, user, user)
    child = FORK.Process(target=_as_ordinary_user, args=(home / "home", user))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def _as_ordinary_user(home: Path, uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    door = FrontDoor(home)
    door.caddy.start()
    with serving("platform", door.caddy.platform_socket):
        assert door.get("/ok").json()["by"] == "platform"
    assert Path(f"/proc/{door.pid}").stat().st_uid == uid
    door.caddy.stop()


def _short(path: Path) -> Path:
    """Return the path through its open directory, since the kernel limits the length of a socket's path."""
    return Path(f"/proc/{os.getpid()}/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")
