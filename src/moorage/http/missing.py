"""Operations of the API that are not served yet. They answer 501 with a description of the operation, instead of a bare
404.

The table is consulted only if no route matched, so a served operation never reaches it. It imports nothing of the
rooms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

# From the description of missing operations to the operations, such as `POST /runs/crons/{cron_id}`. The method `*`
# matches any method; a path that ends in `/**` matches the path and everything below it.
NotServed = Mapping[str, Sequence[str]]


class Missing:
    """Tables of missing operations, each with the path prefixes below which it applies."""

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
        """Return the description of a missing operation, or None for an unknown one."""
        asked = f"{method} {path}"
        return next((name for name, pattern in self._patterns if pattern.fullmatch(asked)), None)


NOTHING = Missing()


def _pattern(operation: str, prefix: str) -> re.Pattern[str]:
    method, _, path = operation.partition(" ")
    below = "(?:/.*)?" if path.endswith("/**") else "/?"
    place = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(prefix + path.removesuffix("/**")))
    return re.compile(f"{r'[A-Z]+' if method == '*' else method} {place}{below}")
