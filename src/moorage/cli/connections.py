"""Limits on the connections of one process, before a request is complete: how many a client may open, how long the
headers of a request may take, and how large they may be.

The limits of `moorage.http` apply to complete requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 30.0
HEADERS_BYTES_MAX = 256 * 2**10


def limited_connections(per_client_max: int, headers_s: float = HEADERS_S) -> Callable[..., HttpToolsProtocol]:
    """Return the class of a uvicorn server's connections. With `per_client_max` 0 a client may open any number."""
    return partial(_Connection, open_by_client=Counter[str](), per_client_max=per_client_max, headers_s=headers_s)


def websocket(**given: Any) -> asyncio.Protocol:
    """Return the protocol of a WebSocket, loaded when the first one comes: most agents never have any."""
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol  # takes 3 MB of memory

    assert AutoWebSocketsProtocol is not None  # websockets is installed
    return AutoWebSocketsProtocol(**given)


class _Connection(HttpToolsProtocol):
    """A connection with limits: uvicorn would wait for headers for ever, and keep any number of bytes of them."""

    def __init__(
        self, *args: Any, open_by_client: Counter[str], per_client_max: int, headers_s: float, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._open_by_client = open_by_client
        self._per_client_max = per_client_max
        self._headers_s = headers_s
        self._counted_as = ""
        self._headers_bytes = 0
        self._headers_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Clients behind the front door's unix socket have no address.
        client = self.client[0] if self.client else ""
        if client and self._per_client_max:
            if self._open_by_client[client] >= self._per_client_max:
                transport.abort()
                return
            self._open_by_client[client] += 1
            self._counted_as = client
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        self._stop_waiting()
        client, self._counted_as = self._counted_as, ""
        if client:
            self._open_by_client[client] -= 1
            if not self._open_by_client[client]:
                del self._open_by_client[client]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._headers_bytes = 1

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._headers_bytes = 0
        if self.parser.should_upgrade() and self._should_upgrade():
            # A WebSocket's protocol takes over the connection and reports nothing more. The connection now counts as an
            # open request.
            self._leave()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._headers_bytes:
            self._stop_waiting()
            return
        self._headers_bytes += len(data)
        if self._headers_bytes > HEADERS_BYTES_MAX:
            self.transport.abort()
        elif self._headers_deadline is None:
            self._await_headers()

    def _await_headers(self) -> None:
        self._headers_deadline = self.loop.call_later(self._headers_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._headers_deadline is not None:
            self._headers_deadline.cancel()
            self._headers_deadline = None
