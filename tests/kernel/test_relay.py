"""The relay: a client reaches the origins of its route at the addresses that were checked, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import httpx
import pytest

from moorage.kernel.addresses import Address
from moorage.kernel.aws_signature import Credentials
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.buckets.s3 import Lent, S3Address, s3_bucket
from moorage.kernel.errors import BadRequestError
from moorage.kernel.relay import Relay, origin_of

LENT = Lent(Credentials("id", "secret"))


class Server:
    """An HTTP server that gives every request the same answer, and records the requests."""

    def __init__(self, status: str, *headers: str) -> None:
        self.asked: list[str] = []
        self._answer = "\r\n".join([f"HTTP/1.1 {status}", *headers, "content-length: 2", "", "ok"]).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.decode().lower())
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            writer.write(self._answer[:-2] if head.startswith(b"HEAD") else self._answer)
        except asyncio.IncompleteReadError:
            pass  # a connection without a request
        writer.close()


@asynccontextmanager
async def listening(server: Server, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    running = await asyncio.start_server(server.serve, host, port)
    async with running:
        yield running.sockets[0].getsockname()[1]


def names(**known: list[str]):
    """Return a resolver. Each of its lists is used up one after the other, as for a rebound name."""

    async def resolve(host: str) -> list[Address]:
        addresses = known[host.partition(".")[0]]
        found = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        if found == "private":
            raise BadRequestError("a private address")
        return [ip_address(found)]

    return resolve


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
async def test_a_redirect_leads_nowhere(method):
    inside = Server("200 OK")
    async with listening(inside) as there:
        outside = Server("307 Temporary Redirect", f"location: http://127.0.0.1:{there}/secret")
        async with listening(outside) as port:
            url = f"http://store.test:{port}"
            via = Relay(names(store=["127.0.0.1"])).route(origin_of(url))
            async with httpx.AsyncClient(proxy=via, follow_redirects=True) as client:
                answer = await client.request(method, f"{url}/key?a=b", content=b"xyz" if method == "PUT" else None)
                direct = await client.request(method, f"http://127.0.0.1:{there}/secret")
    assert (answer.status_code, "location" in answer.headers) == (307, False)
    assert direct.status_code == 421
    assert inside.asked == []
    [asked] = outside.asked
    assert asked.startswith(f"{method.lower()} /key?a=b http/1.1")
    assert f"host: store.test:{port}" in asked
    assert "proxy-" not in asked


async def test_the_bucket_library_follows_no_redirect_and_looks_no_name_up(monkeypatch):
    inside = Server("200 OK")
    async with listening(inside) as there:
        outside = Server("307 Temporary Redirect", f"location: http://127.0.0.1:{there}/secret")
        async with listening(outside) as port:
            endpoint = f"http://store.test:{port}"  # a name that only the relay knows
            via = Relay(names(store=["127.0.0.1"])).route(origin_of(endpoint))
            bucket = s3_bucket(S3Address("bucket", endpoint_url=endpoint), LENT, patience_s=1, via=via)
            for call in (bucket.get("key"), bucket.head("key"), bucket.put("key", b"x"), bucket.delete(["key"])):
                with pytest.raises(BucketError) as failed:
                    await call
                assert failed.value.fault is BucketFault.INVALID_ENDPOINT
    assert inside.asked == []
    assert len(outside.asked) == 4


async def test_a_name_that_is_bound_anew_is_checked_again_and_never_dialled_unchecked():
    first, second = Server("200 OK"), Server("200 OK")
    async with listening(first) as port, listening(second, "127.0.0.2", port):
        url = f"http://store.test:{port}/"
        via = Relay(names(store=["127.0.0.1", "private", "private"])).route(origin_of(url))
        async with httpx.AsyncClient(proxy=via) as client:
            assert (await client.get(url)).status_code == 200
            answer = await client.get(url)
    assert (answer.status_code, "RelayUnreachable" in answer.text) == (504, True)
    assert (len(first.asked), second.asked) == (1, [])


async def test_a_tunnel_leads_to_its_origin_alone_and_to_checked_addresses():
    server = Server("200 OK")
    async with listening(server) as port:
        relay = Relay(names(store=["127.0.0.1"], inner=["private"]))
        via = relay.route(("store.test", port), ("inner.test", port))

        async def connect(host: str, proxy: str) -> str:
            parts = httpx.URL(proxy)
            reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
            login = httpx.BasicAuth(parts.username, parts.password)._auth_header
            writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nproxy-authorization: {login}\r\n\r\n".encode())
            told = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
            if told == "200":
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"ok" in await reader.read()
            writer.close()
            return told

        assert await connect("store.test", via) == "200"
        assert await connect("inner.test", via) == "504"
        assert await connect("other.test", via) == "421"
        assert await connect("127.0.0.1", via) == "421"
        stranger = str(httpx.URL(via).copy_with(password="guessed"))
        assert await connect("store.test", stranger) == "421"
        assert await connect("store.test", relay.route(("elsewhere.test", port))) == "421"
    assert len(server.asked) == 1


async def test_tls_is_spoken_with_the_origin_under_its_own_name():
    hellos: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.read(4096))
        writer.close()

    running = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with running:
        endpoint = f"https://store.test:{running.sockets[0].getsockname()[1]}"
        via = Relay(names(store=["127.0.0.1"])).route(origin_of(endpoint))
        bucket = s3_bucket(S3Address("bucket", endpoint_url=endpoint), LENT, patience_s=0.2, via=via)
        with pytest.raises(BucketError):
            await bucket.get("key")
    assert hellos[0][0] == 0x16, "a handshake of TLS"
    assert b"store.test" in hellos[0]


async def test_an_answer_before_the_body_has_gone_arrives():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(1)
        writer.close()

    running = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with running:
        url = f"http://store.test:{running.sockets[0].getsockname()[1]}/"
        via = Relay(names(store=["127.0.0.1"])).route(origin_of(url))
        async with httpx.AsyncClient(proxy=via) as client:
            answer = await client.put(url, content=b"x" * 20_000_000)
    assert (answer.status_code, answer.text) == (403, "no")


@pytest.mark.parametrize("url", ["ftp://a", "http://", "x", "http://a:b", "//a"])
def test_what_has_no_origin_is_refused(url):
    with pytest.raises(ValueError, match=r"web address|Port"):
        origin_of(url)


def test_equal_origins_share_a_route_and_the_oldest_go():
    relay = Relay(names())
    first = relay.route(("a", 1), ("b", 2))
    assert relay.route(("b", 2), ("a", 1)) == first
    for number in range(4100):
        relay.route(("c", number))
    assert relay.route(("a", 1), ("b", 2)) != first
    with socket.create_connection(("127.0.0.1", httpx.URL(first).port)):
        pass
