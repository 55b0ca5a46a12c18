"""Feedback on runs, traces and projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from pydantic import TypeAdapter, ValidationError

from moorage.kernel.access import Caller
from moorage.kernel.errors import InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7
from moorage.traces.records.feedback import (
    FeedbackCreate,
    FeedbackPatch,
    FeedbackRow,
    FeedbackSearch,
    FeedbackSource,
    FeedbackSourceGiven,
)
from moorage.traces.store.feedback import FeedbackStore, FeedbackTarget
from moorage.traces.store.feedback_keys import FeedbackKeyStore
from moorage.traces.store.projects import ProjectStore

log = structlog.get_logger(__name__)

_BATCH: TypeAdapter[list[FeedbackCreate]] = TypeAdapter(list[FeedbackCreate])
_INSTANT = timedelta(microseconds=1)
# Feedback waits this long for its run to arrive.
_SETTLED_FOR = timedelta(days=2)


class Feedback:
    def __init__(self, feedback: FeedbackStore, keys: FeedbackKeyStore, projects: ProjectStore) -> None:
        self._feedback = feedback
        self._keys = keys
        self._projects = projects

    async def create(self, caller: Caller, new: FeedbackCreate) -> FeedbackRow:
        """Create feedback; its run need not have arrived. An existing id is replaced, unless it was changed meanwhile.

        Raises NotFoundError when the run was deleted, or when the workspace has no such project.
        """
        return await self.write(caller.workspace_id, new, actor=caller.actor)

    async def write(self, workspace_id: UUID, new: FeedbackCreate, *, actor: str) -> FeedbackRow:
        """Create feedback for a caller without a key."""
        rows = await self._rows(workspace_id, [new])
        if not rows:
            raise NotFoundError(f"Run with id {new.run_id or new.trace_id} not found: it was deleted")
        if new.session_id is not None and rows[0]["session_id"] is None:
            raise NotFoundError(f"Session with id {new.session_id} not found")
        await self._insert(workspace_id, [new], rows, actor)
        return rows[0]

    async def accept(self, caller: Caller, items: Sequence[Mapping[str, Any]]) -> None:
        """Store feedback that was sent with runs, as decoded JSON. Feedback on deleted runs is dropped.

        Raises InvalidRequestError when an item is not feedback; then none is stored.
        """
        try:
            given = _BATCH.validate_python(items)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InvalidRequestError(f"Invalid feedback: {place}: {first['msg']}") from None
        rows = await self._rows(caller.workspace_id, given)
        await self._insert(caller.workspace_id, given, rows, caller.actor)

    async def get(self, caller: Caller, feedback_id: UUID) -> FeedbackRow:
        row = await self._feedback.read(caller.workspace_id, feedback_id)
        if row is None:
            raise NotFoundError(f"Feedback with id {feedback_id} not found")
        return row

    async def list(self, caller: Caller, search: FeedbackSearch) -> Sequence[FeedbackRow]:
        """Newest first; one more than asked for when there are more."""
        return await self._feedback.page(caller.workspace_id, search)

    async def update(self, caller: Caller, feedback_id: UUID, patch: FeedbackPatch) -> FeedbackRow:
        row = await self.get(caller, feedback_id)
        changes = patch.model_dump(exclude_unset=True, exclude={"feedback_config"})
        changed: FeedbackRow = {**row, **changes, "modified_at": _after(row)}  # type: ignore[typeddict-item]
        await self._feedback.insert(caller.workspace_id, [changed])
        if patch.feedback_config is not None:
            await self._keys.insert_config(
                caller.workspace_id, row["key"], patch.feedback_config, lower_is_better=False, actor=caller.actor
            )
        return changed

    async def delete(self, caller: Caller, feedback_id: UUID) -> None:
        row = await self.get(caller, feedback_id)
        await self._feedback.insert(caller.workspace_id, [{**row, "modified_at": _after(row)}], deleted=True)

    async def settle(self, now: datetime) -> int:
        """Set the place of feedback whose run arrived after it; returns how many. Idempotent."""
        settled = 0
        for workspace_id, rows in (await self._feedback.homeless(now - _SETTLED_FOR)).items():
            places = await self._feedback.locate(workspace_id, {row["run_id"] for row in rows if row["run_id"]})
            found = [(row, places[row["run_id"]]) for row in rows if row["run_id"] in places]
            await self._feedback.insert(workspace_id, [_settled(row, place) for row, place in found])
            settled += len(found)
        return settled

    async def _insert(
        self, workspace_id: UUID, given: Sequence[FeedbackCreate], rows: Sequence[FeedbackRow], actor: str
    ) -> None:
        await self._feedback.insert(workspace_id, rows)
        # The first configuration of a key wins.
        configs = {new.key: new.feedback_config for new in given if new.feedback_config is not None}
        for key, config in configs.items():
            await self._keys.insert_config(workspace_id, key, config, lower_is_better=False, actor=actor)

    async def _rows(self, workspace_id: UUID, given: Sequence[FeedbackCreate]) -> Sequence[FeedbackRow]:
        """Make the rows, with the places of known runs; feedback whose run was deleted is left out."""
        runs = {run_id for new in given if (run_id := new.run_id or new.trace_id)}
        places = await self._feedback.locate(workspace_id, runs)
        unknown = [new for new in given if (new.run_id or new.trace_id) not in places]
        named = {new.session_id for new in unknown if new.session_id}
        known = await self._projects.known(workspace_id, named) if named else set()
        subjects = {id_ for new in unknown for id_ in (new.run_id, new.trace_id) if id_}
        deleted = await self._feedback.deleted(workspace_id, subjects)
        return [
            _row(new, places.get(new.run_id or new.trace_id), known)  # type: ignore[arg-type]
            for new in given
            if new.run_id not in deleted and new.trace_id not in deleted
        ]


def _row(new: FeedbackCreate, place: FeedbackTarget | None, known: set[UUID]) -> FeedbackRow:
    """Make a row. `known`: projects of the workspace; any other project that the caller names is ignored."""
    now = datetime.now(UTC)
    run_id = new.run_id or new.trace_id
    trace_id = place.trace_id if place and place.trace_id else new.trace_id
    return {
        "id": new.id or uuid7(),
        "key": new.key,
        "score": new.score,
        "value": new.value,
        "comment": new.comment,
        "correction": new.correction,
        "run_id": run_id,
        "trace_id": trace_id,
        "session_id": place.session_id if place else new.session_id if new.session_id in known else None,
        "start_time": place.start_time if place else new.start_time,
        "is_root": run_id is not None and run_id == trace_id,
        "feedback_source": _source(new.feedback_source or FeedbackSourceGiven()),
        "feedback_group_id": new.feedback_group_id,
        "comparative_experiment_id": new.comparative_experiment_id,
        "feedback_thread_id": None,
        "extra": new.extra,
        "error": new.error,
        "created_at": new.created_at or now,
        "modified_at": new.modified_at or new.created_at or now,
    }


def _source(given: FeedbackSourceGiven) -> FeedbackSource:
    return given.model_dump(mode="json", exclude_none=True)  # type: ignore[return-value]


def _settled(row: FeedbackRow, place: FeedbackTarget) -> FeedbackRow:
    trace_id = place.trace_id or row["trace_id"]
    moved: FeedbackRow = {**row, "session_id": place.session_id, "trace_id": trace_id, "start_time": place.start_time}
    # Not `_after`: a change that somebody makes right now must win over this one.
    return {**moved, "modified_at": row["modified_at"] + _INSTANT}


def _after(row: FeedbackRow) -> datetime:
    """Choose a time after the row's last modification, so that this change wins even if a client's clock ran ahead."""
    return max(datetime.now(UTC), row["modified_at"] + _INSTANT)
