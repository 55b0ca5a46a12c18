"""`/docs`, which the application itself serves and a deployed agent closes; and CORS, which is closed unless a setting
opens it.
"""

from __future__ import annotations

import re

import httpx
import pytest

from moorage.agents.langgraph_json import LanggraphJson
from moorage.agents.platform_access import Deployed, PlatformAccess
from moorage.cli.platform import read_settings
from moorage.http import docs
from moorage.http.application import make_application
from moorage.http.metrics import Metrics
from moorage.http.request_limits import RequestLimits
from moorage.kernel.errors import StartupError
from moorage.settings.agents import AgentSettings
from moorage.wiring.agent_application import agent_application

PREFLIGHT = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}


def client(app) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://moorage.test")


def application(*origins: str):
    return make_application(title="<b>", limits=RequestLimits(1), cors_origins=[*origins])


def agent(*, open_docs: bool = False, access: PlatformAccess | None = None, prefix: str = ""):
    settings = AgentSettings(MOORAGE_OPEN_DOCS=open_docs, MOUNT_PREFIX=prefix)
    config = LanggraphJson(graphs={"agent": "./agent.py:graph"})
    return agent_application(settings, config, access, None, None, Metrics(), development=False).served


@pytest.mark.parametrize("prefix", ["", "/agents"])
async def test_the_page_and_all_it_loads_come_from_here(prefix):
    async with client(agent(prefix=prefix)) as http:
        page = await http.get(f"{prefix}/docs")
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(loaded) == 4
        for relative in loaded:
            answer = await http.get(httpx.URL(str(page.url)).join(relative))
            assert (answer.status_code, answer.url.host) == (200, "moorage.test"), relative
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "SwaggerUIBundle" in (await http.get(f"{prefix}/docs/swagger-ui-bundle.js")).text
        assert (await http.get(f"{prefix}/openapi.json")).json()["paths"]


async def test_a_title_is_text():
    async with client(application()) as http:
        assert "<b>" not in (await http.get("/docs")).text


async def test_browsers_are_told_to_load_nothing_from_other_origins():
    async with client(application()) as http:
        page = await http.get("/docs")
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; connect-src 'self'")
    assert "http" not in policy
    assert "//" not in page.text  # no address of another host
    assert not re.search(r"<script(?![^>]*src=)", page.text)  # the policy forbids inline scripts


@pytest.mark.parametrize(
    "path", ["/docs/main.py", "/docs/..%2fmain.py", "/docs/__init__.py", "/redoc", "/docs/oauth2-redirect"]
)
async def test_nothing_else_is_served(path):
    async with client(application()) as http:
        assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("path", docs.PATHS)
async def test_the_documents_of_a_deployed_agent_need_its_key_unless_it_says_otherwise(path):
    access = PlatformAccess(Deployed("http://platform", "0b4c6b1e-0000-7000-8000-000000000001", "bot", "key"))
    for open_docs, asked, status in ((False, access, 401), (True, access, 200), (False, None, 200)):
        app = agent(open_docs=open_docs, access=asked)
        async with client(app) as http:
            assert (await http.get(path)).status_code == status, (open_docs, asked)
    await access.close()


async def test_cors_is_closed_but_for_the_origins_that_are_named():
    async with client(application()) as http:
        answer = await http.options("/docs", headers=PREFLIGHT)
        assert not [name for name in answer.headers if name.startswith("access-control")]
    async with client(application("https://app.example.com")) as http:
        named = await http.options("/docs", headers=PREFLIGHT)
        assert named.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        other = await http.options("/docs", headers=PREFLIGHT | {"Origin": "https://evil.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_the_platform_opens_no_origin_by_itself(monkeypatch):
    monkeypatch.delenv("CORS_ALLOW_ORIGINS", raising=False)
    assert read_settings().browser_origins == []
    named = read_settings(CORS_ALLOW_ORIGINS="https://a.example, http://localhost:3000")
    assert named.browser_origins == ["https://a.example", "http://localhost:3000"]
    assert read_settings(CORS_ALLOW_ORIGINS="*").browser_origins == ["*"]


@pytest.mark.parametrize(
    "wrong", ["app.example.com", "https://a.example/app", "https://a.example/", "null", "https://*.x y"]
)
def test_an_origin_that_no_browser_sends_stops_the_start(wrong):
    with pytest.raises(StartupError, match="CORS_ALLOW_ORIGINS"):
        read_settings(CORS_ALLOW_ORIGINS=wrong)
