"""The platform's record of one deployment on a listener's machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moorage.control.places import Place
from moorage.control.runtimes.rules import AgentKey
from moorage.embedded import processes
from moorage.kernel.encoding import decode, encode


class ListenerNotes:
    """Notes in a file: `key` and `key_id` of the deployment; `deployment`, its id on the listener; `revisions`, from
    ids there to ids here; `commits` of the builds; `logged`, the position up to which its log was read.
    """

    def __init__(self, place: Place) -> None:
        self._file = place.run / "listener.json"

    def exists(self) -> bool:
        return self._file.exists()

    def begin(self, key: AgentKey) -> None:
        self._write({"key": key.key, "key_id": str(key.id), "revisions": {}, "commits": {}, "logged": None})

    def read(self) -> dict[str, Any]:
        known: dict[str, Any] = decode(self._file.read_bytes())
        return known

    def change(self, change: Callable[[dict[str, Any]], None]) -> None:
        known = self.read()
        change(known)
        self._write(known)

    def _write(self, known: dict[str, Any]) -> None:
        processes.write_private(self._file, encode(known))
