"""Webhooks: a real receiver is told of every end of a run, whatever is killed in between; and who may not be told."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
import pytest

from moorage.agents.langgraph_json import WebhookConfig, WebhookRules
from moorage.agents.store.webhooks import WebhookStore
from moorage.agents.webhooks import Deliveries, WebhookPolicy, webhook_headers
from moorage.kernel.addresses import Address, blocked_range
from moorage.kernel.errors import InvalidRequestError, StartupError
from moorage.kernel.postgres import Postgres
from tests.serving import Server, make_server

pytest_plugins = "tests.kernel.fixtures"

GRAPHS = """
import asyncio
from typing import Any
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    text: str
    answer: Any

async def echo(state: State) -> State:
    return {"text": state.get("text", "") + "!"}

async def fail(state: State) -> State:
    raise ValueError("boom")

async def ask(state: State) -> State:
    return {"answer": interrupt("Which?")}

async def sleep(state: State) -> State:
    await asyncio.sleep(60)
    return {}

def _graph(node):
    return StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()

echoes, fails, asks, sleeps = map(_graph, (echo, fail, ask, sleep))
"""
LANGGRAPH_JSON = {
    "dependencies": ["."],
    "env": {"LG_WEBHOOK_TOKEN": "hunter2-header"},
    "graphs": {name: f"./graphs.py:{name}" for name in ("echoes", "fails", "asks", "sleeps")},
    "webhooks": {
        "headers": {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "X-From": "moorage"},
        "url": {"require_https": False, "disable_loopback": False},
    },
}
SECRETS = ("hunter2-header", "hunter2-query", "hunter2-login")


@dataclass
class Told:
    """A request that came in."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Receiver:
    """A web server on this machine that notes what it is told. `answers` are used up path by path; then 200."""

    port: int = 0
    tls: ssl.SSLContext | None = None
    answers: dict[str, list[int]] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)  # while set, nobody is answered
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        receiver = self

        class Noting(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.told.append(Told(self.path, dict(self.headers), body, time.monotonic()))
                while receiver.silent.is_set():
                    time.sleep(0.05)
                waiting = receiver.answers.get(self.path, [])
                status = waiting.pop(0) if waiting else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Tests read what was told instead."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *arguments: Any) -> None:
                """Whoever was killed, or refused our certificate, does not wait for an answer."""

        self._server = Quiet(("127.0.0.1", self.port), Noting)
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.silent.clear()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def url(self, path: str, login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.port}{path}"

    def hears(self, path: str, *, times: int = 1, within_s: float = 15) -> list[Told]:
        """What came in at the path, once there is as much as expected."""
        deadline = time.monotonic() + within_s
        while len(found := [told for told in self.told if told.path == path]) < times:
            assert time.monotonic() < deadline, f"{len(found)} at {path}, expected {times}"
            time.sleep(0.02)
        return found


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    running = Receiver(tls=tls)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def project(folder: Path, **webhooks: Any) -> Path:
    """A langgraph.json that lets its runs tell a receiver on this machine."""
    (folder / "graphs.py").write_text(GRAPHS)
    config = {**LANGGRAPH_JSON, "webhooks": {**LANGGRAPH_JSON["webhooks"], **webhooks}}  # type: ignore[dict-item]
    (folder / "langgraph.json").write_text(json.dumps(config))
    return folder / "langgraph.json"


@pytest.fixture(scope="module")
def telling() -> Iterator[Server]:
    """A server whose runs may tell a receiver on this machine, and end after three seconds."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        running = make_server(folder, project(folder), BG_JOB_TIMEOUT_SECS="3", LOG_LEVEL="DEBUG")
        running.start()
        yield running
        assert running.stop() == 0


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Server]:
    """A server of this test alone, that may be killed and started again."""
    server = make_server(folder, project(folder), **environment)
    server.start()
    try:
        yield server
        assert server.stop() == 0
    except BaseException:
        server.kill()
        raise


@pytest.fixture
async def client(telling: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=telling.url, timeout=30) as http:
        yield http


async def new_thread(client: httpx.AsyncClient) -> str:
    return str((await client.post("/threads", json={})).json()["thread_id"])


# --- what is told -------------------------------------------------------------------------------------------------


async def test_the_end_of_a_run_is_told_with_the_run_and_the_values_of_its_thread(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "echoes", "input": {"text": "x"}, "metadata": {"m": 1}, "webhook": receiver.url("/good")}
    made = (await client.post(f"/threads/{thread_id}/runs", json=run)).json()
    (told,) = receiver.hears("/good")
    shown = (await client.get(f"/threads/{thread_id}/runs/{made['run_id']}")).json()
    times = {name: told.body.pop(name) for name in ("run_started_at", "run_ended_at", "webhook_sent_at")}
    assert told.body.pop("values") == {"text": "x!"}
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(told.body.pop(name)) == datetime.fromisoformat(shown.pop(name))
    assert told.body == shown
    assert (shown["status"], shown["kwargs"]["webhook"]) == ("success", receiver.url("/good"))
    assert sorted(map(datetime.fromisoformat, times.values())) == list(map(datetime.fromisoformat, times.values()))


async def test_headers_hold_what_the_environment_says(client, receiver):
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url("/headers")})
    (told,) = receiver.hears("/headers")
    assert told.headers["Authorization"] == "Bearer hunter2-header"
    assert told.headers["X-From"] == "moorage"
    assert told.headers["Content-Type"] == "application/json"
    assert told.headers["Host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("way", ["/runs", "/runs/wait", "/runs/stream"])
async def test_a_temporary_run_is_told_without_values(client, receiver, way):
    path = f"/temporary{way}"
    await client.post(way, json={"assistant_id": "echoes", "input": {"text": "x"}, "webhook": receiver.url(path)})
    (told,) = receiver.hears(path)
    assert (told.body["status"], told.body["values"]) == ("success", None)
    assert "error" not in told.body


async def test_a_stateless_run_that_keeps_its_thread_is_told_with_values(client, receiver):
    run = {"assistant_id": "echoes", "input": {"text": "x"}, "on_completion": "keep", "webhook": receiver.url("/keep")}
    await client.post("/runs/wait", json=run)
    assert receiver.hears("/keep")[0].body["values"] == {"text": "x!"}


@pytest.mark.parametrize("temporary", [False, True])
async def test_a_run_that_fails_is_told_with_its_error(client, receiver, temporary):
    place, path = (
        ("/runs", "/fails/temporary") if temporary else (f"/threads/{await new_thread(client)}/runs", "/fails")
    )
    await client.post(f"{place}/wait", json={"assistant_id": "fails", "input": {}, "webhook": receiver.url(path)})
    (told,) = receiver.hears(path)
    assert (told.body["status"], told.body["error"]) == ("error", {"error": "ValueError", "message": "boom"})


async def test_a_run_that_takes_too_long_is_told(client, receiver):
    await client.post("/runs", json={"assistant_id": "sleeps", "input": {}, "webhook": receiver.url("/timeout")})
    (told,) = receiver.hears("/timeout")
    assert (told.body["status"], told.body["error"]["error"]) == ("timeout", "TimeoutError")


async def test_an_interrupted_graph_is_a_success(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "asks", "input": {"text": "x"}, "webhook": receiver.url("/asks")}
    await client.post(f"/threads/{thread_id}/runs/wait", json=run)
    (told,) = receiver.hears("/asks")
    assert told.body["status"] == "success"
    assert told.body["values"]["text"] == "x"
    assert "error" not in told.body
    assert (await client.get(f"/threads/{thread_id}")).json()["status"] == "interrupted"


@pytest.mark.parametrize("action, error", [("interrupt", "UserInterrupt"), ("rollback", "UserRollback")])
async def test_cancelled_runs_are_told_also_those_that_never_started(client, receiver, action, error):
    thread_id = await new_thread(client)
    runs = [
        (await client.post(f"/threads/{thread_id}/runs", json=run)).json()["run_id"]
        for run in (
            {"assistant_id": "sleeps", "input": {}, "webhook": receiver.url(f"/cancelled/{action}/{number}")}
            for number in range(2)
        )
    ]
    await client.post("/runs/cancel", params={"action": action}, json={"thread_id": thread_id, "run_ids": runs})
    running, waiting = (receiver.hears(f"/cancelled/{action}/{number}")[0].body for number in range(2))
    for told, run_id in zip((running, waiting), runs, strict=True):
        assert (told["run_id"], told["status"], told["error"]["error"]) == (run_id, "interrupted", error)
    assert running["run_started_at"] is not None
    assert waiting["run_started_at"] is None


async def test_a_deleted_run_tells_nobody(client, receiver):
    thread_id = await new_thread(client)
    run = {"assistant_id": "sleeps", "input": {}, "webhook": receiver.url("/deleted")}
    run_id = (await client.post(f"/threads/{thread_id}/runs", json=run)).json()["run_id"]
    await client.delete(f"/threads/{thread_id}/runs/{run_id}")
    await client.post(
        "/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url("/after/deleted")}
    )
    receiver.hears("/after/deleted")
    assert not [told for told in receiver.told if told.path == "/deleted"]


async def test_odd_text_arrives_as_it_was_sent(client, receiver):
    run = {"assistant_id": "echoes", "input": {"text": "a\0b"}, "webhook": receiver.url("/odd?x=ü")}
    await client.post("/runs/wait", json=run)
    assert receiver.hears("/odd?x=%C3%BC")[0].body["kwargs"]["input"] == {"text": "a\0b"}


# --- and again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_a_receiver_that_does_not_take_it_is_told_again(client, receiver, status):
    path = f"/again/{status}"
    receiver.answers[path] = [status]
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": receiver.url(path)})
    first, second = receiver.hears(path, times=2)
    assert 0.9 < second.at - first.at < 4
    assert first.body.pop("webhook_sent_at") < second.body.pop("webhook_sent_at")
    assert first.body == second.body
    assert not [told for told in receiver.told if told.path == "/elsewhere"]  # a redirect is not followed


async def test_no_secret_reaches_the_log(telling, client, receiver):
    path = "/secret?token=hunter2-query"
    receiver.answers[path] = [500]
    url = receiver.url(path, login="me:hunter2-login@")
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": url})
    first, _ = receiver.hears(path, times=2)
    assert first.headers["Authorization"] == "Bearer hunter2-header"  # the operator's word counts
    nobody = "http://127.0.0.1:9/?token=hunter2-query"
    await client.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": nobody})
    deadline = time.monotonic() + 10
    while "trouble=ConnectError" not in (log := telling.log.read_text()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert "webhook delivered" in log
    assert "HTTP 500" in log
    assert not [secret for secret in SECRETS if secret in log]


def test_kill_between_the_end_of_a_run_and_its_delivery_loses_nothing_and_a_lost_run_is_told(folder):
    """The first receiver takes the request and never answers; the second is not there at all; the third is all right."""
    environment = {"MOORAGE_LEASE_SECONDS": "2", "BG_JOB_MAX_RETRIES": "1"}
    with (
        receiving() as mute,
        receiving() as absent,
        receiving() as good,
        running(folder, **environment) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
    ):
        absent.stop()
        mute.silent.set()
        for url in (mute.url("/mute"), absent.url("/absent")):
            http.post("/runs/wait", json={"assistant_id": "echoes", "input": {}, "webhook": url})
        thread_id = http.post("/threads", json={}).json()["thread_id"]
        lost = {"assistant_id": "sleeps", "input": {}, "webhook": good.url("/lost")}
        http.post(f"/threads/{thread_id}/runs", json=lost)
        mute.hears("/mute")
        server.kill()
        mute.silent.clear()
        absent.start()
        server.start()
        first, second = mute.hears("/mute", times=2)
        assert first.body["run_id"] == second.body["run_id"]
        assert absent.hears("/absent", within_s=20)[0].body["status"] == "success"
        told = good.hears("/lost")[0].body
        assert (told["status"], told["error"]["error"]) == ("error", "WorkerLost")


# --- who may not be told: a server whose langgraph.json says nothing of webhooks -----------------------------------------

ABSOLUTE = "Webhook must be an absolute URL"
INVALID = "Webhook is not a valid URL"
REFUSED = [
    ("http://example.com/hook", "Webhook must use https"),
    ("ftp://example.com/hook", "Webhook must use https"),
    ("http://127.0.0.1:2024/hook", "Webhook must use https"),
    ("https://127.0.0.1/hook", "Webhook host blocked: loopback IP range"),
    ("https://localhost/hook", "Webhook host blocked: loopback IP range"),
    ("https://127.1/hook", "Webhook host blocked: loopback IP range"),
    ("https://2130706433/hook", "Webhook host blocked: loopback IP range"),
    ("https://[::1]/hook", "Webhook host blocked: loopback IP range"),
    ("https://[::ffff:127.0.0.1]/hook", "Webhook host blocked: loopback IP range"),
    ("https://user:password@127.0.0.1/hook", "Webhook host blocked: loopback IP range"),
    ("https://10.1.2.3/hook", "Webhook host blocked: private IP range"),
    ("https://172.16.0.1/hook", "Webhook host blocked: private IP range"),
    ("https://192.168.1.1/hook", "Webhook host blocked: private IP range"),
    ("https://[fd00::1]/hook", "Webhook host blocked: private IP range"),
    ("https://169.254.169.254/latest/meta-data", "Webhook host blocked: link-local IP range"),
    ("https://0.0.0.0/hook", "Webhook host blocked: reserved IP range"),
    ("https://100.64.0.1/hook", "Webhook host blocked: reserved IP range"),
    ("https://255.255.255.255/hook", "Webhook host blocked: reserved IP range"),
    ("/hook", ABSOLUTE),
    ("hook", ABSOLUTE),
    ("https:///hook", ABSOLUTE),
    ("https://example.com:99999/hook", INVALID),
    ("https://example.com:0/hook", INVALID),
    ("https://exa\0mple.com/hook", INVALID),
    (f"https://{'a' * 70}.example.com/hook", INVALID),
]


@pytest.mark.parametrize("url, detail", REFUSED)
async def test_a_webhook_against_the_policy_is_refused_and_nothing_happened(http, url, detail):
    before = (await http.post("/threads/count", json={})).json()
    run = {"assistant_id": "echo", "input": {}, "webhook": url}
    on_new_thread = {**run, "if_not_exists": "create"}
    batch = [{"assistant_id": "echo", "on_completion": "keep"}, {**run, "on_completion": "keep"}]
    for place, body in (
        (f"/threads/{UUID(int=0x3EB)}/runs", on_new_thread),
        (f"/threads/{UUID(int=0x3EB)}/runs/stream", on_new_thread),
        ("/runs/wait", run),
        ("/runs/batch", batch),
    ):
        answer = await http.post(place, json=body)
        assert (answer.status_code, answer.json()) == (422, {"detail": detail}), place
    assert (await http.post("/threads/count", json={})).json() == before


@pytest.mark.parametrize("webhook", ["", "https://example.com/" + "a" * 65536, 1, [], {"url": "https://example.com"}])
async def test_a_webhook_is_a_string_of_bounded_length(http, webhook):
    answer = await http.post("/runs/wait", json={"assistant_id": "echo", "webhook": webhook})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("webhook: ")


async def test_no_webhook_is_no_webhook(http):
    run = {"assistant_id": "echo", "input": {"text": "x"}, "webhook": None}
    assert (await http.post("/runs/wait", json=run)).json()["text"] == "x!"


@pytest.mark.parametrize(
    "address, place",
    [
        ("8.8.8.8", None),
        ("2606:4700:4700::1111", None),
        ("64:ff9b::808:808", None),  # NAT64 of 8.8.8.8
        ("64:ff9b::7f00:1", "loopback"),  # NAT64 of 127.0.0.1
        ("2002:7f00:1::", "loopback"),  # 6to4 of 127.0.0.1
        ("127.255.0.1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("::", "reserved"),
        ("::127.0.0.1", "reserved"),
        ("2001:db8::1", "reserved"),
        ("224.0.0.1", "reserved"),
        ("ff02::1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("192.0.2.1", "reserved"),
    ],
)
def test_ranges_that_are_not_the_public_internet(address, place):
    assert blocked_range(ip_address(address)) == place


class Names:
    """Names that lead where the test says, one place after the other."""

    def __init__(self, *places: str) -> None:
        self.places = list(places)

    async def __call__(self, host: str) -> list[Address]:
        return [ip_address(place) for place in self.places.pop(0).split()]


@pytest.mark.parametrize(
    "rules, url, detail",
    [
        ({"allowed_domains": ["hooks.example.com"]}, "https://hooks.example.com/x", None),
        ({"allowed_domains": ["hooks.example.com"]}, "https://HOOKS.example.com./x", None),
        ({"allowed_domains": ["*.example.com"]}, "https://a.b.example.com/x", None),
        ({"allowed_domains": ["*.example.com"]}, "https://example.com/x", "Webhook host not allowed"),
        ({"allowed_domains": ["*.example.com"]}, "https://notexample.com/x", "Webhook host not allowed"),
        ({"allowed_domains": ["example.com"]}, "https://example.com@evil.example/x", "Webhook host not allowed"),
        ({"allowed_ports": [443]}, "https://example.com/x", None),
        ({"allowed_ports": [443]}, "https://example.com:8443/x", "Webhook port not allowed: 8443"),
        ({"allowed_ports": [80], "require_https": False}, "http://example.com/x", None),
        ({"max_url_length": 20}, "https://example.com/", None),
        ({"max_url_length": 20}, "https://example.com/x", "Webhook URL is longer than 20 characters"),
        ({"require_https": False}, "http://example.com/x", None),
        ({"require_https": False}, "ftp://example.com/x", "Webhook must use http or https"),
    ],
)
async def test_the_rules_of_langgraph_json(rules, url, detail):
    policy = WebhookPolicy(WebhookRules(**rules), Names("93.184.215.14"))
    if detail is None:
        await policy.check(url)
        return
    with pytest.raises(InvalidRequestError) as refused:
        await policy.check(url)
    assert str(refused.value) == detail


async def test_every_address_of_a_name_is_checked():
    policy = WebhookPolicy(WebhookRules(), Names("93.184.215.14 10.0.0.1"))
    with pytest.raises(InvalidRequestError, match="private"):
        await policy.check("https://example.com/")


async def test_only_loopback_is_opened_by_disable_loopback():
    policy = WebhookPolicy(WebhookRules(disable_loopback=False), Names("127.0.0.1", "10.0.0.1"))
    await policy.check("https://example.com/")
    with pytest.raises(InvalidRequestError, match="private"):
        await policy.check("https://example.com/")


async def test_a_name_that_does_not_resolve_yet_is_accepted():
    async def fails(host: str) -> list[Address]:
        raise OSError("no such name")

    await WebhookPolicy(WebhookRules(), fails).check("https://later.example.com/")


# --- one attempt, on a database of its own ------------------------------------------------------------------------

INSERT = """
INSERT INTO webhook_deliveries (run_id, url, run, attempt) VALUES (gen_random_uuid(), %s, '{"run_id": "r"}', %s)
"""
LOCAL = WebhookRules(require_https=False, disable_loopback=False)


async def attempt(postgres: Postgres, policy: WebhookPolicy, url: str, *, after: int = 0) -> str:
    """Makes one attempt at a delivery; its status then."""
    store = WebhookStore(postgres)
    await postgres.execute("TRUNCATE webhook_deliveries")
    await postgres.execute(INSERT, (url, after))
    (row,) = await store.claim("tester", 10, 60)
    await Deliveries(store, policy, {}).execute(row)
    left = await postgres.fetch_one("SELECT * FROM webhook_deliveries")
    assert left is not None
    assert (left["ended_at"] is None) == (left["status"] == "pending")
    assert (left["worker"], left["lease_until"]) == (None, None)
    return str(left["status"])


async def test_a_name_that_leads_elsewhere_at_the_delivery_is_not_followed(agents_postgres, receiver):
    policy = WebhookPolicy(WebhookRules(require_https=False), Names("93.184.215.14", "127.0.0.1"))
    url = f"http://hooks.example.com:{receiver.port}/rebound"
    await policy.check(url)
    assert await attempt(agents_postgres, policy, url) == "pending"
    assert not [told for told in receiver.told if told.path == "/rebound"]


async def test_the_connection_goes_to_the_address_that_was_checked(agents_postgres, receiver):
    """The name is asked for once, and by nobody else: it does not exist."""
    names = Names("127.0.0.1")
    url = f"http://me:word@hooks.example.invalid:{receiver.port}/pinned?x=1#part"
    assert await attempt(agents_postgres, WebhookPolicy(LOCAL, names), url) == "delivered"
    (told,) = receiver.hears("/pinned?x=1")
    assert told.headers["Host"] == f"hooks.example.invalid:{receiver.port}"
    assert told.headers["Authorization"] == f"Basic {b64encode(b'me:word').decode()}"
    assert names.places == []


async def test_the_next_address_is_tried_when_one_does_not_answer(agents_postgres, receiver):
    policy = WebhookPolicy(LOCAL, Names("127.0.0.2 127.0.0.1"))
    assert await attempt(agents_postgres, policy, receiver.url("/second")) == "delivered"


async def test_after_its_last_attempt_a_delivery_is_given_up(agents_postgres, receiver):
    receiver.answers["/never"] = [500] * 5
    policy = WebhookPolicy(LOCAL, Names(*["127.0.0.1"] * 5))
    ends = [await attempt(agents_postgres, policy, receiver.url("/never"), after=before) for before in range(5)]
    assert ends == [*["pending"] * 4, "failed"]


@pytest.fixture
def own_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server called hooks.example, by an authority that SSL_CERT_FILE makes known."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return tls


@pytest.mark.parametrize("host, status", [("hooks.example", "delivered"), ("other.example", "pending")])
async def test_the_certificate_is_that_of_the_name(agents_postgres, own_tls, host, status):
    policy = WebhookPolicy(WebhookRules(disable_loopback=False), Names("127.0.0.1"))
    with receiving(own_tls) as secure:
        assert await attempt(agents_postgres, policy, f"https://{host}:{secure.port}/tls") == status
    assert len(secure.told) == (status == "delivered")


async def test_a_delivery_is_swept_a_day_after_its_end(agents_postgres):
    deliveries = Deliveries(WebhookStore(agents_postgres), WebhookPolicy(LOCAL), {})
    await agents_postgres.execute("TRUNCATE webhook_deliveries")
    await agents_postgres.execute(INSERT, ("http://127.0.0.1/", 0))
    end = "UPDATE webhook_deliveries SET status = 'delivered', ended_at = now() - %s * interval '1 hour'"
    for hours, left in ((23, 1), (25, 0)):
        await agents_postgres.execute(end, (hours,))
        await deliveries.reap()
        assert len(await agents_postgres.fetch("SELECT FROM webhook_deliveries")) == left


async def test_only_the_holder_of_a_delivery_moves_it(agents_postgres):
    store = WebhookStore(agents_postgres)
    await agents_postgres.execute("TRUNCATE webhook_deliveries")
    await agents_postgres.execute(INSERT, ("http://127.0.0.1/", 0))
    (old,) = await store.claim("old", 1, -1)
    assert await store.claim("other", 1, 60) == []
    assert await store.reap(5) == 1
    (new,) = await store.claim("new", 1, 60)
    assert await store.beat([old.lease], 60) == []
    await store.hand_back([old.lease])
    assert await store.beat([new.lease], 60) == [new.lease.key]
    await store.hand_back([new.lease])
    (again,) = await store.claim("new", 1, 60)
    assert again.lease.attempt == new.lease.attempt


# --- headers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header, value, complaint",
    [
        ("X-Key", "${{ env.SECRET }}", "SECRET does not begin with LG_WEBHOOK_"),
        ("X-Key", "${{ env.LG_WEBHOOK_NONE }}", "the environment has no LG_WEBHOOK_NONE"),
        ("X-Key", "${{ secrets.KEY }}", "only ${{ env.NAME }} is understood"),
        ("X-Key", "${{ env.LG_WEBHOOK_LINES }}", "not printable ASCII"),
        ("Host", "example.com", "not a header that can be set"),
        ("X Key", "x", "not a header that can be set"),
    ],
)
def test_a_header_that_cannot_be_sent_stops_the_start_and_tells_no_value(header, value, complaint):
    environment = {"SECRET": "hunter2", "LG_WEBHOOK_LINES": "hunter2\r\nX: y"}
    with pytest.raises(StartupError) as refused:
        webhook_headers(WebhookConfig(headers={header: value}), environment)
    assert complaint in str(refused.value)
    assert f"webhooks.headers.{header}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_header_may_hold_several_variables_of_a_prefix_of_ones_own():
    config = WebhookConfig(env_prefix="HOOK_", headers={"X": "${{env.HOOK_A}}-${{ env.HOOK_B }}"})
    assert webhook_headers(config, {"HOOK_A": "1", "HOOK_B": "2"}) == {"X": "1-2"}


def test_a_server_with_a_wrong_header_says_so_and_does_not_start(folder):
    config = project(folder, headers={"X-Key": "${{ env.HOME }}"})
    server = make_server(folder, config)
    with pytest.raises(AssertionError, match="HOME does not begin with LG_WEBHOOK_"):
        server.start()
