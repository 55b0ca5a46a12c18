"""The client of the trace store, on the embedded engine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import pyarrow.parquet
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.kernel import clickhouse as kernel
from moorage.kernel.clickhouse import ClickHouse, split_statements
from moorage.kernel.errors import StartupError, UnavailableError
from moorage.kernel.migrations import Migration

pytest_plugins = "tests.traces.fixtures"

ODD = "nul\0 tab\t line\n quote' \\ ünï \U0001f600 {a:String} %s"
AT = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
EARLY = datetime(1, 1, 2, tzinfo=UTC)


# --- values ---


async def test_values_get_there_and_back_as_they_are(clickhouse: ClickHouse) -> None:
    sql = """
        SELECT {text:String} AS text, {at:DateTime64(6, 'UTC')} AS at, {run:UUID} AS run, {none:Nullable(String)} AS none,
            {cost:Decimal(38, 12)} AS cost, {words:Array(String)} AS words,
            {keys:Array(Tuple(DateTime64(6, 'UTC'), UUID))} AS keys, {yes:Bool} AS yes, {big:Int64} AS big,
            {bytes:Array(FixedString(4))} AS bytes, {byte:FixedString(4)} AS byte
    """
    values = {
        "text": ODD,
        "at": AT.astimezone(timezone(timedelta(hours=5, minutes=30))),
        "run": uuid4(),
        "none": None,
        "cost": Decimal("123456789.000000000001"),
        "words": [ODD, "", "it's"],
        "keys": [(AT, uuid4()), (EARLY, uuid4())],
        "yes": True,
        "big": -(2**63),
        "bytes": [b"\0'\\\xff", b"\n\t%]"],
        "byte": b"\0\t\\\xff",
    }
    assert await clickhouse.dicts(sql, values) == [values | {"at": AT}]


async def test_inserted_columns_are_there_when_insert_returns(clickhouse: ClickHouse) -> None:
    await clickhouse.command("""
        CREATE TABLE inserted (n UInt32, id UUID, at DateTime64(6, 'UTC'), text Nullable(String),
            word LowCardinality(Nullable(String)), cost Nullable(Decimal(38, 12))) ENGINE = MergeTree ORDER BY n
    """)
    columns = {
        "n": ("UInt32", [1, 2]),
        "id": ("UUID", [str(UUID(int=1)), str(UUID(int=2))]),
        "at": ("DateTime64(6, 'UTC')", [AT, AT]),
        "text": ("Nullable(String)", [ODD, None]),
        "word": ("LowCardinality(Nullable(String))", [None, "llm"]),
        "cost": ("Nullable(Decimal(38, 12))", [Decimal("1e-12"), None]),
    }
    await clickhouse.insert("inserted", columns)
    assert await clickhouse.rows("SELECT * FROM inserted ORDER BY n") == [
        (1, UUID(int=1), AT, ODD, None, Decimal("1e-12")),
        (2, UUID(int=2), AT, None, "llm", None),
    ]


class _Watched(list):
    """A list that reports when it is freed."""


@pytest.mark.parametrize("table", ["let_go", "no_such_table"])
async def test_inserted_columns_are_let_go_without_the_garbage_collector(clickhouse: ClickHouse, table) -> None:
    await clickhouse.command("CREATE TABLE IF NOT EXISTS let_go (n UInt32) ENGINE = MergeTree ORDER BY n")
    column = _Watched([1, 2])
    watched = weakref.ref(column)
    gc.disable()
    try:
        try:
            await clickhouse.insert(table, {"n": ("UInt32", column)})
        except DatabaseError:
            assert table == "no_such_table"
        del column
        async with asyncio.timeout(10):  # the thread that sent them releases them a moment after its answer is here
            while watched() is not None:  # noqa: ASYNC110  nothing tells when it goes
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_long_values_go_with_every_kind_of_statement(clickhouse: ClickHouse) -> None:
    ids = [uuid4() for _ in range(20_000)]
    sql = "SELECT length({ids:Array(UUID)})"
    assert await clickhouse.value(sql, {"ids": ids}) == len(ids)
    await clickhouse.command(f"CREATE OR REPLACE TABLE found ENGINE = Memory AS {sql} AS n", {"ids": ids})
    assert await clickhouse.value("SELECT n FROM found") == len(ids)
    file = BytesIO()
    await clickhouse.save(f"{sql} FORMAT TabSeparated", file, {"ids": ids})
    assert file.getvalue() == b"20000\n"


async def test_a_value_is_never_part_of_the_statement(clickhouse: ClickHouse) -> None:
    for text in ("'; DROP TABLE x; --", "\\' OR 1=1", "{other:String}", "\\N", "'\"`"):
        assert await clickhouse.value("SELECT {text:String}", {"text": text, "other": "wrong"}) == text


async def test_no_rows(clickhouse: ClickHouse) -> None:
    assert await clickhouse.rows("SELECT 1 AS a WHERE 0") == []
    assert await clickhouse.dicts("SELECT 1 AS a WHERE 0") == []
    assert await clickhouse.value("SELECT 1 AS a WHERE 0") is None


async def test_parquet_comes_as_one_file(clickhouse: ClickHouse) -> None:
    sql = "SELECT number AS n, repeat(toString(n), 20) AS words FROM numbers({most:UInt32}) FORMAT Parquet"
    file = BytesIO()
    await clickhouse.save(sql, file, {"most": 200_000})
    assert pyarrow.parquet.read_table(file).num_rows == 200_000


async def test_inserts_do_not_wait_behind_slow_reads(clickhouse: ClickHouse) -> None:
    await clickhouse.command("CREATE TABLE meanwhile (n UInt32) ENGINE = MergeTree ORDER BY n")
    reads = [asyncio.create_task(clickhouse.value("SELECT sleep(2)")) for _ in range(2 * kernel.READS_AT_ONCE)]
    await asyncio.sleep(0)
    await clickhouse.insert("meanwhile", {"n": ("UInt32", [1])})
    assert not all(read.done() for read in reads), "they take turns, and the last ones have hardly begun"
    assert await asyncio.gather(*reads) == [0] * len(reads)


# --- what can go wrong ---


async def test_a_wrong_statement_is_a_fault_of_ours(clickhouse: ClickHouse) -> None:
    with pytest.raises(DatabaseError, match="UNKNOWN_IDENTIFIER"):
        await clickhouse.rows("SELECT no_such_column")


@pytest.mark.parametrize(
    ("sql", "limits", "words"),
    [
        ("SELECT sum(number) FROM numbers(987654321000)", {"max_execution_time": "0.1"}, "in time"),
        ("SELECT groupArray(repeat('x', 1000)) FROM numbers(1000000)", {"max_memory_usage": 50_000_000}, "memory"),
    ],
)
async def test_what_passes_by_itself_may_be_asked_again(clickhouse: ClickHouse, sql, limits, words) -> None:
    with pytest.raises(UnavailableError, match=words):
        await clickhouse.rows(sql, settings=limits)


async def test_an_engine_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "_PATIENCE_S", 0.2)
    client = ClickHouse(f"http+unix://default:x@{str(tmp_path / 'none').replace('/', '%2F')}/moorage")
    for call in (client.open(), client.rows("SELECT 1"), client.command("SELECT 1"), client.insert("t", {})):
        with pytest.raises(UnavailableError, match="not available"):
            await call
    await client.close()


@pytest.fixture
def own_store(folder: Path) -> Iterator[EmbeddedClickHouse]:
    """Start a store that the test may kill."""
    store = EmbeddedClickHouse(folder / "home")
    yield store
    store.stop()


def _kill(store: EmbeddedClickHouse) -> None:
    os.kill(store._server_pid() or 0, signal.SIGKILL)


async def test_an_engine_that_answered_and_is_dead_is_away(
    own_store: EmbeddedClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ClickHouse(await asyncio.to_thread(own_store.start))
    await client.open()
    _kill(own_store)
    monkeypatch.setattr(kernel, "_PATIENCE_S", 0.2)
    with pytest.raises(UnavailableError, match="not available"):
        await client.open()
    await client.close()


async def test_statements_outlast_the_death_of_the_engine(own_store: EmbeddedClickHouse) -> None:
    client = ClickHouse(await asyncio.to_thread(own_store.start))
    await client.command("CREATE TABLE kept (n UInt32) ENGINE = MergeTree ORDER BY n SETTINGS fsync_after_insert = 1")
    _kill(own_store)
    waiting = asyncio.gather(client.insert("kept", {"n": ("UInt32", [1])}), client.value("SELECT 7"))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(own_store.start)
    assert (await waiting)[1] == 7
    assert await client.value("SELECT count() FROM kept") == 1
    await client.close()


@pytest.mark.parametrize("format_", ["TabSeparated", "Parquet"])
async def test_an_answer_that_is_cut_is_no_end(own_store: EmbeddedClickHouse, format_: str) -> None:
    client = ClickHouse(await asyncio.to_thread(own_store.start))
    read_end, write_end = os.pipe()  # takes little, so that most of the result is still to come when the store dies
    sql = "SELECT randomString(1000) FROM numbers(20000)"
    with os.fdopen(write_end, "wb") as file:
        saving = asyncio.create_task(client.save(f"{sql} FORMAT {format_}", file))
        assert await asyncio.to_thread(os.read, read_end, 1)
        _kill(own_store)
        with os.fdopen(read_end, "rb") as rest:
            reading = asyncio.create_task(asyncio.to_thread(_exhaust, rest))
            with pytest.raises(UnavailableError, match="in the middle of an answer"):
                await saving
            file.close()
            await reading
    await client.close()


def _exhaust(file: IO[bytes]) -> None:
    while file.read(2**20):
        pass


# --- what a power cut leaves ---


async def test_all_that_is_acknowledged_is_synced_and_all_that_replaces_it(empty_clickhouse_url: str) -> None:
    client = ClickHouse(empty_clickhouse_url)
    await client.migrate()
    tables = dict(await client.rows(_SETTINGS_OF_TABLES))
    await client.close()
    assert {"trace_run_rows", "trace_keys", "feedback_rows", "deleted_runs"} <= tables.keys()
    synced = ("fsync_after_insert = 1", "fsync_part_directory = 1", "min_rows_to_fsync_after_merge = 1")
    assert {name: [each for each in synced if each not in settings] for name, settings in tables.items()} == {
        name: [] for name in tables
    }


async def test_a_merged_part_is_on_the_disk_before_what_it_replaces_goes(own_store: EmbeddedClickHouse) -> None:
    client = ClickHouse(await asyncio.to_thread(own_store.start))
    await client.migrate()
    await client.command("SYSTEM STOP MERGES")
    for number in (1, 2):
        await client.insert("deleted_runs", {"id": ("UUID", [UUID(int=number)])})
    before = await client.value(_FILES_SYNCED)
    await client.command("SYSTEM START MERGES deleted_runs")
    await client.command("OPTIMIZE TABLE deleted_runs FINAL")
    [(_, rows)] = await client.rows("SELECT name, rows FROM system.parts WHERE table = 'deleted_runs' AND active")
    assert rows == 2
    assert await client.value(_FILES_SYNCED) > before
    await client.close()


_SETTINGS_OF_TABLES = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND endsWith(engine, 'MergeTree')
"""
_FILES_SYNCED = "SELECT value FROM system.events WHERE event = 'FileSync'"


