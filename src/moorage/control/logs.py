"""Logs of deployments, read page by page, forward or backward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from moorage.control.deployments import deployment_not_found
from moorage.control.records.logs import LogCursor, LogEntry, LogKind, LogLine, LogPage, LogQuery
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.logs import LogStore
from moorage.control.store.revisions import RevisionStore
from moorage.kernel.access import Caller
from moorage.kernel.errors import NotFoundError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Logs:
    def __init__(self, store: LogStore, deployments: DeploymentStore, revisions: RevisionStore) -> None:
        self._store = store
        self._deployments = deployments
        self._revisions = revisions

    async def page(
        self, caller: Caller, deployment_id: UUID, revision_id: UUID | None, kind: LogKind, wanted: LogQuery
    ) -> LogPage:
        """Read a page of log lines.

        `next_offset` is the position after the last line, also at the current end, since more lines may be printed. It
        is None after an empty page, and at the end of a list that goes back in time. Raises NotFoundError.
        """
        if await self._deployments.read(caller.workspace_id, deployment_id) is None:
            raise deployment_not_found(deployment_id)
        if revision_id is not None:
            row = await self._revisions.read(caller.workspace_id, deployment_id, revision_id)
            if row is None:
                raise NotFoundError(f"Revision ID {revision_id} not found.")
        lines = await self._store.page(caller.workspace_id, deployment_id, revision_id, kind, wanted)
        at_end = not lines or (wanted.order == "desc" and len(lines) < wanted.limit)
        return {"logs": [_entry(line) for line in lines], "next_offset": None if at_end else _cursor(lines[-1])}


def _cursor(line: LogLine) -> str:
    return LogCursor(line.logged_at, line.revision_id, line.position).encoded()


def _entry(line: LogLine) -> LogEntry:
    return {
        "id": f"{line.revision_id}-{line.kind}-{line.position:x}",
        "timestamp": (line.logged_at - _EPOCH) // _MILLISECOND,
        "level": line.level.value,
        "message": line.message,
        "type": line.kind.value,
        "revision_id": line.revision_id,
        "run_id": line.run_id or None,
    }
