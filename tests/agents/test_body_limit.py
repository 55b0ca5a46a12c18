"""Bodies over the limit, in one piece and in many."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.serving import Server, make_server


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    """Start a server that accepts bodies of up to 1000 bytes."""
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), HTTP_MAX_REQUEST_BODY_BYTES="1000")
        running.start()
        yield running
        running.stop()


TOO_LARGE = (413, {"detail": "The request body is larger than the limit of 1000 bytes"})


def thread_of(size: int) -> bytes:
    """Return a request for a thread with exactly this many bytes."""
    frame = b'{"metadata":{"a":""}}'
    return frame.replace(b'""', b'"%b"' % (b"x" * (size - len(frame))))


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 300):
        yield body[start : start + 300]


async def test_a_body_over_the_limit_is_refused(small_server):
    async with httpx.AsyncClient(base_url=small_server.url) as http:
        at_the_limit = await http.post("/threads", content=thread_of(1000))
        over = await http.post("/threads", content=thread_of(1001))
        unannounced = await http.post("/threads", content=_in_pieces(thread_of(1001)))
        in_pieces = await http.post("/threads", content=_in_pieces(thread_of(1000)))
        count = (await http.post("/threads/count", json={})).json()
    assert (at_the_limit.status_code, in_pieces.status_code) == (200, 200)
    assert (over.status_code, over.json()) == TOO_LARGE
    assert "content-length" not in unannounced.request.headers
    assert (unannounced.status_code, unannounced.json()) == TOO_LARGE
    assert count == 2
