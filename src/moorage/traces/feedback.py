"""Feedback on runs, traces and projects. Feedback keys: the meaning of their values, formulas, and tokens for giving
feedback without an API key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter, ValidationError

from moorage.kernel.access import Caller, Plan
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError, existing
from moorage.kernel.ids import uuid7
from moorage.traces.records.feedback import (
    FeedbackByToken,
    FeedbackConfigCreate,
    FeedbackConfigPatch,
    FeedbackConfigRow,
    FeedbackConfigSearch,
    FeedbackCreate,
    FeedbackPatch,
    FeedbackRow,
    FeedbackSearch,
    FeedbackSourceGiven,
    FeedbackToken,
    FeedbackTokenCreate,
    FeedbackTokenSearch,
    Formula,
    FormulaSearch,
    FormulaWrite,
)
from moorage.traces.records.words import FeedbackStat
from moorage.traces.store.feedback import FeedbackKeyStore, FeedbackStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunLocation, RunWrites

_BATCH: TypeAdapter[list[FeedbackCreate]] = TypeAdapter(list[FeedbackCreate])
_INSTANT = timedelta(microseconds=1)
# Feedback waits this long for its run to arrive.
_SETTLED_FOR = timedelta(days=2)
_TOKEN_LIFE = timedelta(hours=3)
_TOKEN_LIFE_MAX = timedelta(days=365)


class Feedback:
    def __init__(
        self, feedback: FeedbackStore, keys: FeedbackKeyStore, projects: ProjectStore, runs: RunWrites
    ) -> None:
        self._feedback = feedback
        self._keys = keys
        self._projects = projects
        self._runs = runs

    async def create(self, caller: Caller, new: FeedbackCreate) -> FeedbackRow:
        """Create feedback; its run need not have arrived. An existing id is replaced, unless it was changed meanwhile.

        Raises NotFoundError when the run was deleted, or when the workspace has no such project.
        """
        rows = await self._rows(caller.workspace_id, [new])
        if not rows:
            raise NotFoundError(f"Run with id {new.run_id or new.trace_id} not found: it was deleted")
        if new.session_id is not None and rows[0]["session_id"] is None:
            raise NotFoundError(f"Session with id {new.session_id} not found")
        await self._insert(caller, [new], rows)
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
        await self._insert(caller, given, rows)

    async def get(self, caller: Caller, feedback_id: UUID) -> FeedbackRow:
        found = await self._feedback.read(caller.workspace_id, feedback_id)
        return existing(found, f"Feedback with id {feedback_id} not found")

    async def list(self, caller: Caller, search: FeedbackSearch) -> Sequence[FeedbackRow]:
        """List feedback, newest first; one more than asked for when there are more."""
        return await self._feedback.page(caller.workspace_id, search)

    async def update(self, caller: Caller, feedback_id: UUID, patch: FeedbackPatch) -> FeedbackRow:
        row = await self.get(caller, feedback_id)
        changes = patch.model_dump(exclude_unset=True, exclude={"feedback_config"})
        changed: FeedbackRow = {**row, **changes, "modified_at": _after(row)}  # type: ignore[typeddict-item]
        await self._feedback.insert(caller.workspace_id, [changed])
        if patch.feedback_config is not None:
            await self._keys.insert_config(caller.workspace_id, row["key"], patch.feedback_config, caller.actor)
        return changed

    async def delete(self, caller: Caller, feedback_id: UUID) -> None:
        row = await self.get(caller, feedback_id)
        await self._feedback.insert(caller.workspace_id, [{**row, "modified_at": _after(row)}], deleted=True)

    async def settle(self, now: datetime) -> int:
        """Set the place of feedback whose run arrived after it; returns how many. Idempotent."""
        settled = 0
        for workspace_id, rows in (await self._feedback.homeless(now - _SETTLED_FOR)).items():
            places = await self._runs.read_places(workspace_id, {str(row["run_id"]) for row in rows})
            found = [(row, places[run_id]) for row in rows if (run_id := str(row["run_id"])) in places]
            await self._feedback.insert(workspace_id, [_settled(row, place) for row, place in found])
            settled += len(found)
        return settled

    async def _insert(self, caller: Caller, given: Sequence[FeedbackCreate], rows: Sequence[FeedbackRow]) -> None:
        await self._feedback.insert(caller.workspace_id, rows)
        # The first configuration of a key wins.
        configs = {new.key: new.feedback_config for new in given if new.feedback_config is not None}
        for key, config in configs.items():
            await self._keys.insert_config(caller.workspace_id, key, config, caller.actor)

    async def _rows(self, workspace_id: UUID, given: Sequence[FeedbackCreate]) -> Sequence[FeedbackRow]:
        """Make the rows, with the places of known runs; feedback whose run was deleted is left out."""
        places = await self._runs.read_places(workspace_id, {run_id for new in given for run_id in _runs_of(new)[:1]})
        placed = [(new, next(map(places.get, _runs_of(new)), None)) for new in given]
        unknown = [new for new, place in placed if place is None]
        known = await self._projects.known(workspace_id, {new.session_id for new in unknown if new.session_id})
        deleted = await self._runs.deleted({(workspace_id, run_id) for new in unknown for run_id in _runs_of(new)})
        gone = {run_id for _, run_id in deleted}
        return [_row(new, place, known) for new, place in placed if gone.isdisjoint(_runs_of(new))]


def _runs_of(new: FeedbackCreate) -> list[str]:
    """List the run that feedback is about, and the root of its trace, as far as they are named."""
    return [str(run_id) for run_id in (new.run_id, new.trace_id) if run_id]


def _row(new: FeedbackCreate, place: RunLocation | None, known: set[UUID]) -> FeedbackRow:
    """Make a row. `known`: projects of the workspace; any other project that the caller names is ignored."""
    now = datetime.now(UTC)
    run_id = new.run_id or new.trace_id
    trace_id = place.trace_id if place and place.trace_id else new.trace_id
    return {
        **new.model_dump(exclude={"feedback_config"}),  # type: ignore[typeddict-item]
        "id": new.id or uuid7(),
        "run_id": run_id,
        "trace_id": trace_id,
        "session_id": place.session_id if place else new.session_id if new.session_id in known else None,
        "start_time": place.start_at if place else new.start_time,
        "is_root": run_id is not None and run_id == trace_id,
        "feedback_source": (new.feedback_source or FeedbackSourceGiven()).model_dump(mode="json", exclude_none=True),
        "feedback_thread_id": None,
        "created_at": new.created_at or now,
        "modified_at": new.modified_at or new.created_at or now,
    }


def _settled(row: FeedbackRow, place: RunLocation) -> FeedbackRow:
    trace_id = place.trace_id or row["trace_id"]
    moved: FeedbackRow = {**row, "session_id": place.session_id, "trace_id": trace_id, "start_time": place.start_at}
    # Not `_after`: a change that somebody makes right now must win over this one.
    return {**moved, "modified_at": row["modified_at"] + _INSTANT}


def _after(row: FeedbackRow) -> datetime:
    """Choose a time after the row's last modification, so that this change wins even if a client's clock ran ahead."""
    return max(datetime.now(UTC), row["modified_at"] + _INSTANT)


# --- feedback keys ------------------------------------------------------------------------------------------------


class FeedbackKeys:
    """The meaning of the values of keys, and keys that are computed from others."""

    def __init__(self, keys: FeedbackKeyStore) -> None:
        self._keys = keys

    async def create_config(self, caller: Caller, new: FeedbackConfigCreate) -> FeedbackConfigRow:
        """Idempotent: returns the existing row. Raises BadRequestError when the key has a different configuration."""
        key, config, lower_is_better = new.feedback_key, new.feedback_config, bool(new.is_lower_score_better)
        made = await self._keys.insert_config(
            caller.workspace_id, key, config, caller.actor, lower_is_better=lower_is_better
        )
        if made is not None:
            return made
        found = await self._keys.read_config(caller.workspace_id, key)
        if found is None or found["feedback_config"] != config.model_dump(mode="json"):
            raise BadRequestError(
                f"The key {key!r} has another configuration; change it with PATCH, or delete it first"
            )
        return found

    async def list_configs(self, caller: Caller, search: FeedbackConfigSearch) -> list[FeedbackConfigRow]:
        return await self._keys.page_configs(caller.workspace_id, search)

    async def update_config(self, caller: Caller, patch: FeedbackConfigPatch) -> FeedbackConfigRow:
        changed = await self._keys.update_config(caller.workspace_id, patch, caller.actor)
        return existing(changed, f"The key {patch.feedback_key!r} has no configuration")

    async def delete_config(self, caller: Caller, key: str) -> None:
        if not await self._keys.remove_config(caller.workspace_id, key):
            raise NotFoundError(f"The key {key!r} has no configuration")

    async def write_formula(self, caller: Caller, new: FormulaWrite, formula_id: UUID | None = None) -> Formula:
        """Create a formula, or replace the one with the id.

        Raises ConflictError when the key has another formula for the same project and dataset.
        """
        written = await self._keys.write_formula(caller.workspace_id, new, formula_id, caller.actor)
        return existing(written, f"Feedback formula with id {formula_id} not found")

    async def get_formula(self, caller: Caller, formula_id: UUID) -> Formula:
        found = await self._keys.read_formula(caller.workspace_id, formula_id)
        return existing(found, f"Feedback formula with id {formula_id} not found")

    async def list_formulas(self, caller: Caller, search: FormulaSearch) -> list[Formula]:
        return await self._keys.page_formulas(caller.workspace_id, search)

    async def delete_formula(self, caller: Caller, formula_id: UUID) -> None:
        if not await self._keys.remove_formula(caller.workspace_id, formula_id):
            raise NotFoundError(f"Feedback formula with id {formula_id} not found")


def composed(stats: dict[str, FeedbackStat], formulas: Iterable[Formula]) -> dict[str, FeedbackStat]:
    """Add to a project's statistics the keys that formulas compute from the averages of other keys.

    A formula is left out while one of its parts has no scores.
    """
    found = dict(stats)
    averages = {key: stat["avg"] for key, stat in stats.items() if stat["avg"] is not None}
    for formula in formulas:
        parts = formula["formula_parts"]
        if any(part["key"] not in averages for part in parts):
            continue
        total = sum(part["weight"] * averages[part["key"]] for part in parts)
        found[formula["feedback_key"]] = {
            "n": min(stats[part["key"]]["n"] for part in parts),
            "avg": total if formula["aggregation_type"] == "sum" else total / len(parts),
            "min": None,
            "max": None,
            "stdev": None,
            "errors": 0,
            "values": {},
            "comments": [],
            "sources": [],
            "contains_thread_feedback": False,
        }
    return found


class FeedbackTokens:
    """A token is good for feedback of one key on one run, without an API key, until it expires."""

    def __init__(self, keys: FeedbackKeyStore, feedback: Feedback, *, public_url: str) -> None:
        self._keys = keys
        self._feedback = feedback
        self._public_url = public_url

    async def create(self, caller: Caller, wanted: Sequence[FeedbackTokenCreate]) -> list[FeedbackToken]:
        """Create tokens. Raises InvalidRequestError for one that would expire in the past or in more than a year."""
        tokens = [_token(new) for new in wanted]
        await self._keys.insert_tokens(caller.workspace_id, tokens, caller.actor)
        for new in wanted:
            if new.feedback_config is not None:
                await self._keys.insert_config(caller.workspace_id, new.feedback_key, new.feedback_config, caller.actor)
        return [self._shown(token) for token in tokens]

    async def list(self, caller: Caller, search: FeedbackTokenSearch) -> Sequence[FeedbackToken]:
        return [self._shown(row) for row in await self._keys.page_tokens(caller.workspace_id, search)]

    async def redeem(self, secret: UUID, given: FeedbackByToken) -> None:
        """Store feedback by a token. Raises NotFoundError when it is unknown or has expired."""
        token = await self._keys.read_token(secret)
        if token is None:
            raise NotFoundError("The feedback token is not known, or has expired")
        new = FeedbackCreate(
            **given.model_dump(exclude={"metadata"}),
            id=token["feedback_id"],
            run_id=token["run_id"],
            key=token["feedback_key"],
            feedback_source=FeedbackSourceGiven(metadata=given.metadata),
        )
        caller = Caller(token["workspace_id"], Plan.DEVELOPER, frozenset(), "feedback-token")
        await self._feedback.create(caller, new)

    def _shown(self, token: Mapping[str, Any]) -> FeedbackToken:
        secret = token["id"]
        url = f"{self._public_url}/api/v1/feedback/tokens/{secret}"
        return {"id": secret, "url": url, "expires_at": token["expires_at"], "feedback_key": token["feedback_key"]}


def _token(new: FeedbackTokenCreate) -> dict[str, Any]:
    now = datetime.now(UTC)
    life = timedelta(**new.expires_in.model_dump()) if new.expires_in else _TOKEN_LIFE
    expires_at = new.expires_at or now + life
    if not now < expires_at <= now + _TOKEN_LIFE_MAX:
        raise InvalidRequestError("A feedback token expires in the future, and within a year")
    token = new.model_dump(include={"run_id", "feedback_key"})
    # Not a UUIDv7: the id is a secret, and must not be guessed from the time.
    return {**token, "id": uuid4(), "feedback_id": new.id, "expires_at": expires_at}
