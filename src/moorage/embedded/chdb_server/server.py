"""Connections and threads: checks passwords, and limits how many statements run at once."""

from __future__ import annotations

import base64
import hmac
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from io import BufferedReader

from moorage.embedded.chdb_server.answers import HttpAnswer
from moorage.embedded.chdb_server.engine import ChdbEngine, Settings, StatementError, insert_with_data, is_parquet
from moorage.embedded.chdb_server.requests import HttpRequest, MalformedRequestError, read_request

CONNECTIONS_MAX = 128
RUNNING_MAX = 16  # the concurrent statements of one client, and one more for a second process
WAIT_S = 20.0  # how long a statement waits for its turn; after that, the client is told to retry
IDLE_S = 300.0

# Parameters of the HTTP interface, not settings of a statement.
_NOT_SETTINGS = frozenset({
    "query", "database", "default_format", "user", "password", "session_id", "session_timeout", "session_check",
    "query_id", "quota_key", "role", "compress", "decompress", "buffer_size", "wait_end_of_query",
    "client_protocol_version", "enable_http_compression", "http_zlib_compression_level",
    "send_progress_in_http_headers", "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close",
})  # fmt: skip
_PARAM = "param_"

# ClickHouse's numbers of errors.
_UNREADABLE, _UNKNOWN_TABLE, _UNKNOWN_DATABASE, _TOO_MANY_AT_ONCE, _WRONG_PASSWORD = 6, 60, 81, 202, 516


class Server:
    """Server that accepts connections until `stop`. Each connection has a thread, in which its statements run."""

    def __init__(self, engine: ChdbEngine, listener: socket.socket, password: str) -> None:
        self._engine = engine
        self._listener = listener
        self._authorization = b"Basic " + base64.b64encode(f"default:{password}".encode())
        self._connections = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._turns = threading.BoundedSemaphore(RUNNING_MAX)
        self._watch = ClientWatch(engine)
        self._stopping = False

    def serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._converse, args=(client,), daemon=True).start()

    def stop(self, bound_s: float) -> None:
        """Start no more statements, and wait for those that are running."""
        self._stopping = True
        give_up_at = time.monotonic() + bound_s
        for _ in range(RUNNING_MAX):
            self._turns.acquire(timeout=max(0.0, give_up_at - time.monotonic()))

    def _converse(self, client: socket.socket) -> None:
        client.settimeout(IDLE_S)
        with client, client.makefile("rb") as incoming, suppress(OSError):  # the client has gone
            if not self._connections.acquire(blocking=False):
                HttpAnswer(client).refuse(503, "Too many connections", _TOO_MANY_AT_ONCE)
                return
            try:
                self._answer_all(client, incoming)
            except (MalformedRequestError, ValueError) as error:
                HttpAnswer(client).refuse(400, str(error), _UNREADABLE)
            finally:
                self._connections.release()

    def _answer_all(self, client: socket.socket, incoming: BufferedReader) -> None:
        while (request := read_request(incoming)) and not self._stopping:
            answer = HttpAnswer(client, request)
            self._answer(client, request, answer)
            for _ in request.body:
                pass  # unread data of this request would be parsed as the next request
            if answer.cut or not request.keep_alive:
                return

    def _answer(self, client: socket.socket, request: HttpRequest, answer: HttpAnswer) -> None:
        if request.path == "/ping":
            answer.send(iter([b"Ok.\n"]))
        elif not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization):
            answer.refuse(403, "Wrong password", _WRONG_PASSWORD)
        elif not self._turns.acquire(timeout=WAIT_S):
            answer.refuse(503, "Too many statements at once", _TOO_MANY_AT_ONCE)
        else:
            try:
                self._run(client, request, answer)
            except StatementError as error:
                missing = error.code in (_UNKNOWN_TABLE, _UNKNOWN_DATABASE)
                answer.refuse(404 if missing else 500, str(error), error.code)
            finally:
                self._turns.release()

    def _run(self, client: socket.socket, request: HttpRequest, answer: HttpAnswer) -> None:
        sql = request.read_statement()
        with self._engine.connection(request.params.get("database", ""), _settings(request)) as connection:
            if insert := insert_with_data(sql):
                connection.insert(insert[1], insert[2], request.body)
                answer.send(iter(()))
                return
            mark = secrets.token_hex(8)
            with self._watch.over(client, mark):
                if is_parquet(sql):
                    with connection.parquet(sql, _values(request), mark) as file:
                        answer.send_file(file, "Parquet")
                    return
                format_ = request.params.get("default_format", "TabSeparated")
                with closing(connection.query(sql, format_, _values(request), mark)) as pieces:
                    answer.send(pieces, format_)


def _settings(request: HttpRequest) -> Settings:
    settings = {name: value for name, value in request.params.items() if not name.startswith(_PARAM)}
    return tuple(sorted((name, value) for name, value in settings.items() if name not in _NOT_SETTINGS))


def _values(request: HttpRequest) -> dict[str, str]:
    named = ((name.removeprefix(_PARAM), value) for name, value in request.params.items() if name.startswith(_PARAM))
    return dict(named)


class ClientWatch:
    """Stops statements whose client has gone: nobody reads their results, while other statements
    wait for their turn.
    """

    def __init__(self, engine: ChdbEngine) -> None:
        self._engine = engine
        self._marks: dict[int, str] = {}
        self._departures = select.epoll()
        threading.Thread(target=self._wait, name="client-watch", daemon=True).start()

    @contextmanager
    def over(self, client: socket.socket, mark: str) -> Iterator[None]:
        descriptor = client.fileno()
        self._marks[descriptor] = mark
        self._departures.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            self._departures.unregister(descriptor)
            del self._marks[descriptor]

    def _wait(self) -> None:
        while True:
            for descriptor, _ in self._departures.poll():
                if mark := self._marks.get(descriptor):
                    self._stop(mark)

    def _stop(self, mark: str) -> None:
        try:
            self._engine.cancel(mark)
        except StatementError as error:
            print(f"A statement whose client has gone could not be stopped: {error}", file=sys.stderr)  # noqa: T201  our log
