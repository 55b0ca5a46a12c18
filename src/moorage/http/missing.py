"""Operations of the wire that are not served yet. They are answered 501 with what is missing, not with a bare 404.

The table is asked only where no route has matched: an operation that is served never reaches it. Knows no room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

# Words for what is missing -> its operations, such as `POST /runs/crons/{cron_id}`. The method `*` is any;
# a path that ends in `/**` is the path and everything below it.
NotServed = Mapping[str, Sequence[str]]


class Missing:
    """Tables of operations with the prefixes below which each is looked for."""

    def __init__(self, *tables: tuple[NotServed, Iterable[str]]) -> None:
        self.names = sorted({name for table, _ in tables for name in table})
        self._patterns = [
            (name, _pattern(operation, prefix))
            for table, prefixes in tables
            for prefix in prefixes
            for name, operations in table.items()
            for operation in operations
        ]

    def find(self, method: str, path: str) -> str | None:
        """Words for what is missing, or None for an operation that nobody knows."""
        asked = f"{method} {path}"
        return next((name for name, pattern in self._patterns if pattern.fullmatch(asked)), None)


NOTHING = Missing()


def _pattern(operation: str, prefix: str) -> re.Pattern[str]:
    method, _, path = operation.partition(" ")
    below = "(?:/.*)?" if path.endswith("/**") else "/?"
    place = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(prefix + path.removesuffix("/**")))
    return re.compile(f"{r'[A-Z]+' if method == '*' else method} {place}{below}")
