"""What each step of trace ingest costs by itself, in one process and one run: the ceiling that the platform is compared
with. Bodies are those of trace_bodies.py, whole runs, 96 a body. CPU µs a run, the best of five.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import orjson
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.transform import NativeTransform
from trace_bodies import BOUNDARY, RUNS_A_TREE, Bodies, body

from moorage.traces.parse_run import parse_run
from moorage.traces.sent_body import MultipartParser, SentBody
from moorage.traces.store import run_writes

T = TypeVar("T")

_BODIES, _TREES = 20, 12
_RUNS = _BODIES * _TREES * RUNS_A_TREE
_PIECE_BYTES = 2**16
_INSERT_ROWS = 1_600


def main() -> None:
    made = Bodies(1, "bench")
    now = datetime.now(UTC)
    sent = [
        body([part for tree in made.trees(now, now + timedelta(seconds=9), _TREES, whole=True) for part in tree.whole])
        for _ in range(_BODIES)
    ]
    print("| step | CPU µs a run |\n|---|---|")
    parsed = _best("multipart, in pieces of 64 KB", lambda: [_parsed(each) for each in sent])
    _best("decoding of all JSON (orjson)", lambda: [orjson.loads(part.data) for parts in parsed for part in parts])
    grouped = _best("parts to runs", lambda: [_grouped(parts) for parts in parsed])
    writes = _best("runs read and checked", lambda: [[parse_run(run) for run in each.runs] for each in grouped])
    for run in (run for each in writes for run in each):
        run.session_id = UUID(int=2)
    rows = _best("rows", lambda: [run.row(UUID(int=1), {}, place_only=False) for each in writes for run in each])
    some = range(0, len(rows), _INSERT_ROWS)
    columns = _best("columns", lambda: [run_writes.to_columns(rows[at : at + _INSERT_ROWS], now) for at in some])
    _best("columns in the engine's format", lambda: [_encoded(each) for each in columns])


def _best(name: str, step: Callable[[], T]) -> T:
    used = []
    for _ in range(5):
        before = time.process_time()
        result = step()
        used.append(time.process_time() - before)
    print(f"| {name} | {min(used) / _RUNS * 1e6:.1f} |", flush=True)
    return result


def _parsed(data: bytes) -> list:  # type: ignore[type-arg]
    parser = MultipartParser(BOUNDARY.encode())
    return [part for at in range(0, len(data), _PIECE_BYTES) for part in parser.feed(data[at : at + _PIECE_BYTES])]


def _grouped(parts: list) -> SentBody:  # type: ignore[type-arg]
    sent = SentBody()
    sent.add(parts)
    return sent


def _encoded(columns: dict) -> int:  # type: ignore[type-arg]
    kinds = [get_from_name(kind) for kind, _ in columns.values()]
    data = [values for _, values in columns.values()]
    return sum(
        map(
            len, NativeTransform.build_insert(InsertContext("t", list(columns), kinds, data=data, column_oriented=True))
        )
    )


if __name__ == "__main__":
    main()
