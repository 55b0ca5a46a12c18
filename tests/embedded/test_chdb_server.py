"""The HTTP front of the embedded trace store, with the unmodified client and with raw requests."""

from __future__ import annotations

import gzip
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from tests.faults.full_disk import can_mount, fill, small_file_system
from tests.waiting import wait_until

from moorage.embedded.chdb_server import server as front
from moorage.embedded.chdb_server.idle_merges import SMALL_BYTES, is_crowded
from moorage.kernel import clickhouse as kernel

pytest_plugins = "tests.traces.fixtures"


class Front:
    """A client that sends raw requests to the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = urlsplit(url)
        self.socket_path = Path(unquote(url.partition("@")[2].partition("/")[0]))
        self.password = address.password or ""
        self.authorization = "Basic " + b64encode(f"default:{self.password}".encode()).decode()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.socket_path))
        return connection

    def http(self) -> HTTPConnection:
        connection = HTTPConnection("localhost")
        connection.sock = self.connect()
        return connection

    def ask(self, sql: str, headers: dict[str, str] | None = None, **params: str) -> tuple[int, bytes, HTTPResponse]:
        with closing(self.http()) as connection:
            headers = {"Authorization": self.authorization, **(headers or {})}
            connection.request("POST", "/?" + urlencode(params), sql.encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer

    def value(self, sql: str) -> str:
        status, body, _ = self.ask(sql)
        assert status == 200, body
        return body.decode().strip()

    def begin(self, sql: str) -> socket.socket:
        """Begin a request whose answer is not waited for."""
        connection = self.connect()
        head = f"POST / HTTP/1.1\r\nAuthorization: {self.authorization}\r\nContent-Length: {len(sql)}\r\n\r\n"
        connection.sendall(head.encode() + sql.encode())
        return connection


@pytest.fixture(scope="module")
def store(trace_store_url: str) -> Front:
    return Front(trace_store_url)


@pytest.fixture(params=[False, "lz4", "zstd", "gzip"])
def client(request: pytest.FixtureRequest, store: Front) -> Iterator[Client]:
    client = clickhouse_connect.get_client(
        host="localhost", password=store.password, compress=request.param, pool_mgr=kernel._pool(store.url)
    )
    yield client
    client.close()


# --- the unmodified client ---


def test_unmodified_client_with_each_compression(client: Client) -> None:
    client.command("CREATE OR REPLACE TABLE words (n UInt64, word Nullable(String)) ENGINE = MergeTree ORDER BY n")
    rows = [[n, None if n % 3 == 0 else f"wörd {n}\t\n\0'\\"] for n in range(20_000)]
    client.insert("words", rows, column_names=["n", "word"])
    assert client.query("SELECT n, word FROM words ORDER BY n").result_rows == [tuple(row) for row in rows]
    found = client.query("SELECT n FROM words WHERE word = {word:String}", {"word": rows[7][1]}).result_rows
    assert found == [(7,)]
    many = {"many": list(range(0, 20_000, 2))}
    assert client.query("SELECT count() FROM words WHERE n IN {many:Array(UInt64)}", many).first_row == (10_000,)
    assert client.query("SELECT n FROM words WHERE n > 1000000").result_rows == []
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE") as caught:
        client.query("SELECT * FROM no_such_table")
    assert caught.value.code == 60


def test_settings_reach_their_statement_and_no_other(client: Client) -> None:
    threads = "SELECT getSetting('max_threads'), getSetting('log_comment')"
    usual = client.query(threads).first_row
    assert client.query(threads, settings={"max_threads": 3, "log_comment": "it's \\ here"}).first_row == (
        3,
        "it's \\ here",
    )
    assert client.query(threads).first_row == usual


# --- statements ---


@pytest.mark.parametrize("name", ["max_threads = 1, max_memory_usage", "no_such_setting", "a b"])
def test_unknown_settings_are_refused(store: Front, name: str) -> None:
    status, body, answer = store.ask("SELECT 1", **{name: "1"})
    assert (status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "115"), body


def test_a_database_is_a_name_and_nothing_else(store: Front) -> None:
    status, _, answer = store.ask("SELECT 1", database="a`; DROP DATABASE moorage; --")
    assert (status, answer.headers["X-ClickHouse-Exception-Code"]) == (404, "81")


def test_parquet_is_one_file_and_leaves_nothing_behind(store: Front) -> None:
    sql = "SELECT number, toString(number) AS word FROM numbers({n:UInt64}) FORMAT Parquet"
    status, body, _ = store.ask(sql, param_n="300000")
    assert status == 200
    assert (body[:4], body[-4:], body.count(b"PAR1")) == (b"PAR1", b"PAR1", 2)
    assert not list((store.socket_path.parents[1] / "clickhouse/spool").glob("*.parquet"))


@pytest.mark.skipif(not can_mount(), reason="a small file system can be mounted by root only")
@pytest.mark.parametrize("rows", [1000, 300_000], ids=["nothing of it fits", "half of it fits"])
def test_parquet_that_finds_no_space_is_refused(store: Front, rows: int) -> None:
    sql = f"SELECT number, generateUUIDv4() AS id FROM numbers({rows}) FORMAT Parquet"
    spool = store.socket_path.parents[1] / "clickhouse" / "spool"
    with (
        small_file_system(spool, 1 if rows == 1000 else 4, mode="1777") as small,
        (small / "filler").open("wb") as filler,
    ):
        if rows == 1000:
            fill(filler.fileno())
        _, _, answer = store.ask(sql)
        assert answer.headers["X-ClickHouse-Exception-Code"] == "243"
        filler.truncate(0)
        assert store.ask(sql.replace(str(rows), "1000"))[0] == 200


def test_an_error_in_the_middle_cuts_the_answer(store: Front) -> None:
    sql = "SELECT throwIf(number = 900000), repeat('x', 100) FROM numbers(1000000) SETTINGS max_block_size = 10000"
    with pytest.raises(IncompleteRead):
        store.ask(sql)


def test_an_error_at_the_start_has_its_status_and_code(store: Front) -> None:
    status, body, answer = store.ask("SELECT throwIf(1, 'no way')")
    assert (status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "395")
    assert b"no way" in body


def test_a_statement_whose_client_has_gone_is_stopped(store: Front) -> None:
    running = "SELECT count() FROM system.processes WHERE query LIKE '%987654321000%' AND query NOT LIKE '%processes%'"
    with store.begin("SELECT sum(number) FROM numbers(987654321000)"):
        wait_until(lambda: store.value(running) == "1")
    wait_until(lambda: store.value(running) == "0")


def test_a_statement_that_takes_too_long_is_stopped(store: Front) -> None:
    status, _, answer = store.ask("SELECT sum(number) FROM numbers(987654321000)", max_execution_time="0.2")
    assert (status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "159")


def test_a_statement_that_takes_too_much_memory_is_stopped_and_the_store_goes_on(store: Front) -> None:
    status, _, answer = store.ask("SELECT groupArray(repeat('x', 1000)) FROM numbers(3000000)")
    assert (status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "241")
    assert store.value("SELECT 1") == "1"


def test_an_insert_that_breaks_off_leaves_nothing(store: Front) -> None:
    store.value("CREATE OR REPLACE TABLE whole (n UInt32) ENGINE = MergeTree ORDER BY n")
    with store.connect() as connection:
        head = f"POST / HTTP/1.1\r\nAuthorization: {store.authorization}\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head.encode() + b"INSERT INTO whole (n) FORMAT TabSeparated\n1\n2\n3\n")
    status, body, _ = store.ask("INSERT INTO whole (n) FORMAT TabSeparated\n1\nx\n")
    assert (status, b"Cannot parse" in body) == (500, True)
    assert store.value("SELECT count() FROM whole") == "0"
    store.value("INSERT INTO whole (n) FORMAT TabSeparated\n1\n2\n")
    assert store.value("SELECT count() FROM whole") == "2"


# --- who comes, and how ---


def test_nobody_gets_in_without_the_password(store: Front) -> None:
    for given in ("", "Basic " + b64encode(b"default:guess").decode(), "Bearer ünï"):
        with closing(store.http()) as connection:
            connection.request("GET", "/?query=SELECT+1", headers={"Authorization": given.encode()})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "516")


BROKEN = {
    "not HTTP": b"\x16\x03\x01 hello\r\n\r\n",
    "no method": b"/\r\n\r\n",
    "a broken header": b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    "too many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "a length that is none": b"POST / HTTP/1.1\r\nAUTH\r\nContent-Length: many\r\n\r\nSELECT 1",
    "a chunk that is none": b"POST / HTTP/1.1\r\nAUTH\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nSELECT 1\r\n",
    "a body that is not gzip": b"POST / HTTP/1.1\r\nAUTH\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\nSELECT 1",
    "an unknown encoding": b"POST / HTTP/1.1\r\nAUTH\r\nContent-Encoding: br\r\nContent-Length: 8\r\n\r\nSELECT 1",
    "a broken form": b"POST / HTTP/1.1\r\nAUTH\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 19\r\n\r\n"
    b"--x\r\nfoo\r\n\r\n1\r\n--x--",
    "a statement that is no text": b"POST / HTTP/1.1\r\nAUTH\r\nContent-Length: 2\r\n\r\n\xff\xfe",
}


@pytest.mark.parametrize("request_bytes", BROKEN.values(), ids=BROKEN)
def test_a_broken_request_is_answered_and_the_store_goes_on(store: Front, request_bytes: bytes) -> None:
    with store.connect() as connection:
        connection.sendall(request_bytes.replace(b"AUTH", b"Authorization: " + store.authorization.encode()))
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert store.value("SELECT 1") == "1"


def test_an_address_that_never_ends_is_cut_off(store: Front) -> None:
    with store.connect() as connection, pytest.raises(OSError, match=r"Broken pipe|reset"):
        connection.sendall(b"GET /?" + b"a" * 2**25)


def test_a_compressed_statement_and_a_connection_that_serves_several_requests(store: Front) -> None:
    with closing(store.http()) as connection:
        for number in range(3):
            body = gzip.compress(f"SELECT {number}".encode())
            headers = {"Authorization": store.authorization, "Content-Encoding": "gzip"}
            connection.request("POST", "/", body, headers)
            assert connection.getresponse().read() == f"{number}\n".encode()


def test_more_connections_than_there_is_room_for_are_told_to_come_again(store: Front) -> None:
    held = [store.connect() for _ in range(front.CONNECTIONS_MAX)]
    try:
        for connection in held:
            _ping(connection)
        answers = {connection.recv(1000)[:13] for connection in held}
        assert answers <= {b"HTTP/1.1 200 ", b"HTTP/1.1 503 "}
        with store.connect() as one_more:
            _ping(one_more)
            assert one_more.recv(1000).startswith(b"HTTP/1.1 503 ")
    finally:
        for connection in held:
            connection.close()
    # Most of them are closed; otherwise the next tests would be told to retry. (Not all: a connection that is asked is
    # closed meanwhile.)
    some = front.CONNECTIONS_MAX // 2
    wait_until(lambda: all(answer.startswith(b"HTTP/1.1 200 ") for answer in _pings(store, some)))


def _ping(connection: socket.socket) -> None:
    with suppress(BrokenPipeError):  # one for which there is no room is answered and closed without being asked
        connection.sendall(b"GET /ping HTTP/1.1\r\n\r\n")


def _pings(store: Front, count: int) -> list[bytes]:
    """Return the answers on this many connections at once; a connection that is closed right away has none."""
    with ExitStack() as opened, suppress(OSError):
        connections = [opened.enter_context(store.connect()) for _ in range(count)]
        for connection in connections:
            _ping(connection)
        return [connection.recv(1000) for connection in connections]
    return [b""]


def test_no_statement_of_one_client_waits_for_a_turn_and_is_refused() -> None:
    assert kernel.READS_AT_ONCE + kernel.INSERTS_AT_ONCE < front.RUNNING_MAX


def test_more_statements_than_run_at_once_wait_for_their_turn(store: Front) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(store.ask("SELECT sleep(0.2)")[0]))
        for _ in range(front.RUNNING_MAX * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * len(threads)


# --- small parts ---


def test_what_was_written_last_is_merged_soon_and_a_table_that_cannot_be_is_in_nobodys_way(store: Front) -> None:
    for table in ("tidied", "stopped"):
        store.value(f"CREATE TABLE {table} (n UInt64) ENGINE = MergeTree ORDER BY n")
    store.value("SYSTEM STOP MERGES stopped")
    for table in ("stopped", "tidied"):
        for n in range(4):  # fewer than the engine would merge
            store.value(f"INSERT INTO {table} VALUES ({n})")

    def parts(table: str) -> int:
        return int(store.value(f"SELECT count() FROM system.parts WHERE active AND table = '{table}'"))

    assert parts("tidied") == 4
    wait_until(lambda: parts("tidied") == 1, bound_s=30)
    assert parts("stopped") == 4
    store.value("SYSTEM START MERGES stopped")
    store.value("INSERT INTO stopped VALUES (4)")
    wait_until(lambda: parts("stopped") == 1, bound_s=30)
    assert store.value("SELECT groupArray(n) FROM (SELECT n FROM stopped ORDER BY n)") == "[0,1,2,3,4]"


@pytest.mark.parametrize(
    ("parts", "crowded"),
    [
        ([], False),
        ([1, 1], False),
        ([1, 1, 1], True),
        ([SMALL_BYTES, 1, 1], False),
        ([SMALL_BYTES, 1, 1, 1], True),
        ([1, 1, 1, SMALL_BYTES], False),
        (["1", "2", "3"], True),
    ],
)
def test_the_last_parts_are_crowded_when_they_are_small_and_many(parts: list[int | str], crowded: bool) -> None:
    assert is_crowded(parts) is crowded
