"""Users of a project with authentication of its own, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving import ROOT, Server, make_server

GUARDED = ROOT / "tests" / "guarded" / "langgraph.json"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), GUARDED)
        running.start()
        yield running
        assert running.stop() == 0


def client_of(server: Server, token: str | None) -> LangGraphClient:
    return get_client(url=server.url, api_key=None, headers={"Authorization": f"Bearer {token}"} if token else {})


async def test_a_user_sees_their_own_threads_and_nobody_elses(guarded: Server) -> None:
    async with client_of(guarded, "ada") as ada, client_of(guarded, "bob") as bob:
        thread = await ada.threads.create(metadata={"colour": "red"})
        assert thread["metadata"] == {"colour": "red", "owner": "ada"}
        assert (await ada.threads.get(thread["thread_id"]))["metadata"]["owner"] == "ada"
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await bob.threads.get(thread["thread_id"])
        assert refused.value.response.status_code == 404
        assert [found["thread_id"] for found in await ada.threads.search(metadata={"colour": "red"})] == [
            thread["thread_id"]
        ]
        assert await bob.threads.search() == []
        assert await bob.threads.count() == 0


async def test_nobody_is_let_in_without_a_token(guarded: Server) -> None:
    async with client_of(guarded, None) as nobody:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await nobody.threads.create()
    assert refused.value.response.status_code == 401
    assert refused.value.response.json() == {"detail": "Who are you?"}
    assert refused.value.response.headers["x-why"] == "token"
