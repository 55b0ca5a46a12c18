"""Merges the most recently written parts while little is written.

When the engine selects parts to merge, it adds 5 MB to the size of each, and waits for ten of similar size. So for an
hour after a busy time, the last day is in a dozen parts of some megabytes. The last day is read most, and each part
adds a millisecond to every statement, and somewhat more to statistics. While much is written, the engine's own way is
cheaper.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from moorage.embedded.chdb_server.engine import ChdbEngine, StatementError

_LOOK_S = 5.0
# Larger parts are left to the engine; so are small parts if there are fewer than this number.
SMALL_BYTES = 32_000_000
_PARTS_MIN = 3
# Bytes inserted within `_LOOK_S`, before compression: some 1,000 runs a second.
_LITTLE_BYTES = 20_000_000
# After a merge, the pause is this many times its duration. So merging takes at most a fifth of a core after a busy
# time.
_PAUSE = 4
_ROUNDS_MAX = 8

_INSERTED = "SELECT toUInt64(sum(value)) AS bytes FROM system.events WHERE event = 'InsertedBytes'"
_MERGES = "SELECT count() AS merges FROM system.merges"
_PARTS = """
SELECT database, table, groupArray(bytes_on_disk) AS bytes
FROM (SELECT * FROM system.parts WHERE active ORDER BY min_block_number) GROUP BY database, table, partition_id
"""


class IdleMerges:
    def __init__(self, engine: ChdbEngine) -> None:
        self._engine = engine
        self._inserted = 0
        self._done = False

    def start(self) -> None:
        threading.Thread(target=self._tend, name="small-parts", daemon=True).start()

    def _tend(self) -> None:
        spent_s = 0.0
        while True:
            time.sleep(max(_LOOK_S, _PAUSE * spent_s))
            started_at = time.monotonic()
            try:
                self._look()
            except StatementError as error:
                _tell(error)
            spent_s = time.monotonic() - started_at

    def _look(self) -> None:
        inserted = int(self._rows(_INSERTED)[0]["bytes"])
        little, nothing = inserted - self._inserted < _LITTLE_BYTES, inserted == self._inserted
        self._inserted = inserted
        if little and not (nothing and self._done):
            self._done = self._merge()

    def _merge(self) -> bool:
        """Merge small parts; the engine chooses which. Returns True if no parts are left that can be merged."""
        refused: set[tuple[str, str]] = set()
        for _ in range(_ROUNDS_MAX):
            crowded = {(row["database"], row["table"]) for row in self._rows(_PARTS) if is_crowded(row["bytes"])}
            if not crowded - refused:
                return True
            if int(self._rows(_MERGES)[0]["merges"]):
                return False
            for database, table in crowded - refused:
                try:
                    self._run(f"OPTIMIZE TABLE `{database}`.`{table}`")
                except StatementError as error:  # table gone, merges stopped or disk full: go on with other tables
                    refused.add((database, table))
                    _tell(error)
        return False

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._run(sql).splitlines()]

    def _run(self, sql: str) -> bytes:
        with self._engine.connection("", ()) as connection:
            return b"".join(connection.query(sql, "JSONEachRow", {}, ""))


def _tell(error: StatementError) -> None:
    print(f"Small parts could not be merged: {error}", file=sys.stderr)  # noqa: T201  our log


def is_crowded(parts: Sequence[int | str]) -> bool:
    """Return True if the newest parts are many and small. Takes sizes in bytes, in the order of writing."""
    last = parts[-_PARTS_MIN:]
    return len(last) == _PARTS_MIN and all(int(size) < SMALL_BYTES for size in last)
