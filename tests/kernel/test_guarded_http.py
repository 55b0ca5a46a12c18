"""Requests to addresses that callers chose."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from moorage.kernel.errors import BadRequestError, RemoteError
from moorage.kernel.guarded_http import GuardedHttp
from tests.control.oauth_server import oauth_server


@pytest.fixture(scope="module")
def server():
    with oauth_server() as running:
        yield running


def leads_to(*addresses: str):
    async def resolve(host: str):
        return [ip_address(address) for address in addresses]

    return resolve


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "100.64.0.1"]
)
async def test_an_address_inside_is_refused_even_among_others(address):
    http = GuardedHttp(allow_private=False, resolve=leads_to("93.184.216.34", address))
    with pytest.raises(BadRequestError, match="IP range"):
        await http.send("GET", "https://example.com/")


async def test_plain_http_stays_on_this_network():
    with pytest.raises(BadRequestError, match="https"):
        await GuardedHttp(allow_private=True, resolve=leads_to("93.184.216.34")).send("GET", "http://example.com/")


async def test_the_connection_goes_to_the_address_that_was_checked(server):
    looked_up = []

    async def resolve(host):
        looked_up.append(host)
        return [ip_address("127.0.0.1")]

    port = server.url.rsplit(":", 1)[1]
    http = GuardedHttp(allow_private=True, resolve=resolve)
    answer = await http.send("GET", f"http://nowhere.invalid:{port}/.well-known/oauth-authorization-server")
    assert answer.status == 200
    assert looked_up == ["nowhere.invalid"]


async def test_redirects_are_not_followed(server):
    registered = server.register("http://127.0.0.1:1/")
    url = f"{server.url}/authorize?response_type=code&client_id={registered.client_id}&redirect_uri=http://127.0.0.1:1/"
    assert (await GuardedHttp(allow_private=True).send("GET", url)).status == 302


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/", "https://me:word@x/", "https://", "//x", "http://x:0/"]
)
async def test_what_is_no_address_is_refused(url):
    with pytest.raises(BadRequestError):
        await GuardedHttp(allow_private=True).send("GET", url)


async def test_nobody_there_is_said_without_the_url():
    with pytest.raises(RemoteError) as raised:
        await GuardedHttp(allow_private=True).send("GET", "http://127.0.0.1:1/secret?code=hush")
    assert "hush" not in str(raised.value)
