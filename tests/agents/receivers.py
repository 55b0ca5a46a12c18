"""Receivers of webhooks, and names that resolve as a test decides."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from moorage.kernel.addresses import Address


@dataclass
class Told:
    """A request that was received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Receiver:
    """A web server on this machine that records its requests. `answers` are used up path by path; after that, it
    answers 200.
    """

    port: int = 0
    tls: ssl.SSLContext | None = None
    answers: dict[str, list[int]] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)  # while set, no request is answered
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        receiver = self

        class Noting(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.told.append(Told(self.path, dict(self.headers), body, time.monotonic()))
                while receiver.silent.is_set():
                    time.sleep(0.05)
                waiting = receiver.answers.get(self.path, [])
                status = waiting.pop(0) if waiting else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Print nothing: tests read the recorded requests instead."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *arguments: Any) -> None:
                """Ignore the error: a client that was killed, or refused our certificate, waits for no answer."""

        self._server = Quiet(("127.0.0.1", self.port), Noting)
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.silent.clear()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def url(self, path: str, login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.port}{path}"

    def hears(self, path: str, *, times: int = 1, within_s: float = 15) -> list[Told]:
        """Wait for the expected number of requests at the path, and return them."""
        deadline = time.monotonic() + within_s
        while len(found := [told for told in self.told if told.path == path]) < times:
            assert time.monotonic() < deadline, f"{len(found)} at {path}, expected {times}"
            time.sleep(0.02)
        return found


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    running = Receiver(tls=tls)
    running.start()
    yield running
    running.stop()


class Names:
    """Names that resolve as the test decides, to one address after the other."""

    def __init__(self, *places: str) -> None:
        self.places = list(places)

    async def __call__(self, host: str) -> list[Address]:
        return [ip_address(place) for place in self.places.pop(0).split()]
