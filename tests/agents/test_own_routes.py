"""An application of a project beside the server's operations, and the switches of `http` in langgraph.json."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.serving import ROOT, Server, make_server

OWN_ROUTES = ROOT / "tests" / "own_routes" / "langgraph.json"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        server = make_server(Path(folder), OWN_ROUTES)
        server.start()
        yield server
        assert server.stop() == 0


@pytest.fixture
async def api(running: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{running.url}/api", timeout=30) as client:
        yield client


async def run(api: httpx.AsyncClient, headers: dict[str, str], **more: object) -> httpx.Response:
    return await api.post("/runs/wait", json={"assistant_id": "headers", "input": {}, **more}, headers=headers)


async def test_own_routes_have_their_lifespan_and_come_before_the_servers(api: httpx.AsyncClient) -> None:
    assert (await api.get("/hello/ada")).json() == {"hello": "ada", "started": True, "pool": "open"}
    assert (await api.get("/info")).json() == {"version": "mine"}
    assert (await api.get("/problem")).json() == {"problem": "mine"}
    crashed = await api.get("/crash")
    assert crashed.status_code == 500
    assert "secret" not in crashed.text


async def test_own_websockets_are_served(running: Server) -> None:
    async with connect(f"ws://127.0.0.1:{running.port}/api/echo") as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"


async def test_own_middleware_is_around_the_servers_operations(api: httpx.AsyncClient) -> None:
    made = await api.post("/threads", json={})
    assert made.status_code == 200
    assert made.headers["x-own"] == "marked"
    assert (await api.post("/threads", json={}, headers={"x-team": "blocked"})).status_code == 403
    assert (await api.get(f"/threads/{made.json()['thread_id']}")).json()["metadata"] == {}


async def test_headers_reach_the_configuration_of_a_run_as_the_rules_say(api: httpx.AsyncClient) -> None:
    sent = {"x-team": "blue", "x-private-thing": "no", "x-api-key": "secret", "authorization": "secret"}
    told = (await run(api, sent, config={"configurable": {"x-team": "forged"}})).json()["told"]
    assert told["x-team"] == "blue"
    assert "user-agent" in told
    assert not told.keys() & {"x-private-thing", "x-api-key", "authorization"}
    with_context = await run(api, sent, context={"a-b": 1})
    assert with_context.json()["told"]["x-team"] == "blue"
    assert with_context.json()["told"]["a-b"] == 1


async def test_headers_are_logged_as_the_rules_say_and_never_a_credential(
    running: Server, api: httpx.AsyncClient
) -> None:
    await api.get("/ok", headers={"x-team": "logged-team", "authorization": "Bearer hidden-token"})
    async with asyncio.timeout(30):
        while "logged-team" not in running.log.read_text():  # noqa: ASYNC110 - another process writes it after its answer
            await asyncio.sleep(0.05)
    assert "hidden-token" not in running.log.read_text()


async def test_pages_of_the_named_origins_may_call(api: httpx.AsyncClient) -> None:
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    preflight = await api.options("/threads", headers={**asks, "Access-Control-Request-Headers": "x-team"})
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight.headers["access-control-allow-credentials"] == "true"
    assert preflight.headers["access-control-max-age"] == "60"
    assert preflight.headers["access-control-allow-methods"] == "GET, POST"
    answer = await api.get("/hello/ada", headers={"Origin": "https://app.example"})
    assert answer.headers["access-control-expose-headers"] == "x-own"
    refused = await api.options("/threads", headers={**asks, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers


async def test_what_is_switched_off_is_not_there(api: httpx.AsyncClient) -> None:
    assert (await api.post("/assistants/search", json={})).status_code == 404
    assert (await api.post("/a2a/x", json={})).status_code == 404
    assert (await api.post("/mcp", json={})).status_code == 501
    refused_elsewhere = await run(api, {}, webhook="http://127.0.0.1:1/")
    assert refused_elsewhere.status_code == 200


async def test_everything_is_below_the_prefix_and_nothing_beside_it(running: Server, api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    assert {"/hello/{name}", "/threads"} <= document["paths"].keys()
    async with httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/ok")).status_code == 200
        for path in ("/hello/ada", "/threads/search", "/info", "/apix/ok", "/", "//ok", "/x/../api/info"):
            answer = await client.request("POST" if path == "/threads/search" else "GET", path)
            assert answer.status_code == 404 or answer.url.path == "/api/info", path
        raw = await client.get(httpx.URL(running.url).copy_with(raw_path=b"/api/../threads/search"))
        assert raw.status_code == 404


async def test_a_stream_without_an_end_does_not_stop_others(api: httpx.AsyncClient) -> None:
    async with api.stream("GET", "/endless") as endless:
        chunks = endless.aiter_bytes()
        assert await anext(chunks)
        assert (await api.get("/hello/ada")).status_code == 200


def start_with(folder: Path, source: str, **http: object) -> Server:
    project = folder / "project"
    project.mkdir()
    (project / "graphs.py").write_text((OWN_ROUTES.parent / "graphs.py").read_text())
    (project / "web.py").write_text(source)
    keys = {"graphs": {"headers": "./graphs.py:headers"}, "http": {"app": "./web.py:app", **http}}
    (project / "langgraph.json").write_text(json.dumps(keys))
    server = make_server(folder, project / "langgraph.json")
    server.start()
    return server


LIFESPAN_FAILS = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette

@asynccontextmanager
async def lifespan(app):
    raise RuntimeError("no database")
    yield

app = Starlette(lifespan=lifespan)
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (LIFESPAN_FAILS, 'web.py, line 7: raise RuntimeError("no database")'),
        ("import nowhere_at_all", "web.py, line 1: import nowhere_at_all"),
        ("app = 5", "not an ASGI application"),
    ],
)
def test_an_application_that_does_not_start_names_the_line(folder: Path, source: str, line: str) -> None:
    with pytest.raises(AssertionError, match=r"http\.app of langgraph\.json") as failed:
        start_with(folder, source)
    assert line in str(failed.value)
    assert str(folder) not in str(failed.value).partition("error:")[2]


PLAIN = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        raise RuntimeError("no lifespan here")
    known = scope["path"] in ("/own", "/ok")
    body = b"own" if known else b"?"
    await receive()
    await send({"type": "http.response.start", "status": 200 if known else 404, "headers": []})
    await send({"type": "http.response.body", "body": body})
"""