# --- a server of one's own, over TCP ---


@pytest.fixture
def tcp_url(clickhouse_url: str) -> Iterator[str]:
    """Serve the same engine on a port: addresses with host, port and database, and compressed bodies."""
    path = unquote(clickhouse_url.partition("@")[2].partition("/")[0])
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_relay_all, args=(listener, path), daemon=True).start()
    password = urlsplit(clickhouse_url).password
    yield f"http://default:{password}@127.0.0.1:{listener.getsockname()[1]}/{clickhouse_url.rpartition('/')[2]}"
    listener.close()


def _relay_all(listener: socket.socket, path: str) -> None:
    with suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(path)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_relay, args=(one, other), daemon=True).start()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


async def test_a_server_behind_a_port(tcp_url: str, clickhouse: ClickHouse) -> None:
    client = ClickHouse(tcp_url)
    await client.open()
    assert await client.value("SELECT currentDatabase()") == await clickhouse.value("SELECT currentDatabase()")
    assert await client.migrate() == []
    await client.command("CREATE TABLE over_tcp (text String) ENGINE = MergeTree ORDER BY text")
    await client.insert("over_tcp", {"text": ("String", [ODD * 1000])})
    assert await client.value("SELECT text FROM over_tcp") == ODD * 1000
    await client.close()


