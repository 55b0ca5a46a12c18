"""Listeners: `/v2/listeners`, deployments that name one, and the tunnels of a connected one."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from moorage.control.records.listeners import ListenerHello
from moorage.control.runtimes import DeployError, listener_platform
from moorage.control.runtimes.listener_platform import ListenerPlatform
from moorage.control.tunnels import Door, Tunnel, Tunnels
from moorage.embedded.agents import short_path
from moorage.kernel.errors import ConflictError, UnavailableError
from tests.control.houses import created, from_git

pytest_plugins = "tests.control.fixtures"

PATH = "/v2/listeners"
HELLO = ListenerHello(instance="one", key="lsv2_sk_key", version="1")


async def made(client, **changes):
    body = {"compute_type": "machine", "compute_id": "shed", "compute_config": {}} | changes
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_listener_is_made_read_changed_and_deleted(client):
    listener = await made(client, version="1.0")
    assert listener["compute_config"] == {"k8s_namespaces": None}
    assert (listener["is_connected"], listener["last_seen_at"]) == (False, None)
    path = f"{PATH}/{listener['id']}"
    assert (await client.get(PATH)).json() == {"resources": [listener], "offset": 1}
    changed = (await client.patch(path, json={"version": "1.1"})).json()
    assert (changed["version"], changed["compute_id"]) == ("1.1", "shed")
    assert (await client.get(path)).json() == changed
    assert (await client.delete(path)).status_code == 204
    for answer in (await client.get(path), await client.delete(path), await client.patch(path, json={})):
        assert (answer.status_code, answer.json()["detail"]) == (404, f"Listener ID {listener['id']} not found.")


async def test_a_compute_id_is_taken_once_in_a_workspace_and_bad_fields_are_named(client, control):
    await made(client)
    again = await client.post(PATH, json={"compute_type": "machine", "compute_id": "shed", "compute_config": {}})
    assert again.status_code == 409
    assert "compute ID 'shed' already exists" in again.json()["detail"]
    for change in (
        {"compute_type": "lambda"},
        {"compute_id": "a b"},
        {"compute_id": "\x1b[2J"},
        {"compute_config": {"k8s_namespaces": ["a"]}},
        {"compute_config": None},
        {"colour": "red"},
    ):
        body = {"compute_type": "machine", "compute_id": "other", "compute_config": {}} | change
        assert (await client.post(PATH, json=body)).status_code == 422, change
    other = await control.house.make_workspace()
    async with control.client(await control.house.make_key(other, "deployments:read", "deployments:write")) as stranger:
        assert (await stranger.get(PATH)).json()["resources"] == []
        await made(stranger)


async def test_a_deployment_runs_at_a_listener_of_its_workspace_and_nowhere_unknown(client, control):
    listener = await made(client, compute_type="k8s", compute_config={"k8s_namespaces": ["agents"]})
    for config, words in (
        ({"listener_id": str(uuid4())}, "no listener of this workspace"),
        ({"listener_id": "shed"}, "no listener of this workspace"),
        ({"listener_config": {"k8s_namespace": "agents"}}, "needs source_config.listener_id"),
        ({"listener_id": listener["id"], "listener_config": {"k8s_namespace": "others"}}, "the listener has agents"),
    ):
        body = from_git(name="lost")
        body["source_config"] |= config
        answer = await client.post("/v2/deployments", json=body)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["detail"]
    body = from_git(name="found")
    body["source_config"] |= {"listener_id": listener["id"], "listener_config": {"k8s_namespace": "agents"}}
    deployment = await created(client, body)
    assert deployment["source_config"]["listener_id"] == listener["id"]
    refused = await client.delete(f"{PATH}/{listener['id']}")
    assert (refused.status_code, "delete them first" in refused.json()["detail"]) == (409, True)
    other = await control.house.make_workspace()
    async with control.client(await control.house.make_key(other, "deployments:read", "deployments:write")) as stranger:
        body["name"] = "stolen"
        answer = await stranger.post("/v2/deployments", json=body)
        assert (answer.status_code, "no listener of this workspace" in answer.text) == (400, True)
    await client.delete(f"/v2/deployments/{deployment['id']}")
    assert (await client.delete(f"{PATH}/{listener['id']}")).status_code == 204


class FarEnd:
    """The listener's end of a tunnel: it records what arrives, and answers."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.tunnel = Tunnel(self.came.put)


