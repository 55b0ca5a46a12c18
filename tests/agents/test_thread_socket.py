"""The thread-centric protocol over a WebSocket: through the official client, and with hostile clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.agents.test_protocol import is_end, told
from tests.serving import Server

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def connection(server: Server, thread: str, **more: Any) -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http://", "ws://")
    async with connect(f"{url}/threads/{thread}/stream/events", max_size=None, **more) as socket:
        yield socket


class Talk:
    """A connection that numbers its commands, and keeps events that come before their answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[Any] = []
        self._number = 0

    async def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self.socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            found = json.loads(await asyncio.wait_for(self.socket.recv(), 30))
            if found["type"] != "event":
                return found
            self.events.append(found)

    async def until_end(self) -> list[Any]:
        while not any(map(is_end, self.events)):
            found = json.loads(await asyncio.wait_for(self.socket.recv(), 30))
            assert found["type"] == "event", found
            self.events.append(found)
        seen, self.events = self.events, []
        return seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_official_client_follows_a_run_over_a_websocket(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="tokens", transport="websocket") as thread:
        await thread.run.start(input=HELLO)
        messages = [message async for message in thread.messages]
        assert [await message.text for message in messages] == ["one two three"]
        output = await thread.output
    assert output["messages"][-1]["content"][0]["text"] == "one two three"


async def test_commands_and_events_go_over_one_connection_as_over_two(server: Server) -> None:
    thread = str(uuid4())
    async with connection(server, thread) as socket:
        talk = Talk(socket)
        subscribed = await talk.ask("subscription.subscribe", channels=["lifecycle", "values", "messages"])
        assert subscribed["type"] == "success"
        for _ in range(2):
            run = (await talk.ask("run.start", assistant_id="tokens", input=HELLO))["result"]["run_id"]
            seen = await talk.until_end()
            assert {data["run_id"] for data in told(seen, "lifecycle")} == {run}
            assert told(seen, "messages")
        state = await talk.ask("state.get")
        assert state["result"]["values"]["messages"]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        body = {"channels": ["lifecycle", "values", "messages"], "since": 0}
        async with http.stream("POST", f"/threads/{thread}/stream/events", json=body) as answer:
            events = (json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: "))
            found: list[Any] = []
            async for event in events:
                found.append(event)
                if sum(map(is_end, found)) == 2:
                    break
    assert found[-len(seen) :] == seen


async def test_a_subscription_ends_when_asked_and_others_go_on(server: Server) -> None:
    async with connection(server, str(uuid4())) as socket:
        talk = Talk(socket)
        values = (await talk.ask("subscription.subscribe", channels=["values"]))["result"]["subscription_id"]
        await talk.ask("subscription.subscribe", channels=["lifecycle"])
        assert (await talk.ask("subscription.unsubscribe", subscription_id=values))["type"] == "success"
        again = await talk.ask("subscription.unsubscribe", subscription_id=values)
        assert again["error"] == "no_such_subscription"
        await talk.ask("run.start", assistant_id="tokens", input=HELLO)
        assert {event["method"] for event in await talk.until_end()} == {"lifecycle"}
        assert (await talk.ask("subscription.reconnect", run_id="x"))["result"] == {"restored": False}


async def test_who_comes_back_with_the_last_number_goes_on_there(server: Server) -> None:
    thread = str(uuid4())
    async with connection(server, thread) as socket:
        talk = Talk(socket)
        await talk.ask("subscription.subscribe", channels=["lifecycle", "values", "messages"])
        await talk.ask("run.start", assistant_id="tokens", input=HELLO)
        whole = await talk.until_end()
    async with connection(server, thread) as socket:
        talk = Talk(socket)
        since = whole[2]["seq"]
        await talk.ask("subscription.subscribe", channels=["lifecycle", "values", "messages"], since=since)
        assert await talk.until_end() == whole[3:]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no json", "invalid_argument"),
        ("[1]", "invalid_argument"),
        (json.dumps({"id": "x", "method": "run.start"}), "invalid_argument"),
        (json.dumps({"id": 1, "method": "run.fly"}), "unknown_command"),
        (
            json.dumps({"id": 1, "method": "subscription.subscribe", "params": {"channels": ["gossip"]}}),
            "invalid_argument",
        ),
        (json.dumps({"id": 1, "method": "subscription.subscribe", "params": {}}), "invalid_argument"),
        ("[" * 3_000_000, "invalid_argument"),
        (json.dumps({"id": 1, "method": "x" * 10_000_000}), "invalid_argument"),
    ],
    ids=["text", "list", "id", "command", "channel", "nothing", "depth", "10 MB"],
)
async def test_broken_and_large_messages_are_answered_and_the_connection_stays(
    server: Server, text: str, code: str
) -> None:
    async with connection(server, str(uuid4())) as socket:
        await socket.send(text)
        answer = json.loads(await asyncio.wait_for(socket.recv(), 30))
        assert (answer["type"], answer["error"]) == ("error", code)
        assert len(answer["message"]) < 2000
        assert (await Talk(socket).ask("subscription.subscribe", channels=["values"]))["type"] == "success"


async def test_a_message_over_the_limit_of_bodies_ends_the_connection(server: Server) -> None:
    async with connection(server, str(uuid4())) as socket:
        with suppress(ConnectionClosed):
            await socket.send("x" * 30_000_000)
        await asyncio.wait_for(socket.wait_closed(), 30)
        assert socket.close_code in {1006, 1009}


async def test_who_never_reads_holds_up_nobody(server: Server) -> None:
    thread = str(uuid4())
    async with connection(server, thread) as deaf, connection(server, thread) as socket:
        await Talk(deaf).ask("subscription.subscribe", channels=["values"])
        deaf.transport.pause_reading()
        talk = Talk(socket)
        await talk.ask("subscription.subscribe", channels=["lifecycle"])
        for _ in range(3):
            assert (await talk.ask("run.start", assistant_id="tokens", input=HELLO))["type"] == "success"
            await talk.until_end()
        deaf.transport.abort()


async def test_pages_of_others_may_not_use_cookies(server: Server) -> None:
    thread = str(uuid4())
    with pytest.raises(InvalidStatus) as refused:
        async with connection(server, thread, origin="https://evil.example", additional_headers={"Cookie": "a=b"}):
            pass
    assert refused.value.response.status_code == 403
    async with connection(server, thread, origin=server.url, additional_headers={"Cookie": "a=b"}) as socket:
        assert (await Talk(socket).ask("state.get"))["type"] in {"success", "error"}


async def test_a_thread_that_is_none_is_refused(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connection(server, "nowhere"):
            pass
    assert refused.value.response.status_code == 403
