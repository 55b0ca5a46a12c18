"""Webhook policy: receivers that a run may not notify, and headers that cannot be sent."""

from __future__ import annotations

from ipaddress import ip_address
from uuid import UUID

import pytest

from moorage.agents.langgraph_json import WebhookConfig, WebhookRules
from moorage.agents.webhooks import WebhookPolicy, webhook_headers
from moorage.kernel.addresses import Address, blocked_range
from moorage.kernel.errors import InvalidRequestError, StartupError
from tests.agents.receivers import Names

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