async def connected(tunnels: Tunnels, listener: UUID, hello: ListenerHello = HELLO) -> FarEnd:
    end = FarEnd()
    task = asyncio.create_task(tunnels.keep(listener, "shed", hello, end.tunnel))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if task.done():
        task.result()
    return end


async def test_each_request_takes_a_tunnel_of_its_own_and_waits_for_one():
    tunnels, listener = Tunnels(), uuid4()
    with pytest.raises(UnavailableError):
        tunnels.key_of(listener)
    first = await connected(tunnels, listener)
    assert (tunnels.key_of(listener), list(tunnels.connected())) == (HELLO.key, [listener])
    assert await tunnels.take(listener, b"deployment a") is first.tunnel
    assert await first.came.get() == b"deployment a"
    waiting = asyncio.create_task(tunnels.take(listener, b"deployment b"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    second = await connected(tunnels, listener)
    assert await waiting is second.tunnel
    for end in (first, second):
        end.tunnel.end()
    await asyncio.sleep(0.05)
    assert not tunnels.is_connected(listener)
    with pytest.raises(UnavailableError, match="not connected"):
        await tunnels.take(listener, b"deployment a")


async def test_a_tunnel_that_was_cut_while_nobody_used_it_is_not_given_out():
    tunnels, listener = Tunnels(), uuid4()

    async def cut(message: bytes) -> None:
        raise ConnectionError

    dead, whole = await connected(tunnels, listener), await connected(tunnels, listener)
    dead.tunnel.send = cut
    assert await tunnels.take(listener, b"deployment a") is whole.tunnel


async def test_two_machines_of_one_name_are_not_mixed_up():
    tunnels, listener = Tunnels(), uuid4()
    first = await connected(tunnels, listener)
    with pytest.raises(ConflictError, match="Another machine"):
        await connected(tunnels, listener, HELLO.model_copy(update={"instance": "two"}))
    first.tunnel.end()
    await asyncio.sleep(0.05)
    await connected(tunnels, listener, HELLO.model_copy(update={"instance": "two"}))
    tunnels.drop(listener)
    assert not tunnels.is_connected(listener)


async def test_an_answer_of_a_listener_that_is_too_large_or_no_json_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(listener_platform, "_ANSWER_BYTES_MAX", 1000)
    answers = iter((b"x" * 2000, b"no json", b'{"resources": []}', b'{"detail": "too many"}'))
    statuses = iter((b"200 OK", b"200 OK", b"200 OK", b"422 Unprocessable"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = next(answers)
        writer.write(b"HTTP/1.1 " + next(statuses) + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_unix_server(answer, str(tmp_path / "listener.sock"))
    platform = ListenerPlatform(tmp_path / "listener.sock", "key")
    for words in ("more than", "no JSON"):
        with pytest.raises(UnavailableError, match=words):
            await platform.find("agent")
    assert await platform.find("agent") is None
    with pytest.raises(DeployError, match="refuses: too many"):
        await platform.find("agent")
    server.close()


async def test_a_door_carries_bytes_both_ways_and_says_why_it_cannot(tmp_path):
    tunnels, listener = Tunnels(), uuid4()
    door = Door(tunnels, listener, b"deployment a", tmp_path / "listener.sock")
    await door.open()

    async def ask(request: bytes) -> bytes:
        with short_path(door.path) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    away = await ask(b"GET / HTTP/1.1\r\n\r\n")
    assert away.startswith(b"HTTP/1.1 503 ")
    assert "not connected" in json.loads(away.partition(b"\r\n\r\n")[2])["detail"]

    end = await connected(tunnels, listener)
    asking = asyncio.create_task(ask(b"x" * 200_000))
    assert await end.came.get() == b"deployment a"
    came = b""
    while len(came) < 200_000:
        came += await end.came.get()
    for _ in range(50):  # more than a tunnel holds, so it waits for the reader
        await end.tunnel.feed(b"y" * 10_000)
    await end.tunnel.feed(None)
    assert await asking == b"y" * 500_000

    end = await connected(tunnels, listener)
    asking = asyncio.create_task(ask(b"GET / HTTP/1.1\r\n\r\n"))
    await end.came.get()
    await end.tunnel.feed(None)  # the agent is not there
    assert (await asking).startswith(b"HTTP/1.1 502 ")
    await door.close()
    assert not door.path.exists()
