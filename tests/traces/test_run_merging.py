"""POST, PATCH and DELETE of runs, in any order, over inserts, connections and merges, against a plain model of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.encoding import decode, encode
from moorage.traces.records.run_fields import form_v2
from moorage.traces.records.run_rows import NO_USAGE
from moorage.traces.store.run_columns import READABLE
from moorage.traces.store.run_reads import RunKey, RunReads

pytest_plugins = "tests.traces.fixtures"

BEGAN_AT = datetime(2026, 6, 1, tzinfo=UTC)
TIME = "Nullable(DateTime64(6, 'UTC'))"
TYPES = {
    "tenant_id": "UUID",
    "session_id": "UUID",
    "start_time": "DateTime64(6, 'UTC')",
    "id": "UUID",
    "trace_id": "Nullable(UUID)",
    "dotted_order": "Nullable(String)",
    "ingested_at": TIME,
    "deleted_at": TIME,
}
# Values that POST and PATCH may both set: its type, and two different values.
TWINS: dict[str, tuple[str, list[Any]]] = {
    "name": ("LowCardinality(Nullable(String))", ["first", ""]),
    "run_type": ("LowCardinality(Nullable(String))", ["llm", "chain"]),
    "end_time": (TIME, [BEGAN_AT + timedelta(seconds=2), BEGAN_AT + timedelta(microseconds=7)]),
    "first_token_time": (TIME, [BEGAN_AT, BEGAN_AT + timedelta(days=1)]),
    "error": ("Nullable(String)", ["it broke", "again"]),
    "inputs": ("Nullable(String)", ['{"q":"nul\\u0000"}', "{}"]),
    "outputs": ("Nullable(String)", ['{"a":1}', '{"a":"ünï\0\\"}']),
    "metadata_json": ("Nullable(String)", ['{"env":"prod"}', "{}"]),
    "extra_without_metadata": ("Nullable(String)", ['{"runtime":{}}', "{}"]),
    "events": ("Nullable(String)", ["[]", '[{"name":"end"}]']),
    "serialized": ("Nullable(String)", ['{"lc":1}', "{}"]),
    "tags": ("Nullable(String)", ['["a","b"]', "[]"]),
    "attachments": (
        "Nullable(String)",
        ['{"x":{"key":"1","mime_type":"t"}}', '{"y":{"key":"2","mime_type":"t"},"x":{"key":"3","mime_type":"t"}}'],
    ),
    "reference_example_id": ("Nullable(UUID)", [UUID(int=1), UUID(int=2)]),
    "thread_id": ("Nullable(String)", ["t1", "t2"]),
    "prompt_tokens": ("Nullable(Int64)", [0, 10, NO_USAGE["prompt_tokens"]]),
    "completion_tokens": ("Nullable(Int64)", [0, 2**62]),
    "total_tokens": ("Nullable(Int64)", [1, 11]),
    "prompt_cost": ("Nullable(Decimal(38, 12))", [Decimal("0.000000000001"), Decimal(0), NO_USAGE["prompt_cost"]]),
    "completion_cost": ("Nullable(Decimal(38, 12))", [Decimal(1), Decimal("123456.789")]),
    "total_cost": ("Nullable(Decimal(38, 12))", [Decimal(2), Decimal("1e-6")]),
    "prompt_token_details": ("Nullable(String)", ['{"cache_read":1}', "{}"]),
    "completion_token_details": ("Nullable(String)", ['{"reasoning":1}', "{}"]),
    "prompt_cost_details": ("Nullable(String)", ['{"cache_read":0.1}', "{}"]),
    "completion_cost_details": ("Nullable(String)", ['{"reasoning":0.1}', "{}"]),
}
TYPES |= {name: kind for name, (kind, _) in TWINS.items()}
TYPES |= {f"patched_{name}": kind for name, (kind, _) in TWINS.items()}


# Fields that pages read as the model has them. Pages also read the parts of tags and attachments.
AS_READ = [name for name in TWINS if name in READABLE and name != "extra_without_metadata"]


@dataclass(frozen=True)
class Write:
    run: int
    kind: Literal["post", "patch", "delete"]
    values: dict[str, Any]


@dataclass(frozen=True)
class Insert:
    """Writes that are sent as one block, over one of two connections; sent twice when the answer was lost."""

    writes: list[Write]
    connection: int
    sent_twice: bool
    merged_after: bool


def some_values() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of a few columns. Each may also be sent as NULL, which sets nothing."""
    return st.fixed_dictionaries(
        {}, optional={name: st.sampled_from([*values, None]) for name, (_, values) in TWINS.items()}
    )


WRITES = st.builds(
    Write,
    run=st.integers(0, 2),
    kind=st.sampled_from(["post", "patch", "post", "patch", "patch", "delete"]),
    values=some_values(),
)
INSERTS = st.builds(
    Insert,
    writes=st.lists(WRITES, min_size=1, max_size=4),
    connection=st.integers(0, 1),
    sent_twice=st.booleans(),
    merged_after=st.sampled_from([False, False, True]),
)


