"""Connections and threads: who is let in, and how many statements run at once."""

from __future__ import annotations

import base64
import hmac
import secrets
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader

import structlog

from moorage.embedded.chdb_server.answers import Answer
from moorage.embedded.chdb_server.engine import Engine, Settings, StatementError, is_insert_with_data
from moorage.embedded.chdb_server.requests import BadHttpError, Request, read_request

log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 128
RUNNING_MAX = 12
WAIT_S = 20.0  # for a turn to run; after that a client is better told to come again
IDLE_S = 300.0
_WATCH_MS = 500

# Of the interface, not of a statement.
_NOT_SETTINGS = frozenset({
    "query", "database", "default_format", "user", "password", "session_id", "session_timeout", "session_check",
    "query_id", "quota_key", "role", "compress", "decompress", "buffer_size", "wait_end_of_query",
    "client_protocol_version", "enable_http_compression", "http_zlib_compression_level",
    "send_progress_in_http_headers", "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close",
})  # fmt: skip
# ClickHouse's numbers for a table or database that is not there.
_STATUS = {60: 404, 81: 404}


class Server:
    """Accepts connections until `stop`. Each is a thread, and each statement runs in the thread of its connection."""

    def __init__(self, engine: Engine, listener: socket.socket, password: str) -> None:
        self._engine = engine
        self._listener = listener
        self._authorization = "Basic " + base64.b64encode(f"default:{password}".encode()).decode()
        self._connections = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._turns = threading.BoundedSemaphore(RUNNING_MAX)
        self._watch = ClientWatch(engine)
        self._stopping = threading.Event()

    def serve(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed by stop
            threading.Thread(target=self._converse, args=(client,), daemon=True).start()

    def stop(self, bound_s: float) -> None:
        """No new statements; waits for those that run."""
        self._stopping.set()
        self._listener.close()
        for _ in range(RUNNING_MAX):
            self._turns.acquire(timeout=bound_s)

    def _converse(self, client: socket.socket) -> None:
        client.settimeout(IDLE_S)
        with client, BufferedReader(client.makefile("rb", 0), 2**18) as incoming, suppress(OSError):
            if not self._connections.acquire(blocking=False):
                Answer(client).refuse(503, "Too many connections", None)
                return
            try:
                self._answer_all(client, incoming)
            except (BadHttpError, ValueError) as error:
                Answer(client).refuse(400, str(error), None)
            finally:
                self._connections.release()

    def _answer_all(self, client: socket.socket, incoming: BufferedReader) -> None:
        while not self._stopping.is_set() and (request := read_request(incoming)):
            answer = Answer(client, request)
            self._answer(client, request, answer)
            for _ in request.body:
                pass  # what the answer did not need is still in the way of the next request
            if answer.cut or not request.keep_alive:
                return

    def _answer(self, client: socket.socket, request: Request, answer: Answer) -> None:
        if request.path == "/ping":
            answer.send(iter([b"Ok.\n"]), "")
        elif not hmac.compare_digest(request.headers.get("authorization", ""), self._authorization):
            answer.refuse(403, "Code: 516. Authentication failed", 516)
        elif not self._turns.acquire(timeout=WAIT_S):
            answer.refuse(503, "Code: 202. Too many simultaneous queries", 202)
        else:
            try:
                self._run(client, request, answer)
            except StatementError as error:
                answer.refuse(_STATUS.get(error.code, 500), str(error), error.code)
            finally:
                self._turns.release()

    def _run(self, client: socket.socket, request: Request, answer: Answer) -> None:
        sql = request.statement()
        with self._engine.connection(request.params.get("database", ""), _settings(request)) as connection:
            if is_insert_with_data(sql):
                connection.insert(sql, request.body)
                answer.send(iter(()), "")
                return
            format_ = request.params.get("default_format", "TabSeparated")
            params = {name[6:]: value for name, value in request.params.items() if name.startswith("param_")}
            mark = secrets.token_hex(8)
            with self._watch.over(client, mark):
                answer.send(connection.query(sql, format_, params, mark), format_)


def _settings(request: Request) -> Settings:
    named = ((name, value) for name, value in request.params.items() if not name.startswith("param_"))
    return tuple(sorted((name, value) for name, value in named if name not in _NOT_SETTINGS))


class ClientWatch:
    """Stops statements whose client has gone: nobody will read their results, and others wait for their turn."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks: dict[int, str] = {}
        self._poll = select.poll()
        threading.Thread(target=self._look, name="client-watch", daemon=True).start()

    @contextmanager
    def over(self, client: socket.socket, mark: str) -> Iterator[None]:
        descriptor = client.fileno()
        self._marks[descriptor] = mark
        self._poll.register(descriptor, select.POLLRDHUP)
        try:
            yield
        finally:
            self._marks.pop(descriptor, None)
            with suppress(KeyError):
                self._poll.unregister(descriptor)

    def _look(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll(_WATCH_MS):
                with suppress(KeyError):
                    self._poll.unregister(descriptor)
                if mark := self._marks.pop(descriptor, None):
                    self._stop(mark)

    def _stop(self, mark: str) -> None:
        try:
            self._engine.cancel(mark)
        except StatementError as error:
            log.warning("a statement without a client could not be stopped", error=str(error))