def test_any_asgi_application_is_asked_first(folder: Path) -> None:
    server = start_with(folder, PLAIN)
    try:
        assert httpx.get(f"{server.url}/own").text == "own"
        assert httpx.get(f"{server.url}/ok").text == "own"
        assert httpx.post(f"{server.url}/threads", json={"metadata": {"a": 1}}).json()["metadata"] == {"a": 1}
        assert httpx.get(f"{server.url}/nowhere").text == "?"
    finally:
        server.stop()


SWALLOWS = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

async def broken(request):
    raise ValueError("a secret of the application")

class Swallow:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        try:
            await self.app(scope, receive, send)
        except Exception:
            pass

app = Starlette(routes=[Route("/broken", broken)], middleware=[Middleware(Swallow)])
"""


def test_middleware_that_swallows_exceptions_hides_no_answer_of_the_server(folder: Path) -> None:
    server = start_with(folder, SWALLOWS)
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            nothing = client.get("/broken")
            assert nothing.status_code == 500
            assert "secret" not in nothing.text
            assert client.get("/threads/00000000-0000-4000-8000-000000000000").status_code == 404
            assert client.post("/threads", json={"metadata": 5}).status_code == 422
            ran = client.post("/runs/wait", json={"assistant_id": "headers", "input": {}})
            assert ran.status_code == 200
            assert "told" in ran.json()
    finally:
        assert server.stop() == 0


def test_meta_operations_are_not_there_when_they_are_switched_off(folder: Path) -> None:
    server = start_with(folder, PLAIN, disable_meta=True)
    try:
        for path in ("/info", "/metrics", "/docs", "/openapi.json"):
            assert httpx.get(f"{server.url}{path}").text == "?", path
        assert httpx.post(f"{server.url}/threads", json={}).status_code == 200
    finally:
        server.stop()