class Model:
    """The values that a reader must see: for each column the last PATCH that sets it, or else the
    last POST that does.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[int, str], dict[str, Any]] = {}

    def add(self, write: Write) -> None:
        said = self._said.setdefault((write.run, write.kind), {})
        said.update({name: value for name, value in write.values.items() if value is not None})

    def runs(self) -> dict[int, dict[str, Any]]:
        numbers = {run for run, _ in self._said}
        return {run: self._read(run) for run in numbers if (run, "delete") not in self._said}

    def _read(self, run: int) -> dict[str, Any]:
        post, patch = self._said.get((run, "post"), {}), self._said.get((run, "patch"), {})
        seen = {**dict.fromkeys(TWINS), **post, **patch}
        if attachments := [json.loads(said["attachments"]) for said in (post, patch) if said.get("attachments")]:
            seen["attachments"] = {name: value for each in attachments for name, value in each.items()}
        for name, sign in NO_USAGE.items():
            if seen[name] == (sign.decode() if isinstance(sign, bytes) else sign):
                seen[name] = None
        seen["tags"] = json.loads(seen["tags"] or "[]")
        seen["extra"] = _extra(seen.pop("extra_without_metadata"), seen["metadata_json"])
        seen["status"] = "error" if seen["error"] is not None else "success" if seen["end_time"] else "pending"
        seen["latency_s"] = (seen["end_time"] - BEGAN_AT).total_seconds() if seen["end_time"] else None
        return seen


def _extra(rest: str | None, metadata: str | None) -> dict[str, Any] | None:
    if metadata is None:
        return None if rest is None else json.loads(rest)
    return {**json.loads(rest or "{}"), "metadata": json.loads(metadata)}


class Store:
    """Three runs of one trace in a workspace of their own."""

    def __init__(self, connections: list[ClickHouse], reads: RunReads) -> None:
        self._connections, self._reads = connections, reads
        self._workspace, self._project = uuid4(), uuid4()
        self.ids = [uuid4() for _ in range(3)]

    async def insert(self, insert: Insert) -> None:
        rows = [self._row(write) for write in insert.writes]
        names = [name for name in TYPES if any(row.get(name) is not None for row in rows)]
        columns = {name: (TYPES[name], [row.get(name) for row in rows]) for name in names}
        for _ in range(2 if insert.sent_twice else 1):
            await self._connections[insert.connection].insert("trace_run_rows", columns)
        if insert.merged_after:
            await self._connections[insert.connection].command("OPTIMIZE TABLE trace_run_rows FINAL")

    def _row(self, write: Write) -> dict[str, Any]:
        run_id, now = self.ids[write.run], datetime.now(UTC)
        key = {"tenant_id": self._workspace, "session_id": self._project, "start_time": BEGAN_AT, "id": run_id}
        if write.kind == "delete":
            return key | {"deleted_at": now}
        prefix = "patched_" if write.kind == "patch" else ""
        values = {prefix + name: value for name, value in write.values.items()}
        known = {"trace_id": self.ids[0], "dotted_order": f"20260601T000000000000Z{run_id}", "ingested_at": now}
        return key | known | values

    async def runs(self) -> dict[int, dict[str, Any]]:
        where = "tenant_id = {workspace:UUID} AND session_id = {project:UUID}"
        parameters = {"workspace": self._workspace, "project": self._project}
        rows = await self._connections[0].dicts(f"SELECT * FROM trace_runs WHERE {where}", parameters)
        assert len({row["id"] for row in rows}) == len(rows), "a run is there once"
        return {self.ids.index(row["id"]): _comparable(row) for row in rows}

    async def read_by_key(self) -> dict[int, dict[str, Any]]:
        """Return the runs as pages read them."""
        keys = [RunKey(self._project, BEGAN_AT, run_id, self.ids[0]) for run_id in self.ids]
        form = form_v2(["TAGS", "ATTACHMENTS"])
        found = await self._reads.rows(self._workspace, keys, {*AS_READ, *form.needs})
        shown = {place: form.body(row, self._workspace, lambda key, _: key) for place, row in found.items()}
        return {
            self.ids.index(place[2]): {name: row[name] for name in AS_READ} | decode(encode(shown[place]))
            for place, row in found.items()
        }

    async def places(self) -> set[UUID]:
        """Return the ids by which the two indexes find a run."""
        parameters = {"workspace": self._workspace, "trace": self.ids[0], "ids": self.ids}
        by_id = "SELECT DISTINCT id FROM trace_run_keys WHERE tenant_id = {workspace:UUID} AND id IN {ids:Array(UUID)}"
        by_trace = "SELECT id FROM trace_keys FINAL WHERE tenant_id = {workspace:UUID} AND trace_id = {trace:UUID}"
        found = {row[0] for row in await self._connections[0].rows(by_id, parameters)}
        rows = await self._connections[1].rows(by_trace, parameters)
        assert {row[0] for row in rows} <= found
        return found


def _as_read(seen: dict[str, Any]) -> dict[str, Any]:
    keys = {name: attachment["key"] for name, attachment in (seen["attachments"] or {}).items()}
    return {name: seen[name] for name in (*AS_READ, "tags")} | {"attachments": keys}


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    json_columns = {name: row[name] and json.loads(row[name]) for name in ("extra", "attachments")}
    return {name: row[name] for name in (*Model()._read(0), "status")} | json_columns


@pytest.fixture
async def connections(clickhouse_url: str) -> AsyncIterator[list[ClickHouse]]:
    clients = [ClickHouse(clickhouse_url), ClickHouse(clickhouse_url)]
    yield clients
    for client in clients:
        await client.close()


@pytest.fixture
def reads(connections: list[ClickHouse]) -> RunReads:
    return RunReads(connections[1])


# The fixtures are two clients and a reader, which an example leaves unchanged.
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inserts=st.lists(INSERTS, min_size=1, max_size=4))
async def test_a_run_is_what_its_writes_said_in_whatever_order_they_came(connections, reads, inserts):
    store, model = Store(connections, reads), Model()
    for insert in inserts:
        await store.insert(insert)
        for write in insert.writes * (2 if insert.sent_twice else 1):
            model.add(write)
        assert await store.runs() == model.runs()
        assert await store.read_by_key() == {run: _as_read(seen) for run, seen in model.runs().items()}
    assert await store.places() == {store.ids[write.run] for insert in inserts for write in insert.writes}