# --- migrations ---


@pytest.fixture
async def empty(empty_clickhouse_url: str) -> AsyncIterator[ClickHouse]:
    """Return a client of a database without a schema."""
    client = ClickHouse(empty_clickhouse_url)
    yield client
    await client.close()


async def test_migrations_are_applied_once(empty: ClickHouse) -> None:
    applied = await empty.migrate()
    assert applied[0] == "clickhouse/0040_traces"
    assert await empty.migrate() == []
    assert await empty.value("SELECT count() FROM trace_runs") == 0


async def test_two_processes_migrate_at_once(empty: ClickHouse) -> None:
    other = ClickHouse(empty.url)
    await asyncio.gather(empty.migrate(), other.migrate())
    assert await other.migrate() == []
    await other.close()


async def test_a_migration_that_broke_off_is_finished(empty: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = [f"CREATE TABLE IF NOT EXISTS t{n} (a String) ENGINE = Memory;\n" for n in range(3)]
    broken = Migration(1, "tables", 1, statements[0] + "CREATE NONSENSE;\n" + statements[1])
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: [broken])
    with pytest.raises(DatabaseError):
        await empty.migrate()
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: [Migration(1, "tables", 1, "".join(statements))])
    assert await empty.migrate() == ["clickhouse/0001_tables"]
    assert await empty.value("SELECT count() FROM t2") == 0


async def test_a_newer_schema_is_refused_unless_it_is_compatible_and_so_is_a_much_older_one(
    empty: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [Migration(1, "one", 1, ""), Migration(2, "two", 1, ""), Migration(3, "three", 3, "")]
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: files[:2])
    assert await empty.migrate() == ["clickhouse/0001_one", "clickhouse/0002_two"]
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: files[:1])
    assert await empty.migrate() == []
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: files)
    assert await empty.migrate() == ["clickhouse/0003_three"]
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: files[:1])
    with pytest.raises(StartupError, match="version 3 and serves programs from 3 on; this one knows 1"):
        await empty.migrate()
    monkeypatch.setattr(kernel, "read_migrations", lambda schema: [Migration(4, "all_of_them", 4, "")])
    with pytest.raises(StartupError, match="version 3, and this moorage upgrades from version 4 on"):
        await empty.migrate()


def test_statements_of_a_file() -> None:
    sql = "-- one; two\nSELECT ';';\n\n  -- more\nSELECT 2\n-- inside\nFROM t ;\nSELECT 3"
    assert split_statements(sql) == ["SELECT ';'", "SELECT 2\nFROM t", "SELECT 3"]
